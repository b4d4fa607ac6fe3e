"""Primitives that act entry by entry: casts, sums, products and quotients, and nonlinear functions.

An entry of the output depends on the same entry of each operand alone. A parameter passes sums, casts and scales as a
linear map; nonlinear functions only say which axes belong to which.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, final

import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Full, Outer, Weighted
from gdpjax.clipping._tracing._jaxprs import is_literal
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output


class AbstractElementwise(AbstractPrimitive):
    """Operands have the shape of the output, but for axes of length one, along which they are spread."""

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        own = eqn.invars[operand].aval.shape
        out = eqn.outvars[0].aval.shape
        if len(own) != len(out):
            return {}
        return {axis: axis for axis, size in enumerate(own) if size == out[axis]}

    def varying_axes(self, eqn: Any, varying: Callable[[int], tuple[bool, ...]]) -> tuple[bool, ...]:
        result = [False] * len(eqn.outvars[0].aval.shape)
        for operand, variable in enumerate(eqn.invars):
            if len(variable.aval.shape) != len(result):
                continue  # a number
            for axis, varies in enumerate(varying(operand)):
                result[axis] = result[axis] or varies
        return tuple(result)


@final
class Entrywise(AbstractElementwise):
    """Nonlinear functions, and selections."""


@final
class Cast(AbstractElementwise):
    """Changes of the dtype, of the rounding, or of nothing.

    Attributes:
      is_exact: whether a derivative rule may leave it out, since it rounds nothing but what its dtype cannot hold.
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
    """``neg``."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        return _negated(factor)

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        return 0, None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        return _negated(factor)


@final
class Addition(AbstractElementwise):
    """Sums and differences.

    Attributes:
      sign: the sign of the second operand.
    """

    def __init__(self, sign: int) -> None:
        self.sign = sign

    def is_linear(self, eqn: Any, operand: int) -> bool:
        own = eqn.invars[operand].aval.shape
        return is_floating_output(eqn) and own == eqn.outvars[0].aval.shape

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        is_subtracted = operand == 1 and self.sign < 0
        return _negated(factor) if is_subtracted else factor


def _negated(factor: AbstractFactor) -> AbstractFactor:
    return factor.scaled(jnp.asarray(-1.0, jnp.float32))


@final
class Scaling(AbstractElementwise):
    """``mul`` and ``div`` of two parameters, or of a parameter and a number.

    Within a derivative rule, the product of a column and a row is an outer product.
    """

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def values_needed(self, eqn: Any, operand: int) -> list[Any]:
        is_divisor = eqn.primitive.name == "div" and operand == 1
        if is_divisor:
            return list(eqn.invars)
        return [eqn.invars[1 - operand]]

    def multiplier(self, eqn: Any, operand: int, values: Sequence[Array]) -> Array:
        if eqn.primitive.name == "mul":
            return jnp.asarray(values[0])
        # The slope of a / b is 1 / b in a, and -a / b^2 in b.
        divisor = jnp.asarray(values[-1])
        divisor = divisor.astype(wide_dtype(divisor))
        if operand == 0:
            return 1 / divisor
        dividend = jnp.asarray(values[0]).astype(divisor.dtype)
        return -dividend / divisor / divisor

    def is_scaling(self, eqn: Any) -> bool:
        return True

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        assert multiplier is not None
        own = eqn.invars[operand].aval.shape
        out = eqn.outvars[0].aval.shape
        if isinstance(factor, Outer):
            return _scaled_outer(factor, own, out, jnp.asarray(multiplier))

        # Multiply, and add up over the axes along which the operand was spread.
        gradient = factor.formed(out)
        gradient = gradient.astype(wide_dtype(gradient))
        gradient = gradient * multiplier.astype(gradient.dtype)
        if not own:
            return Full(gradient.sum())
        spread = [axis for axis, size in enumerate(own) if size != gradient.shape[axis]]
        if spread:
            gradient = gradient.sum(axis=tuple(spread), keepdims=True)
        return Full(gradient)

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        out = eqn.outvars[0].aval.shape
        scaled_operands = (0,) if eqn.primitive.name == "div" else (0, 1)
        for operand in scaled_operands:
            scale = eqn.invars[1 - operand]
            is_whole = eqn.invars[operand].aval.shape == out
            if is_whole and math.prod(scale.aval.shape) == 1:
                return operand, scale
        return None

    def follow(self, factor: AbstractFactor, eqn: Any, scale: Array | None) -> AbstractFactor:
        number = jnp.asarray(scale).reshape(())
        if eqn.primitive.name == "div":
            number = 1 / number.astype(wide_dtype(number))
        return factor.scaled(number)

    def multiplied(self, eqn: Any, made_by: dict[Any, Any]) -> list[Any] | None:
        if eqn.primitive.name != "mul" or any(is_literal(atom) for atom in eqn.invars):
            return None
        # Where one operand holds all axes, this is no outer product.
        kinds = _kinds_of_axes(eqn)
        return list(eqn.invars) if "l" in kinds and "r" in kinds else None

    def product(self, eqn: Any, first: Array, second: Array) -> Outer:
        kinds = _kinds_of_axes(eqn)
        axes = []
        sizes: dict[str, list[int]] = {"b": [], "l": [], "r": []}
        for kind, size in zip(kinds, eqn.outvars[0].aval.shape, strict=True):
            axes.append((kind, len(sizes[kind])))
            sizes[kind].append(size)

        # The factors hold the blocks first. An axis that only the other operand has, has length one.
        blocks = [axis for axis, kind in enumerate(kinds) if kind == "b"]
        others = [axis for axis, kind in enumerate(kinds) if kind != "b"]
        left = jnp.transpose(first, (*blocks, *others)).reshape(1, *sizes["b"], *sizes["l"])
        right = jnp.transpose(second, (*blocks, *others)).reshape(1, *sizes["b"], *sizes["r"])
        return Outer(left, right, tuple(axes))


def _kinds_of_axes(eqn: Any) -> list[str]:
    """Return for each axis of a product which operand has it: "l" the first, "r" the second, "b" both."""
    first, second = (variable.aval.shape for variable in eqn.invars)
    kinds = []
    for own, other in zip(first, second, strict=True):
        if own > 1 and other > 1:
            kinds.append("b")
        elif other > 1:
            kinds.append("r")
        else:
            kinds.append("l")
    return kinds


def _scaled_outer(outer: Outer, own: tuple[int, ...], out: tuple[int, ...], multiplier: Array) -> AbstractFactor:
    """Return the gradient of one operand of a product or quotient.

    Args:
      outer: the gradient of the output.
      own: the shape of the operand.
      out: the shape of the output.
      multiplier: a number, or an array with as many axes as the output, of length one where it is constant.
    """
    is_spread = own != out
    if not is_spread and not multiplier.ndim:
        return outer.scaled(multiplier)

    # If one of the factors has all axes along which the multiplier varies, scale that one.
    kinds = {outer.axes[axis][0] for axis, size in enumerate(multiplier.shape) if size > 1}
    varies_in_both = "l" in kinds and "r" in kinds
    if not is_spread and not varies_in_both:
        return outer.scaled_along(multiplier, "l" if "l" in kinds else "r")

    # Otherwise every entry is scaled by itself, and entries are added up where the operand was spread.
    weighted = Weighted(outer, jnp.broadcast_to(multiplier, out))
    if not is_spread:
        return weighted
    kept = [axis for axis, size in enumerate(own) if size > 1]
    return Full(weighted.summed(kept).reshape(own))
