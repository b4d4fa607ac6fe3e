"""Gradients of a table that is multiplied by data and looked up too, such as an embedding that is tied to the head.

    gradients = TiedTable(left, right, index, values, table.shape)
    gradients.squared_norms(dtype), gradients.weighted_sum(weights)

One example's gradient has two parts: sum_t left_t right_t^T from the multiplications, and from the look-ups the rows
``values[l]``, added to row ``index[l]`` of the table. A looked-up row is an outer product too, of the indicator vector
of its index and of the row. So the look-ups are L more positions, and everything about positions holds for the T + L of
them: the Gram matrices, the sum, and the bounds of docs/theory/positions.md, even if the two parts cancel.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients._gram_norms import gram, relative_positions, rounded_up, scaled_down
from gdpjax.clipping._gradients._position_products import AbstractPositionProducts, multiplied, sum_of_products
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, per_row, squared_norms, wide


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiedTable(AbstractPositionProducts):
    """Outer products and looked-up rows of one table.

    Attributes:
      left: [N, T, V], with an entry for each of the V rows of the table.
      right: [N, T, p], with an entry for each of the p entries of a row.
      index: int32 [N, L], the rows that were looked up; an index out of range drops its row.
      values: [N, L, p], the gradients of those rows.
      table_shape: the shape of the table, [V, ...], with p entries in a row.
    """

    left: Array
    right: Array
    index: Array
    values: Array
    table_shape: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.table_shape

    @property
    def method(self) -> str:
        return f"outer products at {self.left.shape[1]} positions, table rows"

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norms from Gram matrices over positions and looked-up rows, rounded up."""
        sum_dtype = self._sum_dtype()

        def of_one_row(arrays: tuple[Array, Array, Array, Array]) -> ScaledSquares:
            left, right, index, values = arrays
            left, right, values = (wide(x).astype(dtype) for x in (left, right, values))

            # The right factors of the multiplications, and after them those of the look-ups: [T + L, 1, p].
            left = left[:, None]
            right = jnp.concatenate([right, values])[:, None]

            # The norms of all factors. The left factor of a look-up is an indicator, of norm one, and is not scaled.
            of_products = squared_norms(left)
            of_right = squared_norms(right)
            ones = jnp.ones((index.shape[0], 1), dtype)
            of_left = ScaledSquares(
                jnp.concatenate([of_products.value, ones]),
                jnp.concatenate([of_products.exponent, jnp.zeros_like(ones, jnp.int32)]),
            )

            # Scale the factors, so that no product overflows or vanishes.
            positions = relative_positions(of_left, of_right)
            left = scaled_down(left, of_products)
            right = scaled_down(right, of_right) * positions.scale[..., None]

            # The Gram matrix of the left factors, in blocks: multiplications come before look-ups. The product of an
            # indicator and a left factor is an entry of that factor. That of two indicators is 1 if they are equal.
            looked_up = left[:, 0].at[:, index].get(mode="fill", fill_value=0)
            same_index = (index[:, None] == index).astype(dtype)
            gram_of_left = jnp.block([[gram(left)[0], looked_up], [looked_up.T, same_index]])

            # (left_t . left_s) (right_t . right_s) for all pairs of positions, added up and rounded up.
            products = gram_of_left * gram(right)
            lengths = (left.shape[-1], right.shape[-1])
            return rounded_up(products, positions, lengths, sum_dtype)

        # A loop, so that every row is computed by the same code.
        index, values = self._inside()
        return jax.lax.map(of_one_row, (self.left, self.right, index, values))

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum, in which each example's own product and look-ups are added up first."""
        index, values = self._inside()
        dtype = self._sum_dtype()
        values = multiplied(wide(values).astype(dtype), weights.broadcast_to(index.shape))

        def add_looked_up(product: Array, row: Array, start: Any) -> Array:
            # This piece of the product has the rows of the table from ``start`` on. Look-ups of other rows add zeros.
            place = index[row] - start
            is_here = (place >= 0) & (place < product.shape[1])
            added = jnp.where(per_row(is_here, values[row]), values[row], 0)
            return product.at[0, jnp.where(is_here, place, 0)].add(added)

        # The long factor lies along the rows of the table.
        long, short = self.left[:, :, None], self.right[:, :, None]
        sums = sum_of_products(short, long, weights, dtype, long_first=True, finish=add_looked_up)
        return sums.reshape(self.table_shape)

    def _sum_dtype(self) -> Any:
        """Return the dtype of the weighted sum."""
        of_products = jnp.promote_types(wide_dtype(self.left), wide_dtype(self.right))
        return jnp.promote_types(of_products, wide_dtype(self.values))

    def _inside(self) -> tuple[Array, Array]:
        """Return ``index`` and ``values``, with values of zero where the index is out of range."""
        num_rows = self.table_shape[0]
        inside = (self.index >= 0) & (self.index < num_rows)
        index = jnp.where(inside, self.index, num_rows).astype(jnp.int32)
        return index, jnp.where(inside[..., None], self.values, 0)
