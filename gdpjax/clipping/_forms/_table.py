"""Gradients of a table (an embedding) of which each example looks up a few rows.

An example's gradient is zero except in the rows that it looked up, and only those are held. The gradients of equal
indices are added up before it is clipped. Then its norm is the norm of its rows, and the weighted sum adds the rows of
all examples to a table.

Adding blocks of examples with the error kept, as `_rows` does for other parameters, costs work in proportion to blocks
times table. With a batch of 10,000, in which blocks must be short, that is a hundred times the rest of a step. There
`table_sum` adds whole numbers, at the cost of the touched rows. The sum is exact except for one rounding of each entry.

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

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import xla
from gdpjax._core.trees import compensated_add, power_of_two, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._forms._abstract import AbstractFactor, Full
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares, per_row, squared_norms, wide
from gdpjax.clipping._rounding_budget import RoundingBudget

_SCATTER_COST = 2
"""Cost of adding a number to a place of a table twice, over that of a compensated addition in order."""


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparse(AbstractFactor):
    """The gradient of a table of which T rows were looked up.

    Attributes:
      rows: [T], indices along the first axis of the table; those out of range are dropped.
      values: [T, ...], the gradient of each of these rows. Where an index occurs again, the values are added up.
    """

    rows: Array
    values: Array
    method: ClassVar[str] = "table rows"

    def fits(self, shape: tuple[int, ...]) -> bool:
        return self.rows.ndim == 1 and self.values.shape == (*self.rows.shape, *shape[1:])

    def formed(self, shape: tuple[int, ...]) -> Array:
        dtype = wide_dtype(self.values)
        # Added as zeros: a GPU that is to be deterministic does not drop what is out of range.
        is_row = (self.rows >= 0) & (self.rows < shape[0])
        values = jnp.where(per_row(is_row, self.values), self.values, 0).astype(dtype)
        return jnp.zeros(shape, dtype).at[jnp.where(is_row, self.rows, 0)].add(values)

    def compact(self, shape: tuple[int, ...]) -> "Sparse":
        """Return each looked-up row once, with its values added up, and other places out of range."""
        values = wide(self.values)
        num_lookups = self.rows.shape[0]
        out_of_range = shape[0]

        # Drop the values at indices out of range.
        inside = (self.rows >= 0) & (self.rows < out_of_range)
        rows = jnp.where(inside, self.rows, out_of_range).astype(jnp.int32)
        values = jnp.where(per_row(inside, values), values, 0)
        if num_lookups == 1:
            return Sparse(rows, values)

        # An index may occur at several places. One of them stands for all: whichever is written last.
        position = jnp.arange(num_lookups, dtype=jnp.int32)
        last_written = jnp.zeros(out_of_range + 1, jnp.int32).at[rows].set(position)
        representative = last_written[rows]

        # Add all values at the representatives, and drop the other places.
        summed = jnp.zeros_like(values).at[representative].add(values)
        return Sparse(jnp.where(representative == position, rows, out_of_range), summed)

    def over_iterations(self) -> "Sparse":
        # The look-ups of all iterations are look-ups in one table.
        rows = self.rows.reshape(-1)
        values = self.values.reshape(-1, *self.values.shape[2:])
        return Sparse(rows, values)

    def squared_norm(self, dtype: Any) -> ScaledSquares:
        return squared_norms(wide(self.values).astype(dtype).reshape(-1))

    def weighted_sum(self, weights: RowWeights, shape: tuple[int, ...]) -> Array:
        values = weights.multiplied(wide(self.values))
        return jnp.zeros(shape, values.dtype).at[self.rows].add(values, mode="drop")

    def sums_exactly(self, budget: RoundingBudget, shape: tuple[int, ...]) -> bool:
        """Return whether the examples are added up in whole numbers: that is cheaper, and loses little enough."""
        # A TPU adds rows to a table one after the other: by its compiler's estimate that is four times slower.
        if xla.platform() == "tpu":
            return False
        num_examples, *row_shape = self.values.shape
        num_entries = math.prod(row_shape)
        cost_by_blocks = -(-num_examples // budget.plain_rows) * math.prod(shape)
        if cost_by_blocks <= _SCATTER_COST * num_examples * num_entries:
            return False
        return is_exact(num_examples, num_entries, wide_dtype(self.values))

    def exact_sum(self, weights: RowWeights, bound: Array, like: Array) -> tuple[Array, Array]:
        """Return sum_i w_i g_i as an unevaluated sum of two arrays like the table.

        Args:
          weights: the weights of the examples; the arrays of this factor have a leading axis of them.
          bound: the largest norm of a weighted gradient.
          like: an array of the shape of the table.
        """
        return table_sum(self.rows, weights.multiplied(wide(self.values)), bound, like)


def total_of(factors: Sequence[AbstractFactor], shape: tuple[int, ...]) -> AbstractFactor:
    """Return the sum of the gradients of a weight that is used several times."""
    if len(factors) == 1:
        return factors[0]

    # Look-ups of several places are look-ups of one table. Other sums are formed.
    tables = [factor for factor in factors if isinstance(factor, Sparse)]
    if len(tables) == len(factors):
        rows = jnp.concatenate([table.rows for table in tables])
        return Sparse(rows, jnp.concatenate([table.values for table in tables]))
    first, *others = [factor.formed(shape) for factor in factors]
    return Full(sum(others, start=first))


# The sum of table rows in whole numbers.

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
