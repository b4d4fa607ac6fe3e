"""Layers with a derivative rule of their own (custom_vjp, custom_jvp): read gradients in factors off their rules.

    rule = derivative_rule(eqn)             # the rule of the layer, traced
    gradient = rule_gradient(rule, 0)       # how it makes the gradient of input 0
    gradient.product                        # the equation that multiplies two values: these are the factors

The forward computation of such a layer says nothing about its gradient, because the rule may return anything: think of
a straight-through estimator. So the engine traces the rule instead. The result is a jaxpr from the layer's inputs and
the cotangents of its outputs to the cotangents of its inputs (a `DerivativeRule`). The cotangent of a parameter is one
of the outputs of that jaxpr. It is followed backwards, through casts, transposes, reshapes and scales, to the equation
that makes it. There are three cases:

* A product of two values makes it, or rows that are added to a table of zeros. Those two values are the factors of the
  gradient, whatever they are (`RuleGradient`).
* It is the cotangent of the layer's output itself, as in a quantiser of weights that passes gradients straight through.
  Then the layer is a linear map, and factors go back through it.
* The rule computes anything else, or cannot be traced. Then the parameter is left to JAX.
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
    is_precise,
    makers_of,
    shape_of,
    variables_of,
)
from gdpjax.clipping._tracing.primitives import family_of


class DerivativeRule(NamedTuple):
    """The derivative rule of an equation.

    Attributes:
      frame: a jaxpr from (inputs, cotangents of the outputs) to (outputs, cotangents of the ``operands``).
      eqn: the equation.
      operands: the inputs whose cotangents the rule gives.
    """

    frame: Frame
    eqn: Any
    operands: tuple[int, ...]

    def outputs(self) -> list[Any]:
        """Return the variables of the layer's outputs."""
        num_outputs = len(self.eqn.outvars)
        return list(self.frame.jaxpr.outvars[:num_outputs])

    def arriving(self) -> list[Any]:
        """Return the variables of the cotangents that arrive at the layer's outputs."""
        num_inputs = len(self.eqn.invars)
        return list(self.frame.jaxpr.invars[num_inputs:])

    def cotangent(self, operand: int) -> Any:
        """Return the variable (or literal) of the cotangent of an input."""
        num_outputs = len(self.eqn.outvars)
        return self.frame.jaxpr.outvars[num_outputs + self.operands.index(operand)]


def derivative_rule(eqn: Any) -> DerivativeRule | None:
    """Trace the rule of a custom_vjp or custom_jvp equation, or return None where it has to be left to JAX."""
    variables = (*eqn.invars, *eqn.outvars)
    is_empty = any(0 in variable.aval.shape for variable in variables)
    if eqn.params.get("symbolic_zeros") or is_empty or not all(is_precise(v) for v in eqn.outvars):
        return None

    # The rule gives cotangents to floating inputs, except for those that the layer closes over.
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
    except Exception:
        # This is user code. JAX may need only a part of the rule; if that part is wrong, JAX will say so.
        return None
    if traced.effects:
        return None
    return DerivativeRule(frame_of(traced), eqn, tuple(operands))


