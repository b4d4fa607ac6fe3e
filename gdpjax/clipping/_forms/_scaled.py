"""The norms and weights of rows, held as numbers times powers of two.

The squares of a large gradient overflow, and those of a small one vanish. So each row is scaled by a power of two near
its largest entry before anything is squared. This scaling is exact:

    squares = squared_norms(rows)                                   # ||g||^2 = value * 4^exponent

The weight of a row is held in the same way, because the weight itself may be outside the range of its dtype:

    weights = RowWeights(squares.exponent, coefficient, keep)       # coefficient * 2^-exponent
    weights.multiplied(rows)
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import bounded_sum, power_of_two, rounded_to, wide_dtype
from gdpjax._core.types import Array

_LOWEST_EXPONENT = -(2**20)
"""The exponent that stands for a norm of zero, below all others."""


class ScaledSquares(NamedTuple):
    """Squared norms value * 4^exponent; NaN where a row is not finite.

    Attributes:
      value: [N] or [N, ...], neither large nor small.
      exponent: int32, of the same shape as the values.
    """

    value: Array
    exponent: Array

    def total(self) -> "ScaledSquares":
        """Return the sum over the last axis, with the largest exponent of its terms."""
        # A term that is zero has no exponent, so it must not decide the largest one.
        exponents = jnp.where(self.value == 0, _LOWEST_EXPONENT, self.exponent)
        largest = exponents.max(axis=-1)

        # Bring all terms to that exponent, and add them up: 4^e is 2^(2 e).
        shift = 2 * (exponents - largest[..., None])
        value = bounded_sum(self.value * power_of_two(shift, self.value.dtype))

        # Where all terms are zero, any exponent will do.
        return ScaledSquares(value, jnp.where(largest == _LOWEST_EXPONENT, 0, largest))

    def root(self) -> Array:
        """Return sqrt(value): the norms divided by 2^exponent."""
        # The derivative of sqrt at 0 is infinite, and would spoil derivatives of the clipped sum. Take 0 for it.
        is_positive = self.value > 0
        return jnp.where(is_positive, jnp.sqrt(jnp.where(is_positive, self.value, 1)), 0)

    def norm(self) -> Array:
        """Return the norms themselves."""
        return self.root() * power_of_two(self.exponent, self.value.dtype)


def stacked(squares: list[ScaledSquares]) -> ScaledSquares:
    """Return the squared norms of several parameters, stacked along a new last axis."""
    values = [square.value for square in squares]
    exponents = [square.exponent for square in squares]
    return ScaledSquares(jnp.stack(values, axis=-1), jnp.stack(exponents, axis=-1))


def largest_exponent(x: Array) -> tuple[Array, Array]:
    """Return, over the last axis, max|x| and the exponent e with 2^(e-1) <= max|x| < 2^e; e comes first.

    The exponent is limited, so that 2^-e is a normal number.
    """
    largest = jnp.abs(x).max(axis=-1)

    # The bits of a positive number begin with its exponent, which is held with an offset.
    info = np.finfo(x.dtype)
    integer = jnp.int64 if info.bits == 64 else jnp.int32
    bits = jax.lax.bitcast_convert_type(largest, integer)
    exponent = (bits >> info.nmant).astype(jnp.int32) - (info.maxexp - 2)
    return jnp.clip(exponent, info.minexp, -info.minexp), largest


def squared_norms(x: Array) -> ScaledSquares:
    """Return the squared norms of the vectors along the last axis; NaN where an entry is not finite."""
    exponent, largest = largest_exponent(x)

    # Compilers take a division for costly, and compute it once for a row. They might repeat other arithmetic for every
    # entry of the row.
    scale = 1 / power_of_two(exponent, x.dtype)

    def scaled_squares(part: Array) -> Array:
        return jnp.square(part * per_row(scale, part))

    value = bounded_sum(x, scaled_squares)
    value = jnp.where(jnp.isfinite(largest), value, jnp.nan)
    return ScaledSquares(value, exponent)


def per_row(values: Array, like: Array) -> Array:
    """Return ``values`` [N, ...] with axes of length one at the end, so that they broadcast against ``like``."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def wide(x: Array) -> Array:
    """Return the array in float32 or wider.

    Where x was rounded to half precision just before, a compiler may leave that rounding out, in one place and not in
    another. The norm would then be that of another gradient than the one in the sum. So x is rounded once more, by an
    operation that compilers keep.
    """
    cast = x.astype(wide_dtype(x))
    return rounded_to(cast, x.dtype) if jnp.finfo(x.dtype).bits < 32 else cast


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

    def factors(self, dtype: Any) -> tuple[Array, Array]:
        """Return a power of two and a number, both in range, whose product is the weight: zero for a row not kept.

        Both come from a division by a power of two, which is exact. Compilers take a division for costly, and compute
        it once for a row. They might repeat other arithmetic for every entry of the row.
        """
        # The power of two takes as much of the exponent as its dtype holds, and the number takes the rest of it.
        limit = -np.finfo(dtype).minexp
        held = jnp.clip(self.exponent, -limit, limit)
        coefficient = jnp.where(self.keep, self.coefficient.astype(dtype), 0)
        rest = coefficient / power_of_two(self.exponent - held, dtype)
        power = 1 / power_of_two(held, dtype)

        # A gradient that is zero may have a weight out of range. It is limited, as zero times infinity would be NaN.
        largest = np.finfo(dtype).max
        return power, jnp.clip(rest, -largest, largest)

    def multiplied(self, x: Array) -> Array:
        """Return rows times their weights, rounded once."""
        power, rest = self.factors(x.dtype)
        return weighted(x, power, rest)


def weighted(x: Array, power: Array, rest: Array) -> Array:
    """Return rows times their weights; rows with a weight of zero become exact zeros, even if they hold a NaN.

    Args:
      x: [N, ...].
      power: [N], powers of two.
      rest: [N]; the weights are power * rest.
    """
    has_weight = per_row(rest, x) != 0
    scaled = jnp.where(has_weight, x * per_row(power, x), jnp.zeros((), x.dtype))
    return scaled * per_row(rest, x)
