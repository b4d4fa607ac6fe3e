"""Shared values: small nonlinear functions of parameters, which the loss uses like one more parameter.

    found = shared_values(frame, num_params)                   # such as the norms of weight normalisation
    body = with_shared_inputs(frame, num_params, found)        # they are inputs of it, after the parameters
    values, row_sums = evaluate_shared(frame, params, found)   # their values, and the sums M of their derivatives

An L2 term is one number u = lam ||W||^2. Weight normalisation divides each column of V by its norm, so u is a vector of
norms. In either case the loss is L(W, u(W), x). Take u for a parameter of its own. Then W meets data in products as
usual, one example's gradient of u is small and is formed, and the chain rule gives

    dL/dW = (the part from the products) + sum over the shared values u of (du/dW)^T dL/du.

The second part needs no rule for the function u, because no entry of W moves more than one entry of u: an L2 term has
only one, and the entries of column j move norm j alone. So with

    M = sum over the entries k of u of du_k/dW,

which is the same for all examples, the second part is M, with every entry multiplied by the entry of dL/du that it
moves. Which entry that is follows from the axes, which are read off the equations (`axis_map` of their primitives).

A value that depends on parameters alone, and is no linear image of them, becomes a shared value where it meets data, if
it is small. If it is not, the search goes back through products and quotients to values that are small: of V / ||V|| it
takes the norm.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._jaxprs import Frame, dependencies, is_literal, makers_of, variables_of
from gdpjax.clipping._tracing._probes import parameter_values
from gdpjax.clipping._tracing.primitives import family_of

LARGE = 2**10
"""Entries above which the gradient of a parameter is worth keeping in factors."""

_FEWER_ENTRIES = 4
"""A shared value has at least this many times fewer entries than the largest parameter that it depends on."""

AxisMap = dict[int, int]
"""A dict from axes of a parameter to axes of a value; axes may be left out.

