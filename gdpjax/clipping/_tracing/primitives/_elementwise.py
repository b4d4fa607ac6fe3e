"""Primitives of which an output entry depends on the same entry of each operand alone."""

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Full, Outer, Weighted
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output


class AbstractElementwise(AbstractPrimitive):
    """Operands have the shape of the output, but for axes of length one, along which they are spread."""

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        own, out = eqn.invars[operand].aval.shape, eqn.outvars[0].aval.shape
        if len(own) != len(out):
            return {}
        return {axis: axis for axis, size in enumerate(own) if size == out[axis]}

    def varying_axes(self, eqn: Any, varying: Callable[[int], tuple[bool, ...]]) -> tuple[bool, ...]:
        rank = len(eqn.outvars[0].aval.shape)
        operands = [varying(place) for place, v in enumerate(eqn.invars) if len(v.aval.shape) == rank]
        return tuple(any(marks[axis] for marks in operands) for axis in range(rank))


@final
class Entrywise(AbstractElementwise):
    """Nonlinear functions, and selections."""


@final
class Cast(AbstractElementwise):
    """Changes of the dtype, of the rounding, or of nothing.

    Attributes:
      is_exact: whether a derivative rule may leave it out: what it rounds is what its dtype cannot hold.
    """

    def __init__(self, is_exact: bool) -> None:
        self.is_exact = is_exact

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return operand == 0 and is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        return factor

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        return (0, None) if self.is_exact else None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        return factor


@final
class Negation(AbstractElementwise):
    """The same with the other sign."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        return factor.scaled(jnp.asarray(-1.0, jnp.float32))

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        return 0, None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        return factor.scaled(jnp.asarray(-1.0, jnp.float32))


@final
class Addition(AbstractElementwise):
    """Sums and differences.

    Attributes:
      sign: of the second operand.
    """

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn) and eqn.invars[operand].aval.shape == eqn.outvars[0].aval.shape

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        if operand == 0 or self.sign > 0:
            return factor
        return factor.scaled(jnp.asarray(-1.0, jnp.float32))


@final
class Scaling(AbstractElementwise):
    """Products and quotients of two parameters, or of a parameter and a number.

    A product of a column and a row is an outer product, where a derivative rule takes it.
    """

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def values_needed(self, eqn: Any, operand: int) -> list[Any]:
        if eqn.primitive.name == "div" and operand == 1:
            return list(eqn.invars)
        return [eqn.invars[1 - operand]]

    def multiplier(self, eqn: Any, operand: int, values: Sequence[Array]) -> Array:
        if eqn.primitive.name == "mul":
            return jnp.asarray(values[0])
        # The slope of a / b is 1 / b in a, and -a / b^2 in b.
        below = jnp.asarray(values[-1])
        below = below.astype(wide_dtype(below))
        if operand == 0:
            return 1 / below
        return -jnp.asarray(values[0]).astype(below.dtype) / below / below

    def is_scaling(self, eqn: Any) -> bool:
        return True

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        assert multiplier is not None
        own, out = eqn.invars[operand].aval.shape, eqn.outvars[0].aval.shape
        if isinstance(factor, Outer):
            return _scaled_outer(factor, own, out, jnp.asarray(multiplier))

        # Multiply, and add up over the axes along which the operand was spread.
        gradient = factor.formed(out)
        gradient = gradient.astype(wide_dtype(gradient))
        gradient = gradient * multiplier.astype(gradient.dtype)
        if not own:
            return Full(gradient.sum())
        spread = tuple(axis for axis, size in enumerate(own) if size != gradient.shape[axis])
        return Full(gradient.sum(axis=spread, keepdims=True) if spread else gradient)

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        out = eqn.outvars[0].aval.shape
        for operand in (0,) if eqn.primitive.name == "div" else (0, 1):
            scale = eqn.invars[1 - operand]
            if eqn.invars[operand].aval.shape == out and math.prod(scale.aval.shape) == 1:
                return operand, scale
        return None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        scale = jnp.asarray(scale).reshape(())
        return factor.scaled(1 / scale.astype(wide_dtype(scale)) if eqn.primitive.name == "div" else scale)

    def multiplied(self, eqn: Any, made_by: dict[Any, Any]) -> list[Any] | None:
        if eqn.primitive.name != "mul" or any(hasattr(v, "val") for v in eqn.invars):
            return None
        # Where one operand holds all axes, entry by entry there is nothing to keep apart.
        kinds = _kinds(eqn)
        return list(eqn.invars) if "l" in kinds and "r" in kinds else None

    def product(self, eqn: Any, first: Array, second: Array) -> Outer:
        kinds = _kinds(eqn)
        shape = eqn.outvars[0].aval.shape
        sizes = {kind: [size for size, own in zip(shape, kinds, strict=True) if own == kind] for kind in "blr"}
        blocks_first = sorted(range(len(kinds)), key=lambda axis: kinds[axis] != "b")
        left = jnp.transpose(first, blocks_first).reshape(1, *sizes["b"], *sizes["l"])
        right = jnp.transpose(second, blocks_first).reshape(1, *sizes["b"], *sizes["r"])
        axes = tuple((kind, kinds[:axis].count(kind)) for axis, kind in enumerate(kinds))
        return Outer(left, right, axes)


def _kinds(eqn: Any) -> list[str]:
    """For each axis of a product, which operand has it: "l" the first, "r" the second, "b" both."""
    kinds = []
    for first, second in zip(eqn.invars[0].aval.shape, eqn.invars[1].aval.shape, strict=True):
        if first > 1 and second > 1:
            kinds.append("b")
        else:
            kinds.append("r" if second > 1 else "l")
    return kinds


def _scaled_outer(outer: Outer, own: tuple[int, ...], out: tuple[int, ...], multiplier: Array) -> AbstractFactor:
    """Return the gradient of an operand of shape ``own``; the multiplier has length one where it is constant."""
    if own == out and not multiplier.ndim:
        return outer.scaled(multiplier)

    # Scale the one factor that has all axes along which the multiplier varies.
    kinds = {outer.axes[axis][0] for axis, size in enumerate(multiplier.shape) if size > 1}
    if own == out and not {"l", "r"} <= kinds:
        return outer.scaled_along(multiplier, "l" if "l" in kinds else "r")

    weighted = Weighted(outer, jnp.broadcast_to(multiplier, out))
    if own == out:
        return weighted
    kept = [axis for axis, size in enumerate(own) if size > 1]
    return Full(weighted.summed(kept).reshape(own))
