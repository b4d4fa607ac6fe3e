"""The abstract class of the gradients of one parameter for N examples ("rows"), in whatever form they are held.

Clipping needs two things of an example's gradient g_i: its norm, and its part in the weighted sum. Both can be computed
without forming g_i. Each form has a class that computes them:

    gradients.squared_norms(dtype)      ||g_i||^2, for every row
    gradients.weighted_sum(weights)     sum_i w_i g_i

Two promises bind every class, and the sensitivity rests on them.

* Row by row. What is computed for a row is a function of that row alone. Its norm is at least the norm of what is added
  for it, up to the roundings that `_rounding_budget` counts.
* Roundings. In ``weighted_sum`` each w_i g_i is rounded at most twice, or it is computed by itself and its norm counts
  what that may add (`_position_products`). The rows are then added plainly, in any order. The budget limits how many
  rows may be added in this way.
"""

import abc
import math
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.trees import compensated_row_sum
from gdpjax._core.types import Array
from gdpjax.clipping._gradients._running_sum import RunningSum
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares
from gdpjax.clipping._rounding_budget import RoundingBudget

MOST_WRITTEN_OUT = 4
"""Blocks of rows that are added one after the other in a program; more are added by a loop."""


class AbstractRowGradients(abc.ABC):
    """The gradients of one parameter for N examples. Subclasses are pytrees of arrays with a leading axis of rows."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the parameter."""

    @property
    @abc.abstractmethod
    def method(self) -> str:
        """The name of this form in `gdpjax.explain`."""

    @abc.abstractmethod
    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm of each row, at least that of what `weighted_sum` adds for a weight of one."""

    @abc.abstractmethod
    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return sum_i w_i g_i, with the rows added plainly."""

    @abc.abstractmethod
    def formed(self) -> Array:
        """Return the gradients as one array [N, *shape]."""

    @abc.abstractmethod
    def weighted_rows(self, weights: RowWeights) -> Array:
        """Return the weighted gradients as one array [N, *shape]."""

    def row_arrays(self) -> list[Array]:
        """Return the arrays with a leading axis of rows."""
        return [leaf for leaf in jax.tree.leaves(self) if hasattr(leaf, "dtype")]

    def __getitem__(self, rows: Any) -> Any:
        """Return the gradients of some of the rows."""
        return jax.tree.map(lambda x: x[rows], self)

    @property
    def num_rows(self) -> int:
        """The number of rows, N."""
        return self.row_arrays()[0].shape[0]

    @property
    def num_bytes(self) -> int:
        """The bytes of one row."""
        total = 0
        for x in self.row_arrays():
            total += math.prod(x.shape[1:]) * x.dtype.itemsize
        return total

    def rows_per_part(self, budget: RoundingBudget) -> int:
        """Return how many rows ``weighted_sum`` may add up at once."""
        return max(min(budget.plain_rows, self.num_rows), 1)

    def num_parts(self, budget: RoundingBudget) -> int:
        """Return how many parts `add_to` adds to a running sum."""
        return -(-self.num_rows // self.rows_per_part(budget))

    def needs_compensation(self, budget: RoundingBudget, num_calls: int) -> bool:
        """Return whether the errors of adding up the parts of ``num_calls`` calls of `add_to` have to be kept."""
        rows = self.rows_per_part(budget)
        parts = num_calls * self.num_parts(budget)
        return not budget.covers_plain_sum(rows, parts)

    def add_to(self, total: RunningSum, weights: RowWeights, bound: Array, budget: RoundingBudget) -> RunningSum:
        """Add the weighted rows, each of norm at most ``bound``, to a running sum."""
        # The budget of a small model has every row added with its error kept.
        if budget.plain_rows == 1:
            rows_sum = compensated_row_sum(self.weighted_rows(weights))
            return total.plus_pair(rows_sum)

        # Whole blocks of rows first, in a loop if there are many of them.
        size = self.rows_per_part(budget)
        num_blocks = self.num_rows // size
        whole = num_blocks * size
        if num_blocks <= MOST_WRITTEN_OUT:
            for start in range(0, whole, size):
                rows = slice(start, start + size)
                total = total.plus(self[rows].weighted_sum(weights[rows]))
        else:
            total = self._add_blocks(total, weights, num_blocks, size)

        # Then the rows that are left over.
        if whole < self.num_rows:
            rows = slice(whole, None)
            total = total.plus(self[rows].weighted_sum(weights[rows]))
        return total

    def _add_blocks(self, total: RunningSum, weights: RowWeights, num_blocks: int, size: int) -> RunningSum:
        """Add the first ``num_blocks * size`` rows by a loop over blocks."""

        def add_block(total: RunningSum, number: Array) -> tuple[RunningSum, None]:
            def block(x: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(x, number * size, size)

            rows = self.map_rows(block)
            weights_of_block = RowWeights(*(block(x) for x in weights))
            return total.plus(rows.weighted_sum(weights_of_block)), None

        numbers = jnp.arange(num_blocks, dtype=jnp.int32)
        total, _ = jax.lax.scan(add_block, total, numbers)
        return total

    def map_rows(self, function: Any) -> Any:
        """Return the same gradients with ``function`` applied to every array that has an axis of rows."""
        return jax.tree.map(function, self)
