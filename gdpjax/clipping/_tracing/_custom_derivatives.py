"""Layers with a derivative rule of their own (custom_vjp, custom_jvp): gradients in factors, read off their rules.

    rule = derivative_rule(eqn)             # the rule of the layer, traced
    gradient = rule_gradient(rule, 0)       # how it makes the gradient of input 0
    gradient.product                        # the equation that multiplies two values: these are the factors

Such a layer is never looked into: its rule may answer with anything, as a straight-through estimator does. Instead the
rule is traced, to a jaxpr from the layer's inputs and the cotangents of its outputs to the cotangents of its inputs (a
`DerivativeRule`). The cotangent that it gives a parameter is followed backwards through casts, transposes, reshapes and
scales. There are three cases:

* It comes from a product of two values, or from rows added to a table of zeros. Those two values are the factors of the
  gradient, whatever they are (`RuleGradient`).
* It is the cotangent of the output itself, as in a quantiser of weights that passes gradients straight through. The
  layer is then a linear map that factors can go back through.
* The rule computes anything else, or cannot be traced. The parameter is then left to JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Full
from gdpjax.clipping._tracing._jaxprs import (
    Environment,
    Frame,
    dependencies,
    equations_for,
    evaluate_equation,
    frame_of,
    is_literal,
    makers_of,
    shape_of,
    variables_of,
)
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
        num_outputs = len(self.eqn.outvars)
        return list(self.frame.jaxpr.outvars[:num_outputs])

    def arriving(self) -> list[Any]:
        """Return the variables of the cotangents of the outputs."""
        num_inputs = len(self.eqn.invars)
        return list(self.frame.jaxpr.invars[num_inputs:])

    def cotangent(self, operand: int) -> Any:
        """Return the variable (or literal) of the cotangent of an input."""
        num_outputs = len(self.eqn.outvars)
        return self.frame.jaxpr.outvars[num_outputs + self.operands.index(operand)]


def derivative_rule(eqn: Any) -> DerivativeRule | None:
    """Trace the rule of a custom_vjp or custom_jvp equation; None where it has to be left to JAX."""
    variables = (*eqn.invars, *eqn.outvars)
    is_empty = any(0 in variable.aval.shape for variable in variables)
    if eqn.params.get("symbolic_zeros") or is_empty or not all(_is_precise(v) for v in eqn.outvars):
        return None

    # There is no rule for what a layer closes over.
    num_closed_over = eqn.params.get("num_consts", 0)
    operands = []
    for operand, atom in enumerate(eqn.invars):
        is_inexact = jnp.issubdtype(atom.aval.dtype, jnp.inexact)
        if operand >= num_closed_over and is_inexact and not is_literal(atom):
            operands.append(operand)

    def outputs_and_cotangents(inputs: list[Any], cotangents: list[Any]) -> Any:
        def outputs_of(*differentiated: Any) -> list[Any]:
            values = list(inputs)
            for operand, value in zip(operands, differentiated, strict=True):
                values[operand] = value
            return evaluate_equation(eqn, values)

        outputs, pull_back = jax.vjp(outputs_of, *(inputs[operand] for operand in operands))
        return outputs, pull_back(cotangents)

    inputs = [shape_of(variable) for variable in eqn.invars]
    cotangents = [shape_of(variable) for variable in eqn.outvars]
    try:
        traced = jax.make_jaxpr(outputs_and_cotangents)(inputs, cotangents)
    except Exception:  # user code: JAX may need less of the rule than this, and will say what is wrong with it
        return None
    if traced.effects:
        return None
    return DerivativeRule(frame_of(traced), eqn, tuple(operands))


class Halves(NamedTuple):
    """The two halves of a derivative rule, as `jax.custom_vjp` takes them.

    Attributes:
      forward: (inputs, constants) to (outputs, saved values).
      backward: (saved values, cotangents of the outputs) to results.
    """

    forward: Callable[..., tuple[list[Any], list[Any]]]
    backward: Callable[..., list[Any]]


def cut_in_two(rule: DerivativeRule, results: Sequence[Any]) -> Halves:
    """Cut a rule in two; the results of the second half are these variables of its jaxpr."""
    jaxpr = rule.frame.jaxpr
    inputs = rule.eqn.invars
    arriving = rule.arriving()

    # The second half is what depends on the cotangents, and what the results need.
    late_variables = set(arriving)
    useful = dependencies(jaxpr, results)
    late = []
    for eqn in jaxpr.eqns:
        if not late_variables.isdisjoint(variables_of(eqn.invars)):
            late_variables.update(eqn.outvars)
            if not useful.isdisjoint(eqn.outvars):
                late.append(eqn)

    # The first half makes the outputs, and saves what the second half reads.
    read = variables_of(results)
    for eqn in late:
        read += variables_of(eqn.invars)
    saved = list(dict.fromkeys(variable for variable in read if variable not in late_variables))
    early = equations_for(jaxpr, [*rule.outputs(), *saved])

    def forward(values: Sequence[Any], consts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        unknown = [None] * len(arriving)
        environment = Environment(jaxpr, consts, [*values, *unknown])
        environment.run(early)
        return environment.read_all(rule.outputs()), environment.read_all(saved)

    def backward(saved_values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        unknown_consts = [None] * len(jaxpr.constvars)
        unknown = [None] * len(inputs)
        environment = Environment(jaxpr, unknown_consts, [*unknown, *cotangents])
        environment.write(saved, saved_values)
        environment.run(late)
        return environment.read_all(results)

    return Halves(forward, backward)


class Move(NamedTuple):
    """An equation that casts, moves or scales a gradient.

    Attributes:
      eqn: the equation.
      scale: the variable or literal that it multiplies or divides by, or None.
    """

    eqn: Any
    scale: Any


class RuleGradient(NamedTuple):
    """The steps by which a rule makes the cotangent of a parameter: a product, and moves after it.

    Attributes:
      rule: the rule.
      product: the equation that multiplies or scatters; None where it is the cotangent of the output itself.
      moves: the equations after that.
      variables: all values of the rule that are needed, those of the product first.
    """

    rule: DerivativeRule
    product: Any
    moves: tuple[Move, ...]
    variables: tuple[Any, ...]

    def factor(self, values: Sequence[Array]) -> AbstractFactor:
        """Return the gradient, given the values of the variables."""
        first, second = values[:2]
        product = family_of(self.product).product(self.product, first, second)
        return self.moved(product, dict(zip(self.variables, values, strict=True)))

    def moved(self, factor: AbstractFactor, known: dict[Any, Array]) -> AbstractFactor:
        """Return the gradient after the moves, given the values of the scales that are variables."""
        for move in self.moves:
            if move.scale is None:
                scale = None
            elif is_literal(move.scale):
                scale = move.scale.val
            else:
                scale = known[move.scale]
            factor = family_of(move.eqn).follow(factor, move.eqn, scale)
        return factor

    def abstract_factor(self) -> AbstractFactor:
        """Return the gradient, without values."""
        return jax.eval_shape(self.factor, [shape_of(variable) for variable in self.variables])


def rule_gradient(rule: DerivativeRule, operand: int) -> RuleGradient | None:
    """Read how the rule makes the cotangent of an input; None where that is nothing that factors can follow."""
    if operand not in rule.operands:
        return None
    made_by = makers_of(rule.frame.jaxpr)

    # Follow the cotangent back through what moves it, to what makes it.
    atom = rule.cotangent(operand)
    moves: list[Move] = []
    while not is_literal(atom) and atom in made_by:
        eqn = made_by[atom]
        moved = family_of(eqn).moved_operand(eqn)
        if moved is None:
            return _gradient_of_product(rule, eqn, made_by, tuple(reversed(moves)))
        is_precise = all(_is_precise(variable) for variable in (*eqn.invars, *eqn.outvars))
        if not is_precise or _is_narrower(eqn.outvars[0], rule.eqn.invars[operand]):
            return None
        source, scale = moved
        moves.append(Move(eqn, scale))
        atom = eqn.invars[source]

    # It is the cotangent of the only output, moved.
    scales = _variable_scales(moves)
    if is_literal(atom) or rule.arriving() != [atom] or scales:
        return None
    return RuleGradient(rule, None, tuple(reversed(moves)), ())


def _gradient_of_product(
    rule: DerivativeRule, product: Any, made_by: dict[Any, Any], moves: tuple[Move, ...]
) -> RuleGradient | None:
    """Return the gradient that is a product of two values, moved; None where it is no such product."""
    family = family_of(product)
    multiplied = family.multiplied(product, made_by)
    if multiplied is None or len(set(multiplied)) < len(multiplied):
        return None

    # Rounding to fewer bits than the factors have is part of the rule, and may not be left out.
    floating = multiplied[1:] if family.is_lookup else multiplied  # the first are indices of a table
    output = product.outvars[0]
    if not all(_is_precise(variable) for variable in (*floating, output)):
        return None
    if any(_is_narrower(output, variable) for variable in floating):
        return None

    variables = dict.fromkeys((*multiplied, *_variable_scales(moves)))
    gradient = RuleGradient(rule, product, moves, tuple(variables))
    is_formed = isinstance(gradient.abstract_factor(), Full)
    return None if is_formed else gradient


def _variable_scales(moves: Sequence[Move]) -> list[Any]:
    """Return the scales of the moves that are variables."""
    return [move.scale for move in moves if move.scale is not None and not is_literal(move.scale)]


def _is_precise(variable: Any) -> bool:
    """Return whether it is floating, and of a precision to which rounding may be left out."""
    dtype = variable.aval.dtype
    return jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 2


def _is_narrower(variable: Any, than: Any) -> bool:
    """Return whether it has less than the precision of another one."""
    dtype = variable.aval.dtype
    return jnp.promote_types(dtype, than.aval.dtype) != dtype
