"""Gradients of a weight that is used at many positions, sum_t left_t right_t^T, without forming them for all rows.

    gradients = PositionProducts(left, right, axes, weight.shape)
    gradients.squared_norms(dtype), gradients.weighted_sum(weights)

Here W [d, p] is a weight, G_i the gradient of row i, and c_i the row's weight. For the head of a language model, G_i
has as many entries as a vocabulary times a width. `_gram_norms` computes the norm of G_i by (d + p) T^2
multiplications, and rounds it up by the error that it can have.

The weighted sum must not be one contraction over rows and positions. The error of that is in proportion to sum_i c_i
S_i, where S_i = sum_t |left_t| |right_t|, and clipping does not bound it: where positions cancel, S_i can be larger
than |G_i| by any factor. So each row's product F_i, the computed c_i G_i, is computed by itself, always by the same
code, and then the F_i are added up. Then

* F_i is a function of row i alone, as a formed gradient is. Its error is a part of what row i adds, and not an error of
  the sum.
* |F_i| <= c_i (|G_i| + gamma S_i), and the norm that the rule sees includes gamma S_i.

The F_i are added within the same budget as other rows. Only a piece of one F_i is held at a time.
docs/theory/positions.md has the derivation.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import power_of_two, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients._abstract import AbstractRowGradients
from gdpjax.clipping._gradients._gram_norms import gram_squared_norms
from gdpjax.clipping._gradients._running_sum import RunningSum
from gdpjax.clipping._gradients._scaled import RowWeights, ScaledSquares, largest_exponent, wide
from gdpjax.clipping._rounding_budget import RoundingBudget
from gdpjax.clipping._weight_axes import Axis, arrange

_PIECE = 2**19
"""Entries of one row's product that are computed and added at a time: they should stay in a cache."""
_ALIGNMENT = 16
"""The width of a piece is an odd multiple of half this number of entries."""

_LEAST_ENTRIES = 2**22
"""A gradient with at least so many entries is large: it is worth not forming it."""
_GRAM_COST = 2
"""Positions are kept where the sum takes at least this many times the multiplications of the Gram matrices."""


