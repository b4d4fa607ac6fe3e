"""Primitives that act entry by entry and are linear: casts, signs, sums, and products with one number."""

import math
from typing import Any, final

import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output


@final
class Cast(AbstractPrimitive):
    """Changes of the dtype or of the rounding, and copies."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return operand == 0 and is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        return factor


@final
class Negation(AbstractPrimitive):
    """``neg``."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        return _negated(factor)


@final
class Addition(AbstractPrimitive):
    """``add`` and ``sub``: the gradient of an operand is that of the output, up to the sign.

    Attributes:
      sign: the sign of the second operand.
    """

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def is_linear(self, eqn: Any, operand: int) -> bool:
        # The gradient of an operand that is repeated would have to be added up, which `pull_back` does not do.
        own = eqn.invars[operand].aval.shape
        return is_floating_output(eqn) and own == eqn.outvars[0].aval.shape

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        is_subtracted = operand == 1 and self.sign < 0
        return _negated(factor) if is_subtracted else factor


def _negated(factor: AbstractFactor) -> AbstractFactor:
    """Return the gradient times -1."""
    return factor.scaled(jnp.asarray(-1.0, jnp.float32))


@final
class Scaling(AbstractPrimitive):
    """``mul`` and ``div`` of an array and one number."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        is_divisor = eqn.primitive.name == "div" and operand == 1
        number = eqn.invars[1 - operand].aval
        own = eqn.invars[operand].aval.shape
        has_all_entries = own == eqn.outvars[0].aval.shape and math.prod(own) > 1
        return is_floating_output(eqn) and has_all_entries and math.prod(number.shape) == 1 and not is_divisor

    def multiplier(self, eqn: Any, operand: int) -> Any:
        return eqn.invars[1 - operand]

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        number = jnp.asarray(multiplier).reshape(())
        if eqn.primitive.name == "div":
            number = 1 / number.astype(wide_dtype(number))
        return factor.scaled(number)
