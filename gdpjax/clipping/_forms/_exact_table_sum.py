"""The sum of many clipped table rows, exact but for one rounding of each entry.

    high, low = table_sum(index, values, bound, table)      # bound: the largest norm of an example's values
    total = high + low

A table (an embedding) is large and an example touches a few rows of it. Adding blocks of examples with the error kept,
as `_rows` does for other parameters, costs work in proportion to blocks times table. With a batch of 10,000, in
which blocks must be short, that is a hundred times the rest of a step. Here the cost is that of the touched rows.

Entries v of clipped rows are at most C (1 + k u) in size, and C < 2^e. Each is split into whole numbers

    h = round(v 2^(p - e)),    l = round((v 2^(p - e) - h) 2^q),    v = (h + l 2^-q) 2^(e - p) + error,

with |error| <= 2^(e - p - q - 1) <= 2^-(p + q) C. Scaling by powers of two and the difference are exact. Whole numbers
are added exactly and in any order: of N rows, |sum h| <= N (2^p + 1) and |sum l| <= N 2^(q - 1), below 2^30 for
p = 29 - ceil(log2 N) and q = p + 2 (2^62 in the 64-bit integers that go with float64). Both sums are then two
floating-point numbers each, exactly, and one pair high + low together.

So neighbouring batches differ by the split of one row. With m entries that an example may touch it is off by at most
sqrt(m) 2^-(p + q) C, and `is_exact` asks for at most u C. That is half of what `_rounding_budget` keeps back for the
rounding of a term; scaling the row uses the other half.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import compensated_add, power_of_two
from gdpjax._core.types import Array

_SPARE_BITS = 3
"""Bits of an integer that the sums leave unused, its sign among them."""
_EXTRA_LOW_BITS = 2
"""q - p"""


def is_exact(num_rows: int, num_entries: int, dtype: jnp.dtype) -> bool:
    """Return whether rows of ``num_entries`` entries lose at most u C by the split."""
    high_bits, low_bits = _split_bits(num_rows, dtype)
    if high_bits <= 0:
        return False
    unit = float(np.finfo(dtype).eps) / 2
    return math.sqrt(num_entries) * 2.0 ** -(high_bits + low_bits) <= unit


@jax.custom_jvp
def table_sum(index: Array, values: Array, bound: Array, table: Array) -> tuple[Array, Array]:
    """Return high + low, the sum of the rows that examples add to a table.

    Args:
      index: int [N, T], rows of the table; indices out of range are dropped.
      values: [N, T, ...], what is added to these rows, each entry at most ``bound`` in size.
      bound: a number; one that is NaN makes all of the sum NaN.
      table: an array of which only the shape matters.
    """
    dtype = values.dtype
    high_bits, low_bits = _split_bits(values.shape[0], dtype)

    # Split every value into whole numbers: values = (upper + lower 2^-q) 2^(e - p).
    _, exponent = jnp.frexp(bound.astype(dtype))
    scaled = values * power_of_two(high_bits - exponent, dtype)
    upper = jnp.round(scaled)
    lower = jnp.round((scaled - upper) * 2.0**low_bits)

    # Add them up, exactly.
    integer = jnp.int64 if np.finfo(dtype).bits == 64 else jnp.int32
    words = jnp.stack([upper, lower], axis=-1).astype(integer)
    sums = jnp.zeros((*table.shape, 2), integer).at[index].add(words, mode="drop")

    # Scale back.
    unit = jnp.where(jnp.isfinite(bound), power_of_two(exponent - high_bits, dtype), jnp.nan)
    of_upper = _as_pair(sums[..., 0], dtype, unit, 1.0)
    of_lower = _as_pair(sums[..., 1], dtype, unit, 2.0**-low_bits)
    return compensated_add(of_upper, of_lower)


@table_sum.defjvp
def _table_sum_jvp(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the sum, and that of the tangents of the values, added plainly."""
    index, _, _, table = primals
    _, values_tangent, _, _ = tangents
    moved = jnp.zeros(table.shape, values_tangent.dtype).at[index].add(values_tangent, mode="drop")
    return table_sum(*primals), (moved, jnp.zeros_like(moved))


def _split_bits(num_rows: int, dtype: jnp.dtype) -> tuple[int, int]:
    """Return p and q, the bits of both whole numbers; these must also be whole in floating point."""
    info = np.finfo(dtype)
    most_bits = info.nmant + 1
    high_bits = min(info.bits - _SPARE_BITS - math.ceil(math.log2(num_rows)), most_bits)
    low_bits = min(high_bits + _EXTRA_LOW_BITS, most_bits)
    return high_bits, low_bits


def _as_pair(whole: Array, dtype: jnp.dtype, unit: Array, scale: float) -> tuple[Array, Array]:
    """Return whole numbers times a power of two, exactly, as high + low."""
    high = whole.astype(dtype)
    low = (whole - high.astype(whole.dtype)).astype(dtype)
    return high * scale * unit, low * scale * unit
