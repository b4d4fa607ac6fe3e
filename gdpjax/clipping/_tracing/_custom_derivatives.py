"""Layers with a derivative rule of their own (custom_vjp, custom_jvp): factors read off what the rule computes.

Such a layer is never looked into: its rule may answer with anything, as a straight-through estimator does. Instead the
rule is traced, to a jaxpr from the layer's inputs and the cotangents of its outputs to the cotangents of its inputs (a
`DerivativeRule`), and the cotangent that it gives a parameter is followed backwards through casts, transposes, reshapes
and scales. Where it comes from a product of two values, or from rows added to a table of zeros, those two values are
the factors of the gradient, whatever they are (`RuleGradient`). Where it is the cotangent of the output itself, as in a
quantiser of weights that passes gradients straight through, the layer is a linear map that factors can go back through.
A rule that computes anything else, or cannot be traced, leaves the parameter to JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Full
from gdpjax.clipping._tracing._jaxprs import Environment, Frame, evaluate, frame_of, leading_to, needed
from gdpjax.clipping._tracing.primitives import family_of


class DerivativeRule(NamedTuple):
    """The derivative rule of an equation.

    Attributes:
      frame: (inputs, cotangents of outputs) to (outputs, cotangents of some inputs).
      eqn: the equation.
      operands: the inputs that have cotangents.
    """

    frame: Frame
    eqn: Any
    operands: tuple[int, ...]

    def outputs(self) -> list[Any]:
        """Return the variables of the outputs."""
        return list(self.frame.jaxpr.outvars[: len(self.eqn.outvars)])

    def arriving(self) -> list[Any]:
        """Return the variables of the cotangents of the outputs."""
        return list(self.frame.jaxpr.invars[len(self.eqn.invars) :])

    def cotangent(self, operand: int) -> Any:
        """Return the variable (or literal) of the cotangent of an input."""
        return self.frame.jaxpr.outvars[len(self.eqn.outvars) + self.operands.index(operand)]


def derivative_rule(eqn: Any) -> DerivativeRule | None:
    """Trace the rule of a custom_vjp or custom_jvp equation; None where it has to be left to JAX."""
    avals = [v.aval for v in (*eqn.invars, *eqn.outvars)]
    is_empty = any(0 in aval.shape for aval in avals)
    if eqn.params.get("symbolic_zeros") or is_empty or not all(_is_precise(v) for v in eqn.outvars):
        return None

    # There is no rule for what a layer closes over.
    num_closed_over = eqn.params.get("num_consts", 0)
    operands = []
    for operand, variable in enumerate(eqn.invars):
        is_inexact = jnp.issubdtype(variable.aval.dtype, jnp.inexact)
        if operand >= num_closed_over and is_inexact and not isinstance(variable, jex.Literal):
            operands.append(operand)

    def both(inputs: list[Any], cotangents: list[Any]) -> Any:
        def outputs(*values: Any) -> list[Any]:
            given = dict(zip(operands, values, strict=True))
            return evaluate(eqn, [given.get(operand, value) for operand, value in enumerate(inputs)])

        found, pull = jax.vjp(outputs, *(inputs[operand] for operand in operands))
        return found, pull(cotangents)

    specs = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in avals]
    try:
        traced = jax.make_jaxpr(both)(specs[: len(eqn.invars)], specs[len(eqn.invars) :])
    except Exception:  # user code: JAX may need less of the rule than this, and will say what is wrong with it
        return None
    return None if traced.effects else DerivativeRule(frame_of(traced), eqn, tuple(operands))


def forward_and_backward(rule: DerivativeRule, results: Sequence[Any]) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """Cut a rule in two.

    Args:
      rule: the rule.
      results: variables of its jaxpr, which the second half returns.

    Returns:
      (inputs, constants) to (outputs, saved values), and (saved values, cotangents) to the results.
    """
    jaxpr = rule.frame.jaxpr

    # The second half starts from the cotangents.
    after = set(rule.arriving())
    late = []
    for eqn in jaxpr.eqns:
        if any(not isinstance(v, jex.Literal) and v in after for v in eqn.invars):
            after.update(eqn.outvars)
            late.append(eqn)
    useful = needed(jaxpr, results)
    late = [eqn for eqn in late if not useful.isdisjoint(eqn.outvars)]

    # It reads what the first half saves.
    read = [*results, *(v for eqn in late for v in eqn.invars)]
    saved = list(dict.fromkeys(v for v in read if not isinstance(v, jex.Literal) and v not in after))
    early = leading_to(jaxpr, [*rule.outputs(), *saved])
    nothing = [None] * len(jaxpr.constvars)

    def forward(inputs: Sequence[Any], consts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        environment = Environment(jaxpr, consts, [*inputs, *(None for _ in rule.arriving())])
        environment.run(early)
        return environment.read_all(rule.outputs()), environment.read_all(saved)

    def backward(values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        environment = Environment(jaxpr, nothing, [*(None for _ in rule.eqn.invars), *cotangents])
        environment.write(saved, values)
        environment.run(late)
        return environment.read_all(results)

    return forward, backward


class RuleGradient(NamedTuple):
    """How a rule makes the cotangent of a parameter.

    Attributes:
      rule: the rule.
      product: the equation that multiplies or scatters; None where it is the cotangent of the output itself.
      moves: the equations after that, each with its scale (a variable, a literal, or None).
      variables: all values of the rule that are needed, those of the product first.
    """

    rule: DerivativeRule
    product: Any
    moves: tuple[tuple[Any, Any], ...]
    variables: tuple[Any, ...]

    def factor(self, values: Sequence[Array]) -> AbstractFactor:
        """Return the gradient, given the values of the variables."""
        known = dict(zip(self.variables, values, strict=True))
        first, second = values[:2]
        return self.moved(family_of(self.product).product(self.product, first, second), known)

    def moved(self, factor: AbstractFactor, known: dict[Any, Array] | None = None) -> AbstractFactor:
        """Return the gradient after the moves."""
        for eqn, scale in self.moves:
            if scale is None:
                value = None
            elif isinstance(scale, jex.Literal):
                value = scale.val
            else:
                value = (known or {})[scale]
            factor = family_of(eqn).follow(factor, eqn, value)
        return factor

    def abstract(self) -> AbstractFactor:
        """Return the factor, without values."""
        return jax.eval_shape(self.factor, [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in self.variables])


def rule_gradient(rule: DerivativeRule, operand: int) -> RuleGradient | None:
    """Read how the rule makes the cotangent of an input; None where that is nothing that factors can follow."""
    if operand not in rule.operands:
        return None
    made_by = {v: eqn for eqn in rule.frame.jaxpr.eqns for v in eqn.outvars}
    atom, moves, scales = rule.cotangent(operand), [], []
    while not isinstance(atom, jex.Literal) and (eqn := made_by.get(atom)) is not None:
        family = family_of(eqn)
        moved = family.moved_operand(eqn)
        if moved is None:
            return _of_product(rule, eqn, made_by, moves, scales)
        is_precise = all(_is_precise(v) for v in (*eqn.invars, *eqn.outvars))
        if not is_precise or _is_narrower(eqn.outvars[0], rule.eqn.invars[operand]):
            return None
        source, scale = moved
        moves.append((eqn, scale))
        if scale is not None and not isinstance(scale, jex.Literal):
            scales.append(scale)
        atom = eqn.invars[source]

    # The cotangent of the output itself, moved.
    is_passed_on = not isinstance(atom, jex.Literal) and rule.arriving() == [atom] and not scales
    return RuleGradient(rule, None, tuple(reversed(moves)), ()) if is_passed_on else None


def _of_product(
    rule: DerivativeRule, eqn: Any, made_by: dict[Any, Any], moves: list[Any], scales: list[Any]
) -> RuleGradient | None:
    family = family_of(eqn)
    multiplied = family.multiplied(eqn, made_by)
    if multiplied is None or len(set(multiplied)) < len(multiplied):
        return None
    real = multiplied[1:] if family.is_lookup else multiplied  # the first are indices of a table
    if not all(_is_precise(v) for v in (*real, *eqn.outvars)):
        return None
    if any(_is_narrower(eqn.outvars[0], v) for v in real):
        return None
    found = RuleGradient(rule, eqn, tuple(reversed(moves)), tuple(dict.fromkeys((*multiplied, *scales))))
    return None if isinstance(found.abstract(), Full) else found


def _is_precise(variable: Any) -> bool:
    """Return whether it is floating, and of a precision to which rounding may be left out."""
    dtype = variable.aval.dtype
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 2


def _is_narrower(variable: Any, than: Any) -> bool:
    """Return whether it has less than the precision of another one: such rounding is part of a rule."""
    dtype = variable.aval.dtype
    return jnp.promote_types(dtype, than.aval.dtype) != dtype
