"""Primitives that act entry by entry: casts, sums, products and quotients, and nonlinear functions; and reductions.

An entry of the output depends on the same entry of each operand, and on nothing else. A parameter passes through sums,
casts and scales, which are linear. Of nonlinear functions only `axis_map` is known.
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
    """A family whose operands have the shape of the output, or length one along axes where they are repeated.

    A single number may be an operand too: it has no axes.
    """

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        own = eqn.invars[operand].aval.shape
        out = eqn.outvars[0].aval.shape
        if len(own) != len(out):
            return {}  # a number
        return {axis: axis for axis, size in enumerate(own) if size == out[axis]}

    def varying_axes(self, eqn: Any, varying: Callable[[int], tuple[bool, ...]]) -> tuple[bool, ...]:
        # The output varies along an axis if an operand does.
        result = [False] * len(eqn.outvars[0].aval.shape)
        for operand, variable in enumerate(eqn.invars):
            if len(variable.aval.shape) != len(result):
                continue  # a number
            for axis, varies in enumerate(varying(operand)):
                result[axis] = result[axis] or varies
        return tuple(result)


@final
class Entrywise(AbstractElementwise):
    """Nonlinear functions such as ``exp`` and ``max``, and ``select_n``."""


@final
class Cast(AbstractElementwise):
    """Changes of the dtype or of the rounding, and copies.

    Attributes:
      is_exact: whether the equation rounds only as its dtype asks. Inside a derivative rule such a cast may be left
        out.
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
class Scaling(AbstractElementwise):
    """``mul`` and ``div``, where a parameter is multiplied or divided, entry by entry, by values without data.

    Inside a derivative rule, the product of a column and a row is an outer product.
    """

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def values_needed(self, eqn: Any, operand: int) -> list[Any]:
        is_divisor = eqn.primitive.name == "div" and operand == 1
        if is_divisor:
            return list(eqn.invars)  # the derivative of a / b with respect to b needs both
        return [eqn.invars[1 - operand]]

    def multiplier(self, eqn: Any, operand: int, values: Sequence[Array]) -> Array:
        if eqn.primitive.name == "mul":
            return jnp.asarray(values[0])
        # The derivative of a / b is 1 / b with respect to a, and -a / b^2 with respect to b.
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

        # Multiply the gradient of the output, entry by entry.
        gradient = factor.formed(out)
        gradient = gradient.astype(wide_dtype(gradient))
        gradient = gradient * multiplier.astype(gradient.dtype)

        # Add it up over the axes along which the operand was repeated; a number was repeated along all.
        if not own:
            return Full(gradient.sum())
        repeated = tuple(axis for axis, size in enumerate(own) if size != gradient.shape[axis])
        if repeated:
            gradient = gradient.sum(axis=repeated, keepdims=True)
        return Full(gradient)

    def moved_operand(self, eqn: Any) -> tuple[int, Any] | None:
        out = eqn.outvars[0].aval.shape
        scaled_operands = (0,) if eqn.primitive.name == "div" else (0, 1)
        for operand in scaled_operands:
            scale = eqn.invars[1 - operand]
            has_all_entries = eqn.invars[operand].aval.shape == out
            is_one_number = math.prod(scale.aval.shape) == 1
            if has_all_entries and is_one_number:
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
        # It is an outer product if each operand has an axis that the other one does not have.
        kinds = _kinds_of_axes(eqn)
        return list(eqn.invars) if "l" in kinds and "r" in kinds else None

    def product(self, eqn: Any, first: Array, second: Array) -> Outer:
        # Note for each axis which factor has it, and the lengths of the axes of each kind.
        kinds = _kinds_of_axes(eqn)
        axes = []
        sizes: dict[str, list[int]] = {"b": [], "l": [], "r": []}
        for kind, size in zip(kinds, eqn.outvars[0].aval.shape, strict=True):
            axes.append((kind, len(sizes[kind])))
            sizes[kind].append(size)

        # Put the blocks first.
        blocks = [axis for axis, kind in enumerate(kinds) if kind == "b"]
        others = [axis for axis, kind in enumerate(kinds) if kind != "b"]
        left = jnp.transpose(first, (*blocks, *others))
        right = jnp.transpose(second, (*blocks, *others))

        # Drop the axes that only the other operand has, which have length one, and add the axis of one position.
        left = left.reshape(1, *sizes["b"], *sizes["l"])
        right = right.reshape(1, *sizes["b"], *sizes["r"])
        return Outer(left, right, tuple(axes))


def _kinds_of_axes(eqn: Any) -> list[str]:
    """Return for each axis of a product which operand has it: "l" the first, "r" the second, "b" both.

    An axis that has length one in both counts as one of the first.
    """
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
    is_repeated = own != out
    is_number = not multiplier.ndim
    if is_number and not is_repeated:
        return outer.scaled(multiplier)

    # If one of the factors has all axes along which the multiplier varies, scale that factor.
    kinds = {outer.axes[axis][0] for axis, size in enumerate(multiplier.shape) if size > 1}
    varies_in_both = "l" in kinds and "r" in kinds
    if not is_repeated and not varies_in_both:
        return outer.scaled_along(multiplier, "l" if "l" in kinds else "r")

    # Otherwise scale every entry by itself, and add entries up where the operand was repeated.
    weighted = Weighted(outer, jnp.broadcast_to(multiplier, out))
    if not is_repeated:
        return weighted
    kept = [axis for axis, size in enumerate(own) if size > 1]
    return Full(weighted.summed(kept).reshape(own))


@final
class Reduction(AbstractPrimitive):
    """``reduce_sum``, ``reduce_prod``, ``reduce_max`` and ``reduce_min``: the axes that are left remain, in order."""

    def axis_map(self, eqn: Any, operand: int) -> dict[int, int]:
        num_axes = len(eqn.invars[operand].aval.shape)
        out_axes = {}
        for axis in range(num_axes):
            if axis not in eqn.params["axes"]:
                out_axes[axis] = len(out_axes)
        return out_axes