def cut_in_two(
    rule: DerivativeRule, results: Sequence[Any]
) -> tuple[Callable[..., tuple[list[Any], list[Any]]], Callable[..., list[Any]]]:
    """Cut a rule into a forward and a backward half.

    Args:
      rule: the rule.
      results: the variables of its jaxpr whose values the backward half returns.

    Returns:
      The halves, as `jax.custom_vjp` takes them: from (inputs, constants) to (outputs, saved values), and from (saved
      values, cotangents of the outputs) to the results.
    """
    jaxpr = rule.frame.jaxpr
    inputs = rule.eqn.invars
    arriving = rule.arriving()

    # The backward half has the equations that depend on the cotangents and that the results need.
    late_variables = set(arriving)
    useful = dependencies(jaxpr, results)
    late = []
    for eqn in jaxpr.eqns:
        if not late_variables.isdisjoint(variables_of(eqn.invars)):
            late_variables.update(eqn.outvars)
            if not useful.isdisjoint(eqn.outvars):
                late.append(eqn)

    # The forward half makes the outputs, and saves what the backward half reads.
    read = variables_of(results)
    for eqn in late:
        read += variables_of(eqn.invars)
    saved = list(dict.fromkeys(variable for variable in read if variable not in late_variables))
    early = equations_for(jaxpr, [*rule.outputs(), *saved])

    def forward(values: Sequence[Any], consts: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        unknown = [None] * len(arriving)  # no equation of this half reads the cotangents
        environment = Environment(jaxpr, consts, [*values, *unknown])
        environment.run(early)
        return environment.read_all(rule.outputs()), environment.read_all(saved)

    def backward(saved_values: Sequence[Any], cotangents: Sequence[Any]) -> list[Any]:
        # All that this half reads of constants and inputs was saved; 0 stands for the constants.
        unknown_consts = [0] * len(jaxpr.constvars)
        unknown = [None] * len(inputs)
        environment = Environment(jaxpr, unknown_consts, [*unknown, *cotangents])
        environment.write(saved, saved_values)
        environment.run(late)
        return environment.read_all(results)

    return forward, backward


class Move(NamedTuple):
    """An equation that casts, moves or scales a gradient.

    Attributes:
      eqn: the equation.
      scale: the variable or literal that it multiplies or divides by, or None.
    """

    eqn: Any
    scale: Any


class RuleGradient(NamedTuple):
    """The steps by which a rule makes the cotangent of a parameter: a product, and then moves.

    Attributes:
      rule: the rule.
      product: the equation that multiplies two values or adds rows to a table, or None if there is none: the moves
        start from the cotangent of the layer's output.
      moves: the equations that cast, move or scale the product, in order.
      variables: the variables whose values `factor` needs: the two of the product, then the scales of moves.
    """

    rule: DerivativeRule
    product: Any
    moves: tuple[Move, ...]
    variables: tuple[Any, ...]

    def factor(self, values: Sequence[Array]) -> AbstractFactor:
        """Return the gradient of the parameter, given the values of ``variables``."""
        first, second = values[:2]
        product = family_of(self.product).product(self.product, first, second)
        return self.moved(product, dict(zip(self.variables, values, strict=True)))

    def moved(self, factor: AbstractFactor, known: dict[Any, Array]) -> AbstractFactor:
        """Return the gradient after the moves.

        Args:
          factor: the gradient before the moves.
          known: the values of the scales that are variables.
        """
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
        """Return the gradient with shapes in place of values."""
        return jax.eval_shape(self.factor, [shape_of(variable) for variable in self.variables])


def rule_gradient(rule: DerivativeRule, operand: int) -> RuleGradient | None:
    """Return how a rule makes the cotangent of an input, or None if it is not a product and moves."""
    if operand not in rule.operands:
        return None
    made_by = makers_of(rule.frame.jaxpr)

    # Follow the cotangent back through the equations that move it, to the one that makes it.
    atom = rule.cotangent(operand)
    moves: list[Move] = []
    while not is_literal(atom) and atom in made_by:
        eqn = made_by[atom]
        moved = family_of(eqn).moved_operand(eqn)
        if moved is None:
            return _gradient_of_product(rule, eqn, made_by, tuple(reversed(moves)))
        if not all(map(is_precise, (*eqn.invars, *eqn.outvars))) or _is_narrower(
            eqn.outvars[0], rule.eqn.invars[operand]
        ):
            return None
        source, scale = moved
        moves.append(Move(eqn, scale))
        atom = eqn.invars[source]

    # No equation makes it. It may be the cotangent of the only output; then its scales have to be known numbers.
    scales = _variable_scales(moves)
    is_cotangent_of_output = not is_literal(atom) and rule.arriving() == [atom]
    if not is_cotangent_of_output or scales:
        return None
    return RuleGradient(rule, None, tuple(reversed(moves)), ())


def _gradient_of_product(
    rule: DerivativeRule, product: Any, made_by: dict[Any, Any], moves: tuple[Move, ...]
) -> RuleGradient | None:
    """Return the gradient that an equation makes and that ``moves`` move, or None if the equation is no product."""
    family = family_of(product)
    multiplied = family.multiplied(product, made_by)
    if multiplied is None or len(set(multiplied)) < len(multiplied):
        return None

    # Factors are multiplied in float32 or wider. If the rule rounds its product to fewer bits than the factors have,
    # then this rounding is a part of the rule, and the gradient is left to JAX.
    floating = multiplied[1:] if family.is_lookup else multiplied  # the first value of a look-up are the indices
    output = product.outvars[0]
    if not all(is_precise(variable) for variable in (*floating, output)):
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


def _is_narrower(variable: Any, than: Any) -> bool:
    """Return whether a variable cannot hold all the values of another one: its dtype is narrower."""
    dtype = variable.aval.dtype
    return jnp.promote_types(dtype, than.aval.dtype) != dtype
