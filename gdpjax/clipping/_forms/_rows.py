"""The gradients of one parameter for a batch of examples ("rows"), clipped and added up within a budget of roundings.

rows = RowGradients(factor, weight.shape)      # the arrays of the factor have a leading axis of examples
rows.squared_norms(dtype)                      # ||g_i||^2, for every row
total = rows.add_to(total, weights, bound, budget)
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import compensated_add, compensated_row_sum, two_sum, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._forms._abstract import AbstractFactor, Full
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares
from gdpjax.clipping._forms._table import Sparse
from gdpjax.clipping._rounding_budget import RoundingBudget


class RunningSum(NamedTuple):
    """A running sum of parts, with or without the errors of its additions: the unevaluated sum high + low.

    A few parts may be added plainly: the budget of roundings covers them. More of them are added with the error of each
    addition kept (Knuth's `two_sum`), so that their number does not matter. That costs three times the memory traffic.

    Attributes:
      high: the sum.
      low: the errors of its additions, or None where they need not be kept.
    """

    high: Array
    low: Array | None

    @classmethod
    def zero(cls, like: Any, compensated: bool) -> "RunningSum":
        """Return the empty sum of arrays shaped like ``like``."""
        zeros = jnp.zeros(like.shape, wide_dtype(like))
        return cls(zeros, zeros if compensated else None)

    def plus(self, part: Array) -> "RunningSum":
        """Add one part."""
        if self.low is None:
            return RunningSum(self.high + part, None)
        return self.plus_pair((part, jnp.zeros_like(part)))

    def plus_pair(self, part: tuple[Array, Array]) -> "RunningSum":
        """Add an unevaluated sum."""
        assert self.low is not None
        # Renormalising keeps ``low`` a rounding error of ``high``, so that its own rounding never builds up.
        high, low = compensated_add((self.high, self.low), part)
        return RunningSum(*two_sum(high, low))

    def rounded(self) -> Array:
        """Return the sum, rounded once."""
        if self.low is None:
            return self.high
        return self.high + self.low


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RowGradients:
    """The gradients of one parameter for N examples.

    Attributes:
      factor: their form; its arrays have a leading axis of N rows.
      shape: the shape of the parameter.
    """

    factor: AbstractFactor
    shape: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm of each row."""
        return jax.vmap(lambda factor: factor.squared_norm(dtype))(self.factor)

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return sum_i w_i g_i, with the rows added plainly."""
        return self.factor.weighted_sum(weights, self.shape)

    @property
    def num_rows(self) -> int:
        """The number of rows, N."""
        return jax.tree.leaves(self.factor)[0].shape[0]

    def add_to(self, total: RunningSum, weights: RowWeights, bound: Array, budget: RoundingBudget) -> RunningSum:
        """Add the weighted rows, each of norm at most ``bound``, to a running sum."""
        if isinstance(self.factor, Sparse) and self.factor.sums_exactly(budget, self.shape):
            return total.plus_pair(self.factor.exact_sum(weights, bound, total.high))

        # The budget of a small model has every row added with its error kept.
        if budget.plain_rows == 1:
            alone = jax.tree.map(lambda x: x[:, None], (self, weights))
            return total.plus_pair(compensated_row_sum(jax.vmap(RowGradients.weighted_sum)(*alone)))

        def add_block(total: RunningSum, start: Any, size: int) -> RunningSum:
            def block(x: Array) -> Array:
                return jax.lax.dynamic_slice_in_dim(x, start, size)

            rows, weights_of_rows = jax.tree.map(block, (self, weights))
            return total.plus(rows.weighted_sum(weights_of_rows))

        # Whole blocks of rows first, in a loop if there are several, and then the rows that are left over.
        size = min(budget.plain_rows, self.num_rows)
        num_blocks, left_over = divmod(self.num_rows, size)
        if num_blocks > 1:
            starts = size * jnp.arange(num_blocks, dtype=jnp.int32)
            total, _ = jax.lax.scan(lambda total, start: (add_block(total, start, size), None), total, starts)
        else:
            total = add_block(total, 0, size)
        return add_block(total, num_blocks * size, left_over) if left_over else total


def formed_rows(rows: Array) -> RowGradients:
    """Return gradients that are formed, [N, *shape]."""
    return RowGradients(Full(rows), rows.shape[1:])
