"""Linear maps through which a parameter may go before it meets data.

Some act entry by entry: casts, signs, sums, and products with one number. Others move entries about: transposes,
reshapes, broadcasts, slices, concatenations. There the gradient of an entry goes back to where the entry came from.
Often the two factors of an outer product can be moved back one by one, so that nothing is formed. Otherwise, as after
the reshape of a matrix to a vector, which joins axes of both factors, the gradient is formed.
"""

import abc
import math
from collections.abc import Callable
from typing import Any, final

import jax.numpy as jnp
from jax import lax

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._forms import AbstractFactor, Axis, Outer
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


class AbstractMove(AbstractPrimitive):
    """A family of linear maps of the first operand, which move, drop or repeat its entries."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return operand == 0 and is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        if isinstance(factor, Outer):
            pulled_back = self.pull_back_outer(factor, eqn, operand)
            if pulled_back is not None:
                return pulled_back
        return super().pull_back(factor, eqn, operand, multiplier)

    @abc.abstractmethod
    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        """Return the gradient of the operand in factors, or None where it has to be formed."""


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
class Reshape(AbstractMove):
    """``reshape``, ``squeeze`` and ``expand_dims``: the order of entries in memory is the same."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        transposes_too = eqn.params.get("dimensions") if eqn.primitive.name == "reshape" else None
        if transposes_too is not None:
            return None
        return outer.reshaped(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


@final
class Broadcast(AbstractMove):
    """``broadcast_in_dim``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        # A broadcast that repeats nothing and keeps the axes in order is a reshape: it adds axes of length one.
        own, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        places = tuple(eqn.params["broadcast_dimensions"])
        keeps_order = tuple(sorted(places)) == places
        repeats_nothing = math.prod(own) == math.prod(out)
        return outer.reshaped(own, out) if keeps_order and repeats_nothing else None


@final
class Slice(AbstractMove):
    """``slice``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        strides = eqn.params["strides"]
        if strides is not None and any(step != 1 for step in strides):
            return None

        # The entries that were cut off have the gradient zero: pad the factor that has the axis.
        starts = eqn.params["start_indices"]
        stops = eqn.params["limit_indices"]
        for axis, size in enumerate(eqn.invars[0].aval.shape):
            start = starts[axis]
            stop = stops[axis]
            if (start, stop) != (0, size):
                outer = outer.along(axis, _padding(start, size - stop))
        return outer


def _padding(before: int, after: int) -> Callable[[Array, int], Array]:
    """Return a function (array, axis) that puts so many zeros before and after the entries along the axis."""

    def pad(x: Array, place: int) -> Array:
        widths = [(0, 0)] * x.ndim
        widths[place] = (before, after)
        return jnp.pad(x, widths)

    return pad


@final
class Concatenation(AbstractMove):
    """``concatenate``, linear in each of its operands."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer:
        # Cut the part of this operand out of the factor that has the axis.
        dimension = eqn.params["dimension"]
        sizes = [variable.aval.shape[dimension] for variable in eqn.invars]
        start = sum(sizes[:operand])
        stop = start + sizes[operand]

        def cut(x: Array, place: int) -> Array:
            return lax.slice_in_dim(x, start, stop, axis=place)

        return outer.along(dimension, cut)
