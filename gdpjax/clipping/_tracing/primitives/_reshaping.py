"""Primitives that move entries about: a gradient goes back to where its entry came from, and so do its factors."""

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
    """A linear map of its first operand that moves, drops, or repeats entries."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return operand == 0 and is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        moved = self.pull_back_outer(factor, eqn, operand) if isinstance(factor, Outer) else None
        return super().pull_back(factor, eqn, operand, multiplier) if moved is None else moved

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        """Return the factors of the operand's gradient, or None where they cannot follow."""
        return None


@final
class Transposition(AbstractMove):
    """``transpose``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer:
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
        return Full(jnp.transpose(factor.formed(eqn.invars[0].aval.shape), permutation))


class AbstractReshape(AbstractMove):
    """A move that keeps the order of the entries, where it has as many."""

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        own, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        keeps_order = eqn.params.get("dimensions") is None or eqn.primitive.name != "reshape"
        return (0, None) if keeps_order and math.prod(own) == math.prod(out) else None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        own, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        moved = factor.reshaped(out, own) if isinstance(factor, Outer) else None
        return Full(factor.formed(own).reshape(out)) if moved is None else moved


@final
class Reshape(AbstractReshape):
    """``reshape``, ``squeeze`` and ``expand_dims``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        if eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None:
            return None
        return outer.reshaped(eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        if eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None:
            return {}
        # Only axes of length one may come and go.
        own, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        old = [axis for axis, size in enumerate(own) if size > 1]
        new = [axis for axis, size in enumerate(out) if size > 1]
        if [own[axis] for axis in old] != [out[axis] for axis in new]:
            return {}
        return dict(zip(old, new, strict=True))


@final
class Broadcast(AbstractReshape):
    """``broadcast_in_dim``."""

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        if not isinstance(factor, Weighted):
            return super().pull_back(factor, eqn, operand, multiplier)
        own = eqn.invars[0].aval.shape
        kept = [to for to, size in zip(eqn.params["broadcast_dimensions"], own, strict=True) if size > 1]
        return Full(factor.summed(kept).reshape(own))

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        own, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        kept = tuple(eqn.params["broadcast_dimensions"])
        in_order = tuple(out[axis] for axis in kept) == own and tuple(sorted(kept)) == kept
        only_adds_ones = all(size == 1 for axis, size in enumerate(out) if axis not in kept)
        return outer.reshaped(own, out) if in_order and only_adds_ones else None

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        own, out = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
        return {axis: to for axis, to in enumerate(eqn.params["broadcast_dimensions"]) if own[axis] == out[to]}

    def varying_axes(self, eqn: Any, varying: Callable[[int], tuple[bool, ...]]) -> tuple[bool, ...]:
        source = varying(0)
        marks = [False] * len(eqn.outvars[0].aval.shape)
        for axis, to in enumerate(eqn.params["broadcast_dimensions"]):
            marks[to] = source[axis]
        return tuple(marks)


@final
class Slice(AbstractMove):
    """``slice``."""

    def pull_back_outer(self, outer: Outer, eqn: Any, operand: int) -> Outer | None:
        shape, strides = eqn.invars[0].aval.shape, eqn.params["strides"]
        if strides is not None and any(step != 1 for step in strides):
            return None
        bounds = zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)
        for axis, (start, stop) in enumerate(bounds):
            if (start, stop) != (0, shape[axis]):
                outer = outer.along(axis, _padding(start, shape[axis] - stop))
        return outer


def _padding(before: int, after: int) -> Callable[[Array, int], Array]:
    """Return a function that pads one axis with zeros."""

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
        dimension = eqn.params["dimension"]
        sizes = [v.aval.shape[dimension] for v in eqn.invars]
        start = sum(sizes[:operand])

        def cut(x: Array, place: int) -> Array:
            return lax.slice_in_dim(x, start, start + sizes[operand], axis=place)

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
    """``pad``."""
