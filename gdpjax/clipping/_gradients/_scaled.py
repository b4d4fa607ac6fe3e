"""Norms and weights of rows, as numbers times powers of two.

The squares of a large gradient overflow and those of a small one vanish. Each row is therefore scaled by a power of
two near its largest entry, which is exact, before anything is squared:

    squares = squared_norms(rows)                                   # ||g||^2 = value * 4^exponent

The weight of a row is held in the same way. Neither factor leaves the range of its dtype, although their product may:

    weights = RowWeights(squares.exponent, coefficient, keep)       # coefficient * 2^-exponent
    weights.multiplied(rows)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import bounded_sum, power_of_two, wide_dtype
from gdpjax._core.types import Array

LOWEST_EXPONENT = -(2**20)
"""The exponent of zero, below every other."""


class ScaledSquares(NamedTuple):
    """Squared norms value * 4^exponent; NaN where a row is not finite.

    Attributes:
      value: [N] or [N, ...], of the order of one.
      exponent: int32, of the same shape.
    """

    value: Array
    exponent: Array

    def total(self) -> "ScaledSquares":
        """Return the sum over the last axis, scaled to its largest term."""
        # A zero must not decide the scale of the others.
        exponents = jnp.where(self.value == 0, LOWEST_EXPONENT, self.exponent)
        largest = exponents.max(axis=-1)

        # 4^exponent is 2^(2 exponent).
        shift = 2 * (exponents - largest[..., None])
        value = bounded_sum(self.value * power_of_two(shift, self.value.dtype))
        return ScaledSquares(value, jnp.where(largest == LOWEST_EXPONENT, 0, largest))

    def root(self) -> Array:
        """Return the norms without their exponents."""
        # sqrt(0) has an infinite slope, which would spoil derivatives through the clipped sum.
        is_positive = self.value > 0
        return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, self.value, 1)), 0)

    def norm(self) -> Array:
        """Return the norms."""
        return self.root() * power_of_two(self.exponent, self.value.dtype)


def stacked(squares: list[ScaledSquares]) -> ScaledSquares:
    """Stack the squared norms of several parameters along a new last axis."""
    values = [square.value for square in squares]
    exponents = [square.exponent for square in squares]
    return ScaledSquares(jnp.stack(values, axis=-1), jnp.stack(exponents, axis=-1))


def largest_exponent(x: Array) -> tuple[Array, Array]:
    """Return e with max|x| in [2^(e-1), 2^e), and max|x|, over the last axis.

    The exponent is limited so that 2^-e is a normal number.
    """
    largest = jnp.abs(x).max(axis=-1)

    # The bits of a positive number begin with its exponent, which is held with an offset.
    info = np.finfo(x.dtype)
    integer = jnp.int64 if info.bits == 64 else jnp.int32
    bits = jax.lax.bitcast_convert_type(largest, integer)
    exponent = (bits >> info.nmant).astype(jnp.int32) - (info.maxexp - 2)
    return jnp.clip(exponent, info.minexp, -info.minexp), largest


def squared_norms(x: Array) -> ScaledSquares:
    """Return the squared norms of the vectors along the last axis."""
    exponent, largest = largest_exponent(x)

    # A division is computed once for a row, where other arithmetic might be repeated for every entry.
    scale = 1 / power_of_two(exponent, x.dtype)

    def scaled_squares(part: Array) -> Array:
        return jnp.square(part * per_row(scale, part))

    value = bounded_sum(x, scaled_squares)
    value = jnp.where(jnp.isfinite(largest), value, jnp.nan)
    return ScaledSquares(value, exponent)


def per_row(values: Array, like: Array) -> Array:
    """Add axes of length one to ``values`` [N, ...], up to the rank of ``like``."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def wide(x: Array) -> Array:
    """Cast to float32 or wider.

    A compiler may leave out an earlier rounding to half precision. The norm and the sum would then be of two different
    gradients, so this rounding is one that it must keep.
    """
    cast = x.astype(wide_dtype(x))
    info = jnp.finfo(x.dtype)
    if info.bits < 32:
        return jax.lax.reduce_precision(cast, info.nexp, info.nmant)
    return cast


class RowWeights(NamedTuple):
    """The weights of rows: coefficient * 2^-exponent, or exactly zero where a row is not kept.

    Attributes:
      exponent: int32 [N].
      coefficient: [N].
      keep: bool [N]; a row that is not kept may hold NaN or infinities.
    """

    exponent: Array
    coefficient: Array
    keep: Array

    def __getitem__(self, rows: Any) -> "RowWeights":  # type: ignore[override]
        return RowWeights(self.exponent[rows], self.coefficient[rows], self.keep[rows])

    def broadcast_to(self, shape: tuple[int, ...]) -> "RowWeights":
        """Repeat each row's weight along new trailing axes: [N] to ``shape`` [N, ...]."""
        parts = []
        for part in self:
            spread = part.reshape(part.shape + (1,) * (len(shape) - part.ndim))
            parts.append(jnp.broadcast_to(spread, shape))
        return RowWeights(*parts)

    def factors(self, dtype: Any) -> tuple[Array, Array]:
        """Return a power of two and a number, both in range, whose product is the weight; zero if it is not kept.

        Both end with a division, exact as it is by a power of two. Compilers take it for costly and compute it once for
        a row, where they would repeat other arithmetic for every entry of the row.
        """
        # The first factor takes as much of the exponent as its dtype holds, the second what is left of it.
        limit = -np.finfo(dtype).minexp
        held = jnp.clip(self.exponent, -limit, limit)
        coefficient = jnp.where(self.keep, self.coefficient.astype(dtype), 0)
        rest = coefficient / power_of_two(self.exponent - held, dtype)
        power = 1 / power_of_two(held, dtype)
        # The weight of what is zero may be out of range, and zero times infinity would be NaN.
        largest = np.finfo(dtype).max
        return power, jnp.clip(rest, -largest, largest)

    def scaled(self, x: Array, scale: Array) -> Array:
        """Multiply rows by ``scale``; rows that are not kept become exact zeros, whatever they hold."""
        return jnp.where(per_row(self.keep, x), x * per_row(scale, x), jnp.zeros((), x.dtype))

    def multiplied(self, x: Array) -> Array:
        """Multiply rows by their weights, with one rounding."""
        power, rest = self.factors(x.dtype)
        return weighted(x, power, rest)


def weighted(x: Array, power: Array, rest: Array) -> Array:
    """Multiply rows by their weights; rows with a weight of zero become exact zeros, whatever they hold.

    Args:
      x: [N, ...].
      power: [N], powers of two.
      rest: [N]; the weights are power * rest.
    """
    has_weight = per_row(rest, x) != 0
    scaled = jnp.where(has_weight, x * per_row(power, x), jnp.zeros((), x.dtype))
    return scaled * per_row(rest, x)