Where axis a is mapped to axis b, the entries of the value with index i along b depend on no other entries of the
parameter than those with index i along a.
"""


class SharedValue(NamedTuple):
    """A value that is taken for a parameter.

    Attributes:
      variable: its variable in the jaxpr of the loss.
      leaves: the axis map from each parameter that it depends on.
    """

    variable: Any
    leaves: dict[int, AxisMap]


class _Body(NamedTuple):
    """A stand-in for a jaxpr, with the parts of it that the engine reads."""

    constvars: Sequence[Any]
    invars: Sequence[Any]
    eqns: Sequence[Any]
    outvars: Sequence[Any]


def shared_values(frame: Frame, num_params: int) -> list[SharedValue]:
    """Find the shared values of a frame whose first inputs are the parameters, and whose first output is the loss."""
    return _Search(frame, num_params).shared_values()


def with_shared_inputs(frame: Frame, num_params: int, shared: Sequence[SharedValue]) -> Frame:
    """Return the frame with the shared values as inputs after the parameters."""
    jaxpr = frame.jaxpr
    variables = [value.variable for value in shared]
    inputs = [*jaxpr.invars[:num_params], *variables, *jaxpr.invars[num_params:]]

    # Leave out the equations that make them.
    eqns = []
    children = {}
    for index, eqn in enumerate(jaxpr.eqns):
        if not set(variables).isdisjoint(eqn.outvars):
            continue
        if index in frame.children:
            children[len(eqns)] = frame.children[index]
        eqns.append(eqn)
    return Frame(_Body(jaxpr.constvars, inputs, eqns, jaxpr.outvars), frame.consts, children)


def evaluate_shared(
    frame: Frame, params: Sequence[Array], shared: Sequence[SharedValue]
) -> tuple[list[Array], list[dict[int, Array]]]:
    """Return the shared values, and the sums M of their derivatives.

    Args:
      frame: the loss.
      params: the parameters.
      shared: the shared values to evaluate.

    Returns:
      The values, and for each of them a dict from the parameters that it depends on to M.
    """
    values = []
    row_sums = []
    for each in shared:
        leaves = list(each.leaves)

        def value_of(some: Sequence[Array], each: SharedValue = each, leaves: list[int] = leaves) -> Array:
            every = list(params)
            for leaf, param in zip(leaves, some, strict=True):
                every[leaf] = param
            return parameter_values(frame, every, {each.variable})[each.variable]

        # The vector-Jacobian product with ones adds up the derivatives of all entries.
        value, pull_back = jax.vjp(value_of, [params[leaf] for leaf in leaves])
        (sums,) = pull_back(jnp.ones_like(value))
        values.append(value)
        row_sums.append(dict(zip(leaves, sums, strict=True)))
    return values, row_sums


def spread(coefficients: Array, axes: AxisMap, ndim: int) -> Array:
    """Return gradients of a shared value, laid out along the axes of a parameter.

    Args:
      coefficients: [N, *shape of the shared value], for N examples.
      axes: the axis map from the parameter to the value. The other axes of the value have length one.
      ndim: the number of axes of the parameter.

    Returns:
      [N, ...] with the axes of the parameter, of length one where no axis of the value belongs to them.
    """
    shape = coefficients.shape[1:]
    order = []
    laid_out = []
    for axis in range(ndim):
        if axis in axes:
            order.append(axes[axis])
            laid_out.append(shape[axes[axis]])
        else:
            laid_out.append(1)

    # Bring the axes of the value into the order of the parameter, and insert axes of length one.
    others = [axis for axis in range(len(shape)) if axis not in order]
    permutation = [1 + axis for axis in (*order, *others)]
    moved = jnp.transpose(coefficients, (0, *permutation))
    return moved.reshape(-1, *laid_out)


class _Search:
    """A search for shared values among the variables of the outermost frame.

    Attributes:
      jaxpr: the frame.
      params: the variables of the parameters.
      made_by: for each variable, the equation that makes it.
      leaves: for each value that depends on parameters, which ones.
      data: the values that depend on data.
      linear: the values that are linear images of parameters.
      found: the shared values that were found, by their variables.
      maps: for each parameter the axis maps of the values that depend on it.
    """

    def __init__(self, frame: Frame, num_params: int) -> None:
        self.jaxpr = frame.jaxpr
        self.params = list(frame.jaxpr.invars[:num_params])
        self.made_by = makers_of(frame.jaxpr)
        self.leaves: dict[Any, frozenset[int]] = {}
        for leaf, variable in enumerate(self.params):
            self.leaves[variable] = frozenset({leaf})
        self.data: set[Any] = set(self.jaxpr.invars[num_params:])
        self.linear: set[Any] = set(self.params)
        self.found: dict[Any, SharedValue] = {}
        self.maps: dict[int, dict[Any, AxisMap]] = {}
        for eqn in self.jaxpr.eqns:
            self._classify(eqn)

    def _classify(self, eqn: Any) -> None:
        """Note whether the outputs of an equation are data, depend on parameters, or are linear images of them."""
        variables = variables_of(eqn.invars)
        if not self.data.isdisjoint(variables):
            self.data.update(eqn.outvars)

        leaves = frozenset[int]()
        for variable in variables:
            leaves |= self._leaves_of(variable)
        if not leaves or eqn.primitive.name == "stop_gradient":
            return
        for variable in eqn.outvars:
            if jnp.issubdtype(variable.aval.dtype, jnp.floating):
                self.leaves[variable] = leaves

        dependent = [variable for variable in variables if self._leaves_of(variable)]
        if self._is_linear(eqn) and self.linear.issuperset(dependent):
            self.linear.update(eqn.outvars)

    def _leaves_of(self, atom: Any) -> frozenset[int]:
        """Return the parameters on which a value depends."""
        return frozenset() if is_literal(atom) else self.leaves.get(atom, frozenset())

    def _is_linear(self, eqn: Any) -> bool:
        """Return whether an equation is linear in all operands that depend on parameters, and these are distinct."""
        operands = [operand for operand, atom in enumerate(eqn.invars) if self._leaves_of(atom)]
        distinct = {eqn.invars[operand] for operand in operands}
        if len(distinct) < len(operands):
            return False
        return all(family_of(eqn).is_linear(eqn, operand) for operand in operands)

    def shared_values(self) -> list[SharedValue]:
        """Return the values to share: with them as inputs, all that meets data is a linear image."""
        live = dependencies(self.jaxpr, self.jaxpr.outvars[:1], frozenset({"stop_gradient"}))
        for eqn in self.jaxpr.eqns:
            meets_data = not live.isdisjoint(eqn.outvars) and not self.data.isdisjoint(eqn.outvars)
            if not meets_data:
                continue
            for variable in variables_of(eqn.invars):
                if variable in self.data:
                    continue
                # None means that the variable cannot be made linear: its parameters will be formed.
                for value in self._needed_for(variable) or ():
                    self.found[value.variable] = value
        return list(self.found.values())

    def _needed_for(self, atom: Any) -> list[SharedValue] | None:
        """Return the shared values with which a value becomes a linear image, or None if there are no such values."""
        if not self._leaves_of(atom) or atom in self.linear:
            return []
        if atom in self.found:
            return [self.found[atom]]
        itself = self._as_shared(atom)
        if itself is not None:
            return [itself]

        # It is too large to be shared. If it is linear in its operands, share what those need.
        eqn = self.made_by[atom]
        if not self._is_linear(eqn):
            return None
        collected: list[SharedValue] = []
        for operand in eqn.invars:
            values = self._needed_for(operand)
            if values is None:
                return None
            collected += values
        return collected

    def _as_shared(self, variable: Any) -> SharedValue | None:
        """Return a value as a shared value, or None.

        It has to be small, and no entry of a parameter may move more than one of its entries. That holds if each of its
        axes longer than one belongs to an axis of every parameter that it depends on.
        """
        leaves = sorted(self.leaves[variable])
        shape = variable.aval.shape
        largest = max(math.prod(self.params[leaf].aval.shape) for leaf in leaves)
        is_small = largest > LARGE and _FEWER_ENTRIES * math.prod(shape) <= largest
        if not is_small or len(self.made_by[variable].outvars) != 1:
            return None

        axes_of = {leaf: self._axes(leaf, variable) for leaf in leaves}
        long_axes = {axis for axis, length in enumerate(shape) if length > 1}
        for axes in axes_of.values():
            if not long_axes.issubset(axes.values()):
                return None
        return SharedValue(variable, axes_of)

    def _axes(self, leaf: int, variable: Any) -> AxisMap:
        """Return the axis map from a parameter to a value, without axes of the value that have length one."""
        if leaf not in self.maps:
            self.maps[leaf] = self._maps_from(leaf)
        axes = {}
        for source, axis in self.maps[leaf][variable].items():
            if variable.aval.shape[axis] > 1:
                axes[source] = axis
        return axes

    def _maps_from(self, leaf: int) -> dict[Any, AxisMap]:
        """Return the axis maps from a parameter to all values that depend on it."""
        source = self.params[leaf]
        maps: dict[Any, AxisMap] = {source: {axis: axis for axis in range(source.aval.ndim)}}
        for eqn in self.jaxpr.eqns:
            operands = {}
            for operand, atom in enumerate(eqn.invars):
                if not is_literal(atom) and atom in maps:
                    operands[operand] = maps[atom]
            if not operands or eqn.primitive.name == "stop_gradient":
                continue
            for variable in eqn.outvars:
                if variable in self.leaves:
                    maps[variable] = _output_map(eqn, operands)
        return maps


def _output_map(eqn: Any, operands: dict[int, AxisMap]) -> AxisMap:
    """Return the axis map from a parameter to an output of an equation.

    Args:
      eqn: the equation.
      operands: the axis maps to its operands that depend on the parameter.
    """
    # Through one operand: from the parameter to the operand, and on to the output.
    maps = []
    for operand, axes in operands.items():
        onward = family_of(eqn).axis_map(eqn, operand)
        maps.append({source: onward[axis] for source, axis in axes.items() if axis in onward})

    # Where several operands depend on the parameter, an axis is known if all of them agree on it.
    first, *others = maps
    agreed = {}
    for source, axis in first.items():
        if all(other.get(source) == axis for other in others):
            agreed[source] = axis
    return agreed


def varying_axes(made_by: dict[Any, Any], atom: Any) -> tuple[bool, ...]:
    """Return for each axis of a value whether its entries may differ along it.

    Args:
      made_by: for each variable, the equation that makes it.
      atom: the variable or literal.
    """
    eqn = None if is_literal(atom) else made_by.get(atom)
    if eqn is None:
        return tuple(size > 1 for size in atom.aval.shape)

    def of_operand(operand: int) -> tuple[bool, ...]:
        return varying_axes(made_by, eqn.invars[operand])

    return family_of(eqn).varying_axes(eqn, of_operand)
