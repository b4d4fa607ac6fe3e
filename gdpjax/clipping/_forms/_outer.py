"""Gradients that are outer products: of a weight that is multiplied by data.

For y = W^T x the gradient of W is x s^T, where s is the cotangent of y. Its norm is the product of two norms, so that
no cancellation is possible, and the weighted sum over examples is one contraction, X^T diag(w) S: what the gradient
costs without privacy.

A weight that is used at several positions t has the gradient sum_t left_t right_t^T. That sum can cancel, so its norm
is not read off the factors: it is formed before it is clipped.

Each axis of the weight is of one of three kinds:

* "l": the left factor (activations) has it.
* "r": the right factor (cotangents) has it.
* "b": both have it. Such an axis counts blocks: the groups of a batched product, or the layers of a scan over layers.

A dense layer y = x W has ``axes = (("l", 0), ("r", 0))``, and one whose weight is stored transposed has
``(("r", 0), ("l", 0))``.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, final

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._forms._abstract import AbstractFactor
from gdpjax.clipping._forms._formed import Full
from gdpjax.clipping._forms._scaled import RowWeights, ScaledSquares, largest_exponent, squared_norms, times, wide

Axis = tuple[str, int]
"""The kind, "l", "r" or "b", and the place among the axes of that kind in the factors."""


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outer(AbstractFactor):
    """A sum over t of outer products left[t] (x) right[t].

    Attributes:
      left: [T, *blocks, *axes of the left factor].
      right: [T, *blocks, *axes of the right factor].
      axes: for each axis of the weight its kind ("l", "r" or "b") and its place among the axes of
        that kind.
    """

    left: Array
    right: Array
    axes: tuple[Axis, ...] = dataclasses.field(metadata=dict(static=True))
    method: ClassVar[str] = "outer product"

    def fits(self, shape: tuple[int, ...]) -> bool:
        blocks, left, right = (self.of_kind(kind) for kind in ("b", "l", "r"))
        if len(self.axes) != len(shape) or sorted([*blocks, *left, *right]) != list(range(len(shape))):
            return False
        positions = self.left.shape[:1]
        of_left = (*positions, *(shape[axis] for axis in blocks + left))
        of_right = (*positions, *(shape[axis] for axis in blocks + right))
        return len(positions) == 1 and (self.left.shape, self.right.shape) == (of_left, of_right)

    @property
    def num_products(self) -> int:
        return self.left.shape[0]

    def of_kind(self, kind: str) -> list[int]:
        """Return the axes of the weight of this kind, in the order in which the factors hold them."""
        positions = []
        for axis, (own_kind, position) in enumerate(self.axes):
            if own_kind == kind:
                positions.append((position, axis))
        return [axis for _, axis in sorted(positions)]

    def matrices(self) -> tuple[Array, Array]:
        """Return the factors as matrices, left [K, T, d] and right [K, T, p], for K blocks of d rows and p columns."""
        num_blocks = len(self.of_kind("b"))

        def by_block(factor: Array) -> Array:
            blocks = math.prod(factor.shape[1 : 1 + num_blocks])
            by_position = factor.reshape(factor.shape[0], blocks, -1)
            return jnp.swapaxes(by_position, 0, 1)

        return by_block(self.left), by_block(self.right)

    def formed(self, shape: tuple[int, ...]) -> Array:
        left, right = self.matrices()
        dtype = jnp.promote_types(jnp.promote_types(left.dtype, right.dtype), jnp.float32)
        product = jnp.einsum("ktd,ktp->kdp", left, right, preferred_element_type=dtype)
        return self._arranged(product, shape)

    def scaled(self, scale: Array) -> "Outer":
        return Outer(self.left, times(self.right, scale), self.axes)

    def compact(self, shape: tuple[int, ...]) -> AbstractFactor:
        return self if self.num_products == 1 else Full(self.formed(shape))

    def leave_scan(self, is_scanned: bool) -> "Outer":
        if not is_scanned:
            # All iterations have the same weight: the positions of all of them are positions of one sum.
            left = self.left.reshape(-1, *self.left.shape[2:])
            right = self.right.reshape(-1, *self.right.shape[2:])
            return Outer(left, right, self.axes)

        # Each iteration has a block of its own, along a new first axis of the weight. The other blocks come after it.
        axes = [("b", 0)]
        for kind, position in self.axes:
            place = position + 1 if kind == "b" else position
            axes.append((kind, place))
        left = jnp.swapaxes(self.left, 0, 1)
        right = jnp.swapaxes(self.right, 0, 1)
        return Outer(left, right, tuple(axes))

    def squared_norm(self, dtype: Any) -> ScaledSquares:
        """Return the squared norm: the products of those of the factors, added up over the blocks."""
        left, right = self._of_one_position()
        of_left, of_right = squared_norms(left.astype(dtype)), squared_norms(right.astype(dtype))
        by_block = ScaledSquares(of_left.value * of_right.value, of_left.exponent + of_right.exponent)
        return by_block.total()

    def weighted(self, weight: RowWeights, shape: tuple[int, ...]) -> Array:
        left, right = self._weighted_factors(weight)
        return self._arranged(left[:, :, None] * right[:, None, :], shape)

    def weighted_sum(self, weights: RowWeights, shape: tuple[int, ...]) -> Array:
        """Return the weighted sum as one contraction over the examples, in full precision."""
        left, right = jax.vmap(Outer._weighted_factors)(self, weights)
        highest = jax.lax.Precision.HIGHEST
        if left.shape[1] == 1:  # a plain product, for which nothing needs to be transposed first
            product = jnp.einsum("nd,np->dp", left[:, 0], right[:, 0], precision=highest)[None]
        else:
            product = jnp.einsum("nkd,nkp->kdp", left, right, precision=highest)
        return self._arranged(product, shape)

    def _of_one_position(self) -> tuple[Array, Array]:
        """Return the factors of the only position, left [K, d] and right [K, p], for K blocks."""
        left, right = self.matrices()
        return wide(left[:, 0]), wide(right[:, 0])

    def _weighted_factors(self, weight: RowWeights) -> tuple[Array, Array]:
        """Return the two factors, [K, d] and [K, p], of the gradient times its weight."""
        left, right = self._of_one_position()
        by_block = weight.broadcast_to(left.shape[:1])

        # Where the left factor is zero so is the gradient, but the right factor may be of any size.
        left_exponent, largest = largest_exponent(left)
        by_block = by_block._replace(keep=by_block.keep & (largest > 0))

        # Each block's left factor is scaled by itself, so that the right one meets a power of two that it can hold.
        without_exponent = RowWeights(left_exponent, jnp.ones_like(left[..., 0]), by_block.keep)
        left = without_exponent.multiplied(left)
        remaining = by_block._replace(exponent=by_block.exponent - left_exponent)
        return left, remaining.multiplied(right)

    def _arranged(self, product: Array, shape: tuple[int, ...]) -> Array:
        """Return products of the factors, one matrix [K, d, p] for K blocks, as an array in the shape of the weight."""
        # Split K, d and p into the axes of the weight, which come in the order of the factors.
        order = [*self.of_kind("b"), *self.of_kind("l"), *self.of_kind("r")]
        grouped = product.reshape(*(shape[axis] for axis in order))
        return jnp.transpose(grouped, tuple(order.index(axis) for axis in range(len(order))))

    def along(self, axis: int, change: Callable[[Array, int], Array]) -> "Outer":
        """Return the gradient after a change along one axis of the weight.

        Args:
          axis: the axis of the weight.
          change: (array, axis of the array) to the changed array. It is applied to each factor that has the axis.
        """
        # A factor is laid out as [T, *blocks, *its own axes].
        kind, position = self.axes[axis]
        place = 1 + position
        if kind != "b":
            place += len(self.of_kind("b"))
        left = change(self.left, place) if kind in "bl" else self.left
        right = change(self.right, place) if kind in "br" else self.right
        return Outer(left, right, self.axes)
