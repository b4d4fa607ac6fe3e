"""Derived values: what a loss makes of its parameters alone, other than by moving and scaling their entries.

    found = derived_values(frame, num_params)                  # such as a penalty, or a kernel that is normalised
    body = with_derived_inputs(frame, num_params, found)       # they are inputs of it, after the parameters
    values, pull_back = evaluate_derived(frame, params, found)

An L2 term is one number u(W) = lam ||W||^2, and weight normalisation makes another weight u(V) of V. In either case the
loss is L(W, u(W), x). Take u for a parameter of its own: then W and u meet data, in products and sums as usual. By the
chain rule

    dL/dW = (the part where W itself meets data) + (du/dW)^T dL/du.

u is computed once for all examples. One example's gradient of u is formed, and `pull_back`, the vector-Jacobian product
of u, takes it back to the parameters, whose gradients are formed with it.

A penalty has nothing to do with any example, and its gradient costs no privacy. It is better added to the noisy
gradient, as `optax.add_decayed_weights` does, than to the loss of every example, where it is clipped.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._jaxprs import (
    NO_GRADIENT,
    Environment,
    Frame,
    dependencies,
    equations_for,
    is_literal,
    variables_of,
)
from gdpjax.clipping._tracing.primitives import family_of


class DerivedValue(NamedTuple):
    """A value that is taken for a parameter.

    Attributes:
      variable: its variable in the jaxpr of the loss.
      leaves: the parameters that it depends on.
    """

    variable: Any
    leaves: frozenset[int]


class _Body(NamedTuple):
    """A stand-in for a jaxpr, with the parts of it that the engine reads."""

    constvars: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]


def derived_values(frame: Frame, num_params: int) -> list[DerivedValue]:
    """Find the derived values that meet data, in a frame whose first inputs are the parameters.

    Its first output is the loss.
    """
    jaxpr = frame.jaxpr
    data = set(jaxpr.invars[num_params:])
    # The values that depend on parameters and on no data, and those of them that are linear images of parameters.
    leaves = {variable: frozenset({leaf}) for leaf, variable in enumerate(jaxpr.invars[:num_params])}
    images = set(leaves)
    live = dependencies(jaxpr, jaxpr.outvars[:1], NO_GRADIENT)

    found = {}

    def note(atoms: Sequence[Any]) -> None:
        for variable in variables_of(atoms):
            if variable in leaves and variable not in images:
                found[variable] = DerivedValue(variable, leaves[variable])

    for eqn in jaxpr.eqns:
        if not data.isdisjoint(variables_of(eqn.invars)):
            data.update(eqn.outvars)
            if not live.isdisjoint(eqn.outvars):
                note(eqn.invars)
            continue
        operands = [operand for operand, atom in enumerate(eqn.invars) if not is_literal(atom) and atom in leaves]
        if not operands or eqn.primitive.name in NO_GRADIENT:
            continue
        depends_on = frozenset().union(*(leaves[eqn.invars[operand]] for operand in operands))
        for variable in eqn.outvars:
            if jnp.issubdtype(variable.aval.dtype, jnp.floating):
                leaves[variable] = depends_on
        if _is_linear(eqn, operands) and all(eqn.invars[operand] in images for operand in operands):
            images.update(eqn.outvars)
    note(jaxpr.outvars[:1])
    return list(found.values())


def _is_linear(eqn: Any, operands: Sequence[int]) -> bool:
    """Return whether an equation is linear in these operands, and no two of them are the same variable."""
    if len({eqn.invars[operand] for operand in operands}) < len(operands):
        return False
    return all(family_of(eqn).is_linear(eqn, operand) for operand in operands)


def with_derived_inputs(frame: Frame, num_params: int, derived: Sequence[DerivedValue]) -> Frame:
    """Return the frame with the derived values as inputs after the parameters."""
    jaxpr = frame.jaxpr
    variables = [value.variable for value in derived]
    inputs = [*jaxpr.invars[:num_params], *variables, *jaxpr.invars[num_params:]]

    # Keep the equations that the outputs need, given the derived values.
    needed = set(variables_of(jaxpr.outvars)).difference(variables)
    kept = []
    for index, eqn in reversed(list(enumerate(jaxpr.eqns))):
        if not needed.isdisjoint(eqn.outvars):
            kept.append(index)
            needed.update(variable for variable in variables_of(eqn.invars) if variable not in variables)

    eqns = []
    children = {}
    for index in reversed(kept):
        eqn = jaxpr.eqns[index]
        if index in frame.children:
            children[len(eqns)] = frame.children[index]
        if not set(variables).isdisjoint(eqn.outvars):
            # Another output of the equation is needed: it must not overwrite the input.
            outputs = [jex.DropVar(each.aval) if each in variables else each for each in eqn.outvars]
            eqn = eqn.replace(outvars=outputs)
        eqns.append(eqn)
    return Frame(_Body(jaxpr.constvars, inputs, eqns, jaxpr.outvars), frame.consts, children)


def evaluate_derived(
    frame: Frame, params: Sequence[Array], derived: Sequence[DerivedValue]
) -> tuple[list[Array], Callable[[Sequence[Array]], dict[int, Array]]]:
    """Return the derived values, and how gradients of them are taken back to the parameters.

    Args:
      frame: the loss.
      params: the parameters.
      derived: the derived values.

    Returns:
      The values, and a function from their gradients to those of the parameters that they depend on.
    """
    if not derived:
        return [], lambda gradients: {}
    sources = sorted(frozenset().union(*(value.leaves for value in derived)))

    def values_of(some: Sequence[Array]) -> list[Array]:
        merged = list(params)
        for leaf, param in zip(sources, some, strict=True):
            merged[leaf] = param
        return values_without_data(frame, merged, [value.variable for value in derived])

    values, transpose = jax.vjp(values_of, [params[leaf] for leaf in sources])

    def pull_back(gradients: Sequence[Array]) -> dict[int, Array]:
        cast = [gradient.astype(value.dtype) for gradient, value in zip(gradients, values, strict=True)]
        (pulled_back,) = transpose(cast)
        return dict(zip(sources, pulled_back, strict=True))

    return values, pull_back


def values_without_data(frame: Frame, params: Sequence[Array], variables: Sequence[Any]) -> list[Array]:
    """Return the values of variables of a frame that do not depend on data, given the parameters, its first inputs."""
    num_data = len(frame.jaxpr.invars) - len(params)
    unknown = [None] * num_data  # no equation below reads the data
    environment = Environment(frame.jaxpr, frame.consts, [*params, *unknown])
    environment.run(equations_for(frame.jaxpr, variables))
    return environment.read_all(variables)
