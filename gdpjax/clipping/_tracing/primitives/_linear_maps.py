"""Linear maps through which a parameter may go before it meets data.

Casts and products with a number act on every entry by itself. Transposes and concatenations move entries about: there
the gradient of an entry goes back to where the entry came from, and the two factors of an outer product are moved back
one by one. A gradient that goes through any other equation is formed.
"""

import abc
import math
from typing import Any, final

import jax.numpy as jnp
from jax import lax

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._forms import AbstractFactor, Axis, Outer
from gdpjax.clipping._tracing._jaxprs import is_literal
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output


@final
class Cast(AbstractPrimitive):
    """Changes of the dtype or of the rounding, and copies."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return operand == 0 and is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int) -> AbstractFactor:
        return factor


@final
class Scaling(AbstractPrimitive):
    """``mul`` and ``div`` of an array and a number that is written into the program."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        is_divisor = eqn.primitive.name == "div" and operand == 1
        own = eqn.invars[operand].aval.shape
        has_all_entries = own == eqn.outvars[0].aval.shape and math.prod(own) > 1
        return is_floating_output(eqn) and has_all_entries and is_literal(eqn.invars[1 - operand]) and not is_divisor

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int) -> AbstractFactor:
        number = jnp.asarray(eqn.invars[1 - operand].val)
        if eqn.primitive.name == "div":
            number = 1 / number.astype(wide_dtype(number))
        return factor.scaled(number)


@final
class Spreading(AbstractPrimitive):
    """Reshapes and broadcasts of a vector, such as a bias: what it meets after them is why its gradient is formed."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return operand == 0 and eqn.invars[0].aval.ndim <= 1 and is_floating_output(eqn)


class AbstractMove(AbstractPrimitive):
    """A family of linear maps that move or drop the entries of any operand."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int) -> AbstractFactor:
        if isinstance(factor, Outer):
            return self.pull_back_outer(factor, eqn, operand)
        return super().pull_back(factor, eqn, operand)

    @abc.abstractmethod
    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer:
        """Return the gradient of the operand in factors."""


@final
class Transposition(AbstractMove):
    """``transpose``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer:
        # Axis i of the output was axis permutation[i] of the operand.
        axes: list[Axis] = [("r", 0)] * len(outer.axes)
        for axis, source in enumerate(eqn.params["permutation"]):
            axes[source] = outer.axes[axis]
        return Outer(outer.left, outer.right, tuple(axes))


@final
class Concatenation(AbstractMove):
    """``concatenate``, as of the kernels of the gates of an LSTM."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer:
        # Cut the part of this operand out of the factor that has the axis.
        dimension = eqn.params["dimension"]
        sizes = [variable.aval.shape[dimension] for variable in eqn.invars]
        start = sum(sizes[:operand])
        stop = start + sizes[operand]

        def cut(x: Array, place: int) -> Array:
            return lax.slice_in_dim(x, start, stop, axis=place)

        return outer.along(dimension, cut)
