"""Gradients of a table (an embedding) of which each example looks up a few rows.

An example's gradient is zero except in the rows that it looked up, and only those are held. The gradients of equal
indices are added up before it is clipped. Then its norm is the norm of its rows, and the weighted sum adds the rows of
all examples to a table.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from gdpjax._core import xla
from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._forms._abstract import AbstractFactor
from gdpjax.clipping._forms._exact_table_sum import is_exact, table_sum
from gdpjax.clipping._forms._formed import Full
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares, per_row, squared_norms, times, wide
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

    def scaled(self, scale: Array) -> "Sparse":
        return Sparse(self.rows, times(self.values, scale))

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

    def leave_scan(self, is_scanned: bool) -> "Sparse":
        assert not is_scanned, "a table that is scanned over is not tapped"
        # The look-ups of all iterations are look-ups in one table.
        rows = self.rows.reshape(-1)
        values = self.values.reshape(-1, *self.values.shape[2:])
        return Sparse(rows, values)

    def squared_norm(self, dtype: Any) -> ScaledSquares:
        return squared_norms(wide(self.values).astype(dtype).reshape(-1))

    def weighted(self, weight: RowWeights, shape: tuple[int, ...]) -> Array:
        return Sparse(self.rows, weight.multiplied(wide(self.values))).formed(shape)

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

    def exact_sum(
        self, weights: RowWeights, bound: Array, budget: RoundingBudget, like: Array
    ) -> tuple[Array, Array] | None:
        if not self.sums_exactly(budget, like.shape):
            return None
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
