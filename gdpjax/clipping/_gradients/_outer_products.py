"""Gradients that are one outer product for each example: a weight that meets data once.

    gradients = OuterProducts(left, right, axes, weight.shape)
    gradients.squared_norms(dtype), gradients.weighted_sum(weights)

For y = W^T x the gradient of W is x s^T, where s is the cotangent of y. Its norm is the product of two norms, so that
no cancellation is possible, and the weighted sum over rows is one contraction, X^T diag(w) S: what the gradient costs
without privacy. A weight with K blocks, such as the layers of a scan over layers, has K outer products.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._gradients._abstract import AbstractRowGradients
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, largest_exponent, squared_norms, wide
from gdpjax.clipping._weight_axes import Axis, arrange


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class OuterProducts(AbstractRowGradients):
    """Outer products left (x) right in K blocks.

    Attributes:
      left: [N, K, d].
      right: [N, K, p].
      axes: for each axis of the weight, which factor has it; see `_weight_axes`.
      weight_shape: shape of the weight.
    """

    left: Array
    right: Array
    axes: tuple[Axis, ...] = dataclasses.field(metadata=dict(static=True))
    weight_shape: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight_shape

    @property
    def method(self) -> str:
        return "outer product"

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norms: products of those of the factors, added over the blocks."""
        left = squared_norms(wide(self.left).astype(dtype))
        right = squared_norms(wide(self.right).astype(dtype))
        by_block = ScaledSquares(left.value * right.value, left.exponent + right.exponent)
        return by_block.total()

    def weighted_factors(self, weights: RowWeights) -> tuple[Array, Array]:
        """Return the two factors of the weighted rows."""
        left, right = wide(self.left), wide(self.right)
        by_block = weights.broadcast_to(left.shape[:2])

        # Where the left factor is zero so is the product, but nothing bounds the right factor.
        left_exponent, largest = largest_exponent(left)
        by_block = by_block._replace(keep=by_block.keep & (largest > 0))

        # Each block's left factor is scaled by itself, so that the right one meets a power of two that it can hold.
        to_one = RowWeights(left_exponent, jnp.ones_like(left[..., 0]), by_block.keep)
        left = to_one.multiplied(left)
        remaining = by_block._replace(exponent=by_block.exponent - left_exponent)
        right = remaining.multiplied(right)
        return left, right

    def formed(self) -> Array:
        """Return the outer products, formed."""
        return self._products(wide(self.left), wide(self.right))

    def weighted_rows(self, weights: RowWeights) -> Array:
        """Return the weighted rows, formed."""
        left, right = self.weighted_factors(weights)
        return self._products(left, right)

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum as one contraction over the rows."""
        left, right = self.weighted_factors(weights)
        return arrange(contracted(left, right), self.axes, self.weight_shape)

    def _products(self, left: Array, right: Array) -> Array:
        """Form the outer products of [N, K, d] and [N, K, p], with the axes of the weight."""
        blocks = left[..., None] * right[..., None, :]
        return arrange(blocks, self.axes, self.weight_shape)


def contracted(left: Array, right: Array) -> Array:
    """Contract [n, k, d] and [n, k, p] over n to [k, d, p], in full precision."""
    highest = jax.lax.Precision.HIGHEST
    if left.shape[1] == 1:  # a plain product, for which nothing needs to be transposed first
        return jnp.einsum("nd,np->dp", left[:, 0], right[:, 0], precision=highest)[None]
    return jnp.einsum("nkd,nkp->kdp", left, right, precision=highest)
