"""Gradients of a table (an embedding) of which each example looks up a few rows."""

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
      index: int32 [N, T], each row of the table at most once in an example; the others out of range.
      values: [N, T, ...], the gradients of those rows.
      table_shape: shape of the table.
    """

    index: Array
    values: Array
    table_shape: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))

    @classmethod
    def of_lookups(cls, index: Array, values: Array, table_shape: tuple[int, ...]) -> "TableRows":
        """Add up the values of equal indices of each example.

        Args:
          index: [N, T], in which a row may occur several times; an index out of range drops its value.
          values: [N, T, ...].
          table_shape: shape of the table.
        """
        values = wide(values)
        inside = (index >= 0) & (index < table_shape[0])
        index = jnp.where(inside, index, table_shape[0]).astype(jnp.int32)
        values = jnp.where(per_row(inside, values), values, 0)
        if index.shape[1] == 1:
            return cls(index, values, table_shape)

        # Of the positions at which an index occurs one stands for all of them: whichever is written last.
        num_rows, num_lookups = index.shape
        position = jnp.broadcast_to(jnp.arange(num_lookups, dtype=jnp.int32), index.shape)
        example = jnp.broadcast_to(jnp.arange(num_rows, dtype=jnp.int32)[:, None], index.shape)
        written = jnp.zeros((num_rows, table_shape[0] + 1), jnp.int32).at[example, index].set(position)
        standing = written[example, index]
        summed = jnp.zeros_like(values).at[example, standing].add(values)
        return cls(jnp.where(standing == position, index, table_shape[0]), summed, table_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table_shape

    @property
    def method(self) -> str:
        return "table rows"

    @property
    def num_entries(self) -> int:
        """Numbers that one example may add to the table."""
        return math.prod(self.values.shape[1:])

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm of each example's rows."""
        flat = wide(self.values).astype(dtype).reshape(self.values.shape[0], -1)
        return squared_norms(flat)

    def formed(self) -> Array:
        """Return a table for each example."""
        return self._as_tables(wide(self.values))

    def weighted_rows(self, weights: RowWeights) -> Array:
        """Return the weighted rows, formed."""
        return self._as_tables(weights.multiplied(wide(self.values)))

    def _as_tables(self, values: Array) -> Array:
        num_rows = values.shape[0]
        example = jnp.broadcast_to(jnp.arange(num_rows, dtype=jnp.int32)[:, None], self.index.shape)
        tables = jnp.zeros((num_rows, *self.table_shape), values.dtype)
        return tables.at[example, self.index].add(values, mode="drop")

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum as a table."""
        values = weights.multiplied(wide(self.values))
        return jnp.zeros(self.table_shape, values.dtype).at[self.index].add(values, mode="drop")

    def sums_exactly(self, budget: RoundingBudget) -> bool:
        """Return whether whole numbers are the cheaper way to add up these rows, and lose little enough."""
        by_blocks = -(-self.num_rows // budget.plain_rows) * math.prod(self.table_shape)
        if by_blocks <= _SCATTER_COST * self.num_rows * self.num_entries:
            return False
        dtype = jnp.promote_types(self.values.dtype, jnp.float32)
        return is_exact(self.num_rows, self.num_entries, dtype)

    def needs_compensation(self, budget: RoundingBudget, num_calls: int) -> bool:
        """Return whether the errors of adding up have to be kept; an exact sum is an unevaluated one."""
        return self.sums_exactly(budget) or super().needs_compensation(budget, num_calls)

    def add_to(self, total: RunningSum, weights: RowWeights, bound: Array, budget: RoundingBudget) -> RunningSum:
        """Add the weighted rows, exactly where few entries of a large table are touched."""
        if not self.sums_exactly(budget):
            return super().add_to(total, weights, bound, budget)
        values = weights.multiplied(wide(self.values))
        return total.plus_pair(table_sum(self.index, values, bound, total.high))
