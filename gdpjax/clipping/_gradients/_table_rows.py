"""Gradients of a table (an embedding) of which each example looks up a few rows.

    gradients = TableRows.of_lookups(index, values, table.shape)
    gradients.squared_norms(dtype), gradients.weighted_sum(weights)

An example's gradient is zero except in the rows that it looked up, and only those are held. The gradients of equal
indices are added up first. Then the norm of the example is the norm of its rows, and the weighted sum adds the rows of
all examples to a table.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._gradients._abstract import AbstractRowGradients
from gdpjax.clipping._gradients._exact_table_sum import is_exact, table_sum
from gdpjax.clipping._gradients._running_sum import RunningSum
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, per_row, squared_norms, wide
from gdpjax.clipping._rounding_budget import RoundingBudget

_SCATTER_COST = 2
"""Cost of adding a number to a place of a table twice, over that of a compensated addition in order."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TableRows(AbstractRowGradients):
    """Rows of a table.

    Attributes:
      index: int32 [N, T], rows of the table. An example has each row at most once; unused places are out of range.
      values: [N, T, ...], the gradients of those rows.
      table_shape: the shape of the table.
    """

    index: Array
    values: Array
    table_shape: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))

    @classmethod
    def of_lookups(cls, index: Array, values: Array, table_shape: tuple[int, ...]) -> "TableRows":
        """Return the gradients of look-ups, in which an example may have the same index several times.

        Args:
          index: [N, T], the rows that were looked up; an index out of range drops its value.
          values: [N, T, ...], the gradients of those rows. Values of equal indices are added up.
          table_shape: the shape of the table.
        """
        values = wide(values)
        num_rows, num_lookups = index.shape
        out_of_range = table_shape[0]

        # Drop the values at indices out of range.
        inside = (index >= 0) & (index < out_of_range)
        index = jnp.where(inside, index, out_of_range).astype(jnp.int32)
        values = jnp.where(per_row(inside, values), values, 0)
        if num_lookups == 1:
            return cls(index, values, table_shape)

        # An index may occur at several places. One of them stands for all: whichever is written last.
        position = jnp.broadcast_to(jnp.arange(num_lookups, dtype=jnp.int32), index.shape)
        example = _numbers_of_examples(index)
        last_written = jnp.zeros((num_rows, out_of_range + 1), jnp.int32).at[example, index].set(position)
        representative = last_written[example, index]

        # Add all values at the representatives, and drop the other places.
        summed = jnp.zeros_like(values).at[example, representative].add(values)
        index = jnp.where(representative == position, index, out_of_range)
        return cls(index, summed, table_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table_shape

    @property
    def method(self) -> str:
        return "table rows"

    @property
    def num_entries(self) -> int:
        """The number of entries that one example may add to the table."""
        return math.prod(self.values.shape[1:])

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm of each example's rows."""
        flat = wide(self.values).astype(dtype).reshape(self.values.shape[0], -1)
        return squared_norms(flat)

    def formed(self) -> Array:
        """Return a table for each example."""
        return self._as_tables(wide(self.values))

    def weighted_rows(self, weights: RowWeights) -> Array:
        """Return a weighted table for each example."""
        return self._as_tables(weights.multiplied(wide(self.values)))

    def _as_tables(self, values: Array) -> Array:
        """Add values [N, T, ...] to a table of zeros for each example."""
        example = _numbers_of_examples(self.index)
        tables = jnp.zeros((values.shape[0], *self.table_shape), values.dtype)
        return tables.at[example, self.index].add(values, mode="drop")

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum as a table."""
        values = weights.multiplied(wide(self.values))
        return jnp.zeros(self.table_shape, values.dtype).at[self.index].add(values, mode="drop")

    def sums_exactly(self, budget: RoundingBudget) -> bool:
        """Return whether these rows are added up in whole numbers: that is cheaper, and loses little enough."""
        num_blocks = -(-self.num_rows // budget.plain_rows)
        cost_by_blocks = num_blocks * math.prod(self.table_shape)
        cost_in_whole_numbers = _SCATTER_COST * self.num_rows * self.num_entries
        if cost_by_blocks <= cost_in_whole_numbers:
            return False

        dtype = jnp.promote_types(self.values.dtype, jnp.float32)
        return is_exact(self.num_rows, self.num_entries, dtype)

    def needs_compensation(self, budget: RoundingBudget, num_calls: int) -> bool:
        """Return whether the errors of adding up have to be kept. An exact sum always has two parts, hi and lo."""
        return self.sums_exactly(budget) or super().needs_compensation(budget, num_calls)

    def add_to(self, total: RunningSum, weights: RowWeights, bound: Array, budget: RoundingBudget) -> RunningSum:
        """Add the weighted rows, exactly where few entries of a large table are touched."""
        if not self.sums_exactly(budget):
            return super().add_to(total, weights, bound, budget)
        values = weights.multiplied(wide(self.values))
        return total.plus_pair(table_sum(self.index, values, bound, total.high))


def _numbers_of_examples(index: Array) -> Array:
    """Return the number of the example of each entry of ``index`` [N, T]."""
    numbers = jnp.arange(index.shape[0], dtype=jnp.int32)
    return jnp.broadcast_to(numbers[:, None], index.shape)
