"""Gradients that are outer products: of a weight that is multiplied by data.

For y = W^T x the gradient of W is x s^T, where s is the cotangent of y. Its norm is the product of two norms, so that
no cancellation is possible, and the weighted sum over examples is one contraction, X^T diag(w) S: what the gradient
costs without privacy.

A weight that is used at several positions t has the gradient sum_t left_t right_t^T. That sum can cancel, so its norm
is not read off the factors: it is formed before it is clipped.

The left factor (activations) has some axes of the weight, and the right factor (cotangents) the others. For a dense
layer y = x W they have the axes 0 and 1; where the weight is stored transposed, 1 and 0.
"""

import dataclasses
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._forms._abstract import AbstractFactor, Full
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares, largest_exponent, squared_norms, wide


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outer(AbstractFactor):
    """A sum over t of outer products left[t] (x) right[t].

    Attributes:
      left: [T, *axes of the left factor].
      right: [T, *axes of the right factor].
      left_axes: the axes of the weight that the left factor has, in its order.
      right_axes: those of the right factor.
    """

    left: Array
    right: Array
    left_axes: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))
    right_axes: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))
    method: ClassVar[str] = "outer product"

    def fits(self, shape: tuple[int, ...]) -> bool:
        if sorted(self._axes) != list(range(len(shape))):
            return False
        positions = self.left.shape[:1]
        of_left = (*positions, *(shape[axis] for axis in self.left_axes))
        of_right = (*positions, *(shape[axis] for axis in self.right_axes))
        return len(positions) == 1 and (self.left.shape, self.right.shape) == (of_left, of_right)

    @property
    def num_products(self) -> int:
        """The number of outer products that are added up."""
        return self.left.shape[0]

    @property
    def _axes(self) -> tuple[int, ...]:
        """The axes of the weight in the order of the factors."""
        return (*self.left_axes, *self.right_axes)

    def formed(self, shape: tuple[int, ...]) -> Array:
        left, right = (factor.reshape(self.num_products, -1) for factor in (self.left, self.right))
        dtype = jnp.promote_types(jnp.promote_types(left.dtype, right.dtype), jnp.float32)
        return self._arranged(jnp.einsum("td,tp->dp", left, right, preferred_element_type=dtype), shape)

    def compact(self, shape: tuple[int, ...]) -> AbstractFactor:
        return self if self.num_products == 1 else Full(self.formed(shape))

    def over_iterations(self) -> "Outer":
        # The positions of all iterations are positions of one sum.
        left = self.left.reshape(-1, *self.left.shape[2:])
        right = self.right.reshape(-1, *self.right.shape[2:])
        return Outer(left, right, self.left_axes, self.right_axes)

    def squared_norm(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm: the product of those of the factors."""
        of_left, of_right = (squared_norms(factor.astype(dtype)) for factor in self._of_one_position())
        return ScaledSquares(of_left.value * of_right.value, of_left.exponent + of_right.exponent)

    def weighted_sum(self, weights: RowWeights, shape: tuple[int, ...]) -> Array:
        """Return the weighted sum as one contraction over the examples, in full precision."""
        left, right = jax.vmap(Outer._weighted_factors)(self, weights)
        return self._arranged(jnp.einsum("nd,np->dp", left, right, precision=jax.lax.Precision.HIGHEST), shape)

    def _of_one_position(self) -> tuple[Array, Array]:
        """Return the factors of the only position as vectors."""
        return wide(self.left.reshape(-1)), wide(self.right.reshape(-1))

    def _weighted_factors(self, weight: RowWeights) -> tuple[Array, Array]:
        """Return two vectors whose outer product is the gradient times its weight."""
        left, right = self._of_one_position()

        # Where the left factor is zero so is the gradient, but the right factor may be of any size.
        left_exponent, largest = largest_exponent(left)
        weight = weight._replace(keep=weight.keep & (largest > 0))

        # The left factor is scaled by itself, so that the right one meets a power of two that it can hold.
        without_exponent = RowWeights(left_exponent, jnp.ones_like(largest), weight.keep)
        remaining = weight._replace(exponent=weight.exponent - left_exponent)
        return without_exponent.multiplied(left), remaining.multiplied(right)

    def _arranged(self, product: Array, shape: tuple[int, ...]) -> Array:
        """Return a product of the factors, [d, p], as an array in the shape of the weight."""
        # Split d and p into the axes of the weight, which come in the order of the factors.
        grouped = product.reshape([shape[axis] for axis in self._axes])
        return jnp.moveaxis(grouped, range(grouped.ndim), self._axes)