class AbstractPositionProducts(AbstractRowGradients):
    """Gradients that are sums of outer products, and whose `weighted_sum` computes each row by itself."""

    def formed(self) -> Array:
        """Return the gradients as one array, computed as weighted rows with a weight of one."""
        keep = jnp.ones(self.num_rows, bool)
        ones = RowWeights(jnp.zeros(self.num_rows, jnp.int32), keep.astype(jnp.float32), keep)
        return self.weighted_rows(ones)

    def weighted_rows(self, weights: RowWeights) -> Array:
        """Return the weighted gradients as one array, each computed by itself."""

        def of_one_row(row: tuple[Any, RowWeights]) -> Array:
            gradients, weights = jax.tree.map(lambda x: x[None], row)
            return gradients.weighted_sum(weights)

        return jax.lax.map(of_one_row, (self, weights))

    def add_to(self, total: RunningSum, weights: RowWeights, bound: Array, budget: RoundingBudget) -> RunningSum:
        """Add the weighted rows to a running sum, in parts of one size.

        A smaller last part would be other code, which might round a row's product differently.
        """
        size = self.rows_per_part(budget)
        missing = -self.num_rows % size
        if missing == 0:
            return super().add_to(total, weights, bound, budget)

        def filled(x: Array) -> Array:
            copies = jnp.broadcast_to(x[:1], (missing, *x.shape[1:]))
            return jnp.concatenate([x, copies])

        # Fill the last part up with copies of the first row that are not kept.
        weights = RowWeights(*(filled(x) for x in weights))
        is_own_row = jnp.arange(self.num_rows + missing) < self.num_rows
        weights = weights._replace(keep=weights.keep & is_own_row)
        return self.map_rows(filled).add_to(total, weights, bound, budget)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PositionProducts(AbstractPositionProducts):
    """Sums over positions of outer products left (x) right, in K blocks.

    Attributes:
      left: [N, T, K, d].
      right: [N, T, K, p].
      axes: for each axis of the weight, which factor has it; see `_weight_axes`.
      weight_shape: the shape of the weight.
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
        return f"outer products at {self.left.shape[1]} positions"

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norms from Gram matrices, rounded up."""
        return gram_squared_norms(self.left, self.right, dtype)

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum, in which the product of each row is computed by itself."""
        dtype = jnp.promote_types(wide_dtype(self.left), wide_dtype(self.right))
        if self.left.shape[-1] <= self.right.shape[-1]:
            sums = sum_of_products(self.left, self.right, weights, dtype, long_first=False)
        else:
            sums = sum_of_products(self.right, self.left, weights, dtype, long_first=True)
        return arrange(sums, self.axes, self.weight_shape)


def sum_of_products(
    short: Array,
    long: Array,
    weights: RowWeights,
    dtype: Any,
    long_first: bool,
    finish: Callable[[Array, Array, Any], Array] | None = None,
) -> Array:
    """Return sum_n weights[n] sum_t short[n, t] (x) long[n, t], one row after the other.

    The sum is taken along the long factor in pieces, so that the product of a row is never held whole.

    Args:
      short: [N, T, K, d].
      long: [N, T, K, p]; a piece of it has some of the p entries.
      weights: the weights of the rows.
      dtype: the dtype of the sum.
      long_first: whether to return [K, p, d] in place of [K, d, p].
      finish: a function that completes the piece of a row's product, such as by adding other parts of its gradient. It
        is given (the piece, the number of the row, where the piece starts along the long factor).
    """
    num_rows, num_positions, num_blocks, num_short = short.shape
    num_long = long.shape[-1]
    short, long_weights = _scaled_factor(wide(short).astype(dtype), weights)

    def zeros(width: int) -> Array:
        shape = (width, num_short) if long_first else (num_short, width)
        return jnp.zeros((num_blocks, *shape), dtype)

    def sum_of_piece(start: Any, width: int) -> Array:
        """Return the sum over rows, at the ``width`` entries of the long factor from ``start`` on."""

        def add_row(row: Array, sums: Array) -> Array:
            piece = jax.lax.dynamic_slice(long, (row, 0, 0, start), (1, num_positions, num_blocks, width))
            weighted = multiplied(wide(piece[0]).astype(dtype), long_weights[row])
            product = _product(short[row], weighted, long_first)
            if finish is not None:
                product = finish(product, row, start)

            # The barrier keeps the product apart from the sum. If the compiler let the product add directly to the
            # sums, its rounding would depend on what they hold, and not only on this row.
            return sums + jax.lax.optimization_barrier(product)

        return jax.lax.fori_loop(0, num_rows, add_row, zeros(width))

    width = _piece_length(num_long, num_blocks * num_short)
    if width == num_long:
        return sum_of_piece(0, num_long)

    # Compute the sum piece by piece, and put each piece into its place.
    long_axis = 1 if long_first else 2

    def fill(start: Any, width: int, sums: Array) -> Array:
        piece = sum_of_piece(start, width)
        return jax.lax.dynamic_update_slice_in_dim(sums, piece, start, axis=long_axis)

    def fill_piece(number: Array, sums: Array) -> Array:
        return fill(number * width, width, sums)

    num_pieces = num_long // width
    sums = jax.lax.fori_loop(0, num_pieces, fill_piece, zeros(num_long))

    # The last piece is shorter.
    start = num_pieces * width
    if start < num_long:
        sums = fill(start, num_long - start, sums)
    return sums


def _piece_length(num_long: int, num_short: int) -> int:
    """Return how many entries of the long factor are taken at a time."""
    width = max(_PIECE // num_short, 1)
    if width >= num_long:
        return num_long

    # Where rows of memory begin a power of two apart, they share few places of a cache. So the width is an odd multiple
    # of half the alignment.
    half = _ALIGNMENT // 2
    if width >= _ALIGNMENT + half:
        return width - width % _ALIGNMENT - half
    return width


def _scaled_factor(factor: Array, weights: RowWeights) -> tuple[Array, RowWeights]:
    """Scale one factor of outer products by powers of two, so that the weights of the other one are in range.

    Args:
      factor: [N, T, K, d].
      weights: the weights of the rows, [N].

    Returns:
      The scaled factor, and the weights [N, T, K] of the other factor.
    """
    exponent, largest = largest_exponent(factor)
    weights = weights.broadcast_to(exponent.shape)

    # Where this factor is zero, the product is zero. The other factor may then be of any size, and is dropped.
    weights = weights._replace(keep=weights.keep & (largest > 0))

    factor = weights.scaled(factor, power_of_two(-exponent, factor.dtype))
    remaining = weights._replace(exponent=weights.exponent - exponent)
    return factor, remaining


def multiplied(x: Array, weights: RowWeights) -> Array:
    """Return the vectors along the last axis of x times their weights, rounded once."""
    power, rest = weights.factors(x.dtype)
    # Where x is zero, its weight may be out of range.
    rest = jnp.minimum(rest, np.finfo(x.dtype).max)
    return weights.scaled(x, power) * rest[..., None]


def _product(short: Array, long: Array, long_first: bool) -> Array:
    """Return the sum over positions of outer products of [T, K, d] and [T, K, p], in full precision."""
    highest = jax.lax.Precision.HIGHEST
    first, second = (long, short) if long_first else (short, long)
    if short.shape[1] == 1:  # a plain product, for which nothing needs to be transposed first
        return jnp.einsum("td,tp->dp", first[:, 0], second[:, 0], precision=highest)[None]
    return jnp.einsum("tkd,tkp->kdp", first, second, precision=highest)


def positions_pay(num_positions: int, left: int, right: int) -> bool:
    """Return whether a gradient of ``left`` by ``right`` entries should stay a sum over so many positions.

    Forming the gradients of a chunk takes memory, and passes over it. Keeping the positions takes the multiplications
    of the Gram matrices. So positions are kept where the gradient is large and the positions are few
    (docs/theory/positions.md).
    """
    entries = left * right
    is_large = entries >= _LEAST_ENTRIES
    has_few_positions = _GRAM_COST * num_positions * (left + right) <= entries
    return is_large and has_few_positions
