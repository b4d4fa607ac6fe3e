"""The sum of many clipped table rows, exact but for one rounding of each entry.

A table (an embedding) is large and an example touches a few rows of it. Adding blocks of examples with the error kept,
as `_clip` does for other parameters, costs work in proportion to blocks times table; with a batch of 10,000, in which
blocks must be short, that is a hundred times the rest of a step. Here the cost is that of the touched rows:

Entries v of clipped rows are at most C (1 + k u) in size, and C < 2^e. Each is split into whole numbers

    h = round(v 2^(p - e)),    l = round((v 2^(p - e) - h) 2^q),    v = (h + l 2^-q) 2^(e - p) + error,

with |error| <= 2^(e - p - q - 1) <= 2^-(p + q) C. Scaling by powers of two and the difference are exact. Whole numbers
are added exactly and in any order: of N rows, |sum h| <= N (2^p + 1) and |sum l| <= N 2^(q - 1), below 2^30 for
p = 29 - ceil(log2 N) and q = p + 2 (2^62 in the 64-bit integers that go with float64). Both sums are then two
floating-point numbers each, exactly, and one pair hi + lo together.

So neighbouring batches differ by the split of one row. With m entries that an example may touch it is off by at most
sqrt(m) 2^-(p + q) C, and `is_exact` asks that this be at most u C, half of what `_clip` keeps back for the rounding of
a term, of which table rows use the other half.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import compensated_add, power_of_two
from gdpjax._core.types import Array


def _bits(num_rows: int, dtype: jnp.dtype) -> tuple[int, int]:
    """p and q; both numbers must also be whole in floating point."""
    info = np.finfo(dtype)
    high = min(info.bits - 3 - math.ceil(math.log2(num_rows)), info.nmant + 1)
    return high, min(high + 2, info.nmant + 1)


def is_exact(num_rows: int, num_entries: int, dtype: jnp.dtype) -> bool:
    """Whether rows of ``num_entries`` entries lose at most u C by the split."""
    high, low = _bits(num_rows, dtype)
    return high > 0 and math.sqrt(num_entries) * 2.0 ** -(high + low) <= float(np.finfo(dtype).eps) / 2


@jax.custom_jvp
def table_sum(index: Array, values: Array, bound: Array, table: Array) -> tuple[Array, Array]:
    """hi + lo, the sum of ``values`` [N, T, ...] (each at most ``bound``) in the rows ``index`` [N, T] of a table.

    Indices out of range are dropped. Only the shape of ``table`` matters. A ``bound`` that is NaN makes all NaN.
    """
    dtype = values.dtype
    high, low = _bits(values.shape[0], dtype)
    whole = jnp.int64 if np.finfo(dtype).bits == 64 else jnp.int32
    _, exponent = jnp.frexp(bound.astype(dtype))
    scaled = values * power_of_two(high - exponent, dtype)
    upper = jnp.round(scaled)
    lower = jnp.round((scaled - upper) * 2.0**low)
    words = jnp.stack([upper, lower], axis=-1).astype(whole)
    added = jnp.zeros((*table.shape, 2), whole).at[index].add(words, mode="drop")
    unit = jnp.where(jnp.isfinite(bound), power_of_two(exponent - high, dtype), jnp.nan)
    return compensated_add(_pair(added[..., 0], dtype, unit, 1.0), _pair(added[..., 1], dtype, unit, 2.0**-low))


def _pair(whole: Array, dtype: jnp.dtype, unit: Array, scale: float) -> tuple[Array, Array]:
    """Whole numbers times a power of two, exactly, as hi + lo."""
    high = whole.astype(dtype)
    low = (whole - high.astype(whole.dtype)).astype(dtype)
    return high * scale * unit, low * scale * unit


@table_sum.defjvp
def _tangent(
    primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    index, _, _, table = primals
    moved = jnp.zeros(table.shape, tangents[1].dtype).at[index].add(tangents[1], mode="drop")
    return table_sum(*primals), (moved, jnp.zeros_like(moved))
