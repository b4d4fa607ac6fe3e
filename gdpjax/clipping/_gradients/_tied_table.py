"""Gradients of a table that is looked up and multiplied with, such as an embedding that is tied to the head.

    gradients = TiedTable(left, right, index, values, table.shape)
    gradients.squared_norms(dtype), gradients.weighted_sum(weights)

One example's gradient is sum_t left_t right_t^T, of the multiplications, plus the rows ``values[l]`` at ``index[l]``,
of the look-ups. A looked-up row is an outer product too: of the indicator of its index, and the row. So it is one more
position in the Gram matrices, where the product of an indicator with another factor is an entry of that factor, and in
the row's own sum. The two parts may cancel as positions may, and the bounds of docs/theory/positions.md hold as they
are.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients._gram_norms import gram, relative_positions, rounded_up, scaled_down
from gdpjax.clipping._gradients._position_products import AbstractPositionProducts, multiplied, sum_of_products
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, squared_norms, wide


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiedTable(AbstractPositionProducts):
    """Outer products and looked-up rows of one table.

    Attributes:
      left: [N, T, V], along the rows of the table.
      right: [N, T, p], along its other axes together.
      index: int32 [N, L]; an index out of range drops its row.
      values: [N, L, p].
      table_shape: shape of the table, [V, ...].
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

            # The right factors at the multiplications, and at the look-ups after them: [T + L, 1, p].
            left = left[:, None]
            right = jnp.concatenate([right, values])[:, None]

            # An indicator has norm one, and is not scaled.
            of_products, of_right = squared_norms(left), squared_norms(right)
            ones = jnp.ones((index.shape[0], 1), dtype)
            of_left = ScaledSquares(
                jnp.concatenate([of_products.value, ones]),
                jnp.concatenate([of_products.exponent, jnp.zeros_like(ones, jnp.int32)]),
            )
            positions = relative_positions(of_left, of_right)
            left = scaled_down(left, of_products)
            right = scaled_down(right, of_right) * positions.scale[..., None]

            # The product of an indicator and a left factor is an entry of that factor.
            looked_up = left[:, 0].at[:, index].get(mode="fill", fill_value=0)
            same_index = (index[:, None] == index).astype(dtype)
            gram_of_left = jnp.block([[gram(left)[0], looked_up], [looked_up.T, same_index]])

            products = gram_of_left * gram(right)
            lengths = (left.shape[-1], right.shape[-1])
            return rounded_up(products, positions, lengths, sum_dtype)

        # A loop, so that every row is computed by the same code.
        index, values = self._inside()
        return jax.lax.map(of_one_row, (self.left, self.right, index, values))

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum, the product and the looked-up rows of each example computed by themselves."""
        index, values = self._inside()
        dtype = self._sum_dtype()
        values = multiplied(wide(values).astype(dtype), weights.broadcast_to(index.shape))

        def add_looked_up(product: Array, row: Array, start: Any) -> Array:
            # The piece of the product holds the rows of the table from ``start`` on; others are dropped.
            width = product.shape[1]
            place = index[row] - start
            place = jnp.where((place >= 0) & (place < width), place, width)
            return product.at[0, place].add(values[row], mode="drop")

        # The long factor lies along the rows of the table.
        long, short = self.left[:, :, None], self.right[:, :, None]
        sums = sum_of_products(short, long, weights, dtype, long_first=True, finish=add_looked_up)
        return sums.reshape(self.table_shape)

    def _sum_dtype(self) -> Any:
        """Return the dtype of the weighted sum."""
        of_products = jnp.promote_types(wide_dtype(self.left), wide_dtype(self.right))
        return jnp.promote_types(of_products, wide_dtype(self.values))

    def _inside(self) -> tuple[Array, Array]:
        """Return the index, and the values with zeros where it is out of range."""
        num_rows = self.table_shape[0]
        inside = (self.index >= 0) & (self.index < num_rows)
        index = jnp.where(inside, self.index, num_rows).astype(jnp.int32)
        return index, jnp.where(inside[..., None], self.values, 0)
