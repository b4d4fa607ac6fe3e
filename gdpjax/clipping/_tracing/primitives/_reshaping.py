"""Primitives that move entries about: transposes, reshapes, broadcasts, slices, concatenations, reversals, padding.

The gradient of an entry goes back to where the entry came from. Often the two factors of an outer product can be moved
back one by one, so that nothing is formed. Otherwise, as after the reshape of a matrix to a vector, which joins axes of
both factors, the gradient is formed.
"""

import math
from collections.abc import Callable
from typing import Any, final

import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Full, Outer, Weighted
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output
from gdpjax.clipping._weight_axes import Axis


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

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        """Return the gradient of the operand in factors, or None where it has to be formed."""
        return None


@final
class Transposition(AbstractMove):
    """``transpose``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer:
        # Axis i of the output was axis permutation[i] of the operand.
        axes: list[Axis] = [("r", 0)] * len(outer.axes)
        for axis, source in enumerate(eqn.params["permutation"]):
            axes[source] = outer.axes[axis]
        return outer.with_axes(axes)

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        return {source: axis for axis, source in enumerate(eqn.params["permutation"])}

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        return 0, None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        permutation = eqn.params["permutation"]
        if isinstance(factor, Outer):
            return factor.with_axes([factor.axes[axis] for axis in permutation])
        gradient = factor.formed(eqn.invars[0].aval.shape)
        return Full(jnp.transpose(gradient, permutation))


class AbstractReshape(AbstractMove):
    """A family of reshapes: if the number of entries is the same, so is their order in memory."""

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        own, out = _shapes(eqn)
        if _transposes_too(eqn) or math.prod(own) != math.prod(out):
            return None
        return 0, None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        own, out = _shapes(eqn)
        if isinstance(factor, Outer):
            moved = factor.reshaped(out, own)
            if moved is not None:
                return moved
        return Full(factor.formed(own).reshape(out))


@final
class Reshape(AbstractReshape):
    """``reshape``, ``squeeze`` and ``expand_dims``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        if _transposes_too(eqn):
            return None
        own, out = _shapes(eqn)
        return outer.reshaped(own, out)

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        if _transposes_too(eqn):
            return {}
        # The axes are known if only axes of length one were added or removed.
        own, out = _shapes(eqn)
        own_long = [axis for axis, size in enumerate(own) if size > 1]
        out_long = [axis for axis, size in enumerate(out) if size > 1]
        if [own[axis] for axis in own_long] != [out[axis] for axis in out_long]:
            return {}
        return dict(zip(own_long, out_long, strict=True))


@final
class Broadcast(AbstractReshape):
    """``broadcast_in_dim``."""

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        if not isinstance(factor, Weighted):
            return super().pull_back(factor, eqn, operand, multiplier)
        # Add up over the axes along which entries were repeated. `summed` does not form the outer product.
        own, _ = _shapes(eqn)
        kept = []
        for place, size in zip(eqn.params["broadcast_dimensions"], own, strict=True):
            if size > 1:
                kept.append(place)
        return Full(factor.summed(kept).reshape(own))

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        # A broadcast that repeats nothing and keeps the axes in order is a reshape: it adds axes of length one.
        own, out = _shapes(eqn)
        places = tuple(eqn.params["broadcast_dimensions"])
        keeps_sizes = tuple(out[place] for place in places) == own
        keeps_order = tuple(sorted(places)) == places
        adds_ones = all(size == 1 for axis, size in enumerate(out) if axis not in places)
        if not (keeps_sizes and keeps_order and adds_ones):
            return None
        return outer.reshaped(own, out)

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        own, out = _shapes(eqn)
        axes = {}
        for axis, place in enumerate(eqn.params["broadcast_dimensions"]):
            if own[axis] == out[place]:
                axes[axis] = place
        return axes

    def varying_axes(self, eqn: Any, varying: Callable[[int], tuple[bool, ...]]) -> tuple[bool, ...]:
        # The output is constant along the axes that are new.
        source = varying(0)
        result = [False] * len(eqn.outvars[0].aval.shape)
        for axis, place in enumerate(eqn.params["broadcast_dimensions"]):
            result[place] = source[axis]
        return tuple(result)


def _shapes(eqn: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shapes of the first operand and of the output."""
    return eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape


def _transposes_too(eqn: Any) -> bool:
    """Return whether this is a reshape that transposes its operand first."""
    return eqn.primitive.name == "reshape" and eqn.params.get("dimensions") is not None


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
        widths = [(0, 0, 0)] * x.ndim
        widths[place] = (before, after, 0)
        return lax.pad(x, jnp.zeros((), x.dtype), widths)

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


@final
class Reversal(AbstractMove):
    """``rev``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer:
        for axis in eqn.params["dimensions"]:
            outer = outer.along(axis, jnp.flip)
        return outer


@final
class Padding(AbstractMove):
    """``pad``: its gradients are formed."""
