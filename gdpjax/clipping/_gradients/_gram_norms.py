"""Norms of sums of outer products, sum_t left_t right_t^T, from two Gram matrices over the positions t.

    squares = gram_squared_norms(left, right)       # of left [N, T, K, d] and right [N, T, K, p]

The sum over pairs of positions

    |G|^2 = sum_{t,s} (left_t . left_s) (right_t . right_s)

needs no array of the size of G. But its terms may cancel, and whoever chooses the data chooses how far. Let

    S = sum_t |left_t| |right_t|.

Rounding moves the computed sum by at most kappa S^2. It moves G itself, where `_position_products` computes it for the
weighted sum, by at most gamma S. So the clip rule is given the norm

    sqrt(max(0, computed) + kappa S^2) + gamma S,

which is at least the norm of G, and of what the row adds to a weighted sum. docs/theory/positions.md derives kappa and
gamma, and says what the bound costs: some 0.1 to 0.6 % where positions are orthogonal.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import bounded_sum, most_sum_error_terms, power_of_two, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients._scaled import LOWEST_EXPONENT, ScaledSquares, squared_norms, wide

_PIECE = 248
"""The least number of entries of one contraction. Longer dot products are cut into pieces, which keeps their rounding
small."""
_SECOND_ORDER = 1.05
"""Covers products of two and more roundings, which a count of roundings leaves out."""
_FEW_ROUNDINGS = 12
"""The roundings of scaling, of square roots, and of the last additions and multiplications."""
_MOST_RELATIVE_ERROR = 0.01
"""Roundings that could amount to more are refused: products of them would no longer be small."""


def gram_squared_norms(left: Array, right: Array, dtype: Any = None) -> ScaledSquares:
    """Return the squared norms of sum_t left[n, t, k] (x) right[n, t, k] over all blocks k, rounded up.

    Args:
      left: [N, T, K, d].
      right: [N, T, K, p].
      dtype: the dtype of the norms. By default it is that of the weighted sum, and it must not be narrower.
    """
    sum_dtype = jnp.promote_types(wide_dtype(left), wide_dtype(right))
    dtype = sum_dtype if dtype is None else dtype

    def of_one_row(factors: tuple[Array, Array]) -> ScaledSquares:
        left, right = (wide(x).astype(dtype) for x in factors)

        # Scale every factor by itself, and then the right ones to the largest position of their block.
        of_left = squared_norms(left)
        of_right = squared_norms(right)
        positions = relative_positions(of_left, of_right)
        left = scaled_down(left, of_left)
        right = scaled_down(right, of_right) * positions.scale[..., None]

        # (left_t . left_s) (right_t . right_s) for all pairs of positions, added up and rounded up.
        products = gram(left) * gram(right)
        lengths = (left.shape[-1], right.shape[-1])
        return rounded_up(products, positions, lengths, sum_dtype)

    # This is a loop, so that every row is computed by the same code.
    return jax.lax.map(of_one_row, (left, right))


class RelativePositions(NamedTuple):
    """The sizes of the positions of one example, relative to the largest of their block.

    Attributes:
      scale: [T, K], powers of two, at most one. They scale the product of the two scaled factors of a position.
      sizes: [T, K], |left_t| |right_t| / 2^exponent.
      exponent: int32 [K], the exponent of the largest position.
    """

    scale: Array
    sizes: Array
    exponent: Array


def relative_positions(of_left: ScaledSquares, of_right: ScaledSquares) -> RelativePositions:
    """Return the sizes of positions, given the squared norms [T, K] of their factors."""
    # |left_t| |right_t|, NaN where a factor is not finite.
    sizes = of_left.root() * of_right.root()
    is_finite = jnp.isfinite(of_left.value + of_right.value)
    sizes = jnp.where(is_finite, sizes, jnp.nan)

    # A position whose product is zero has no exponent, so it must not decide the largest one.
    exponents = jnp.where(sizes == 0, LOWEST_EXPONENT, of_left.exponent + of_right.exponent)
    largest = exponents.max(axis=0)
    largest = jnp.where(largest == LOWEST_EXPONENT, 0, largest)

    scale = power_of_two(exponents - largest, sizes.dtype)
    return RelativePositions(scale, sizes * scale, largest)


def scaled_down(x: Array, squares: ScaledSquares) -> Array:
    """Return vectors divided by 2^exponent, where the exponents are those of their squared norms."""
    return x * power_of_two(-squares.exponent, x.dtype)[..., None]


def gram(x: Array) -> Array:
    """Return the products of all pairs of positions [K, T, T] of x [T, K, d].

    Each is off by at most `_dot_roundings` of d roundings, in units of the product of its two norms.
    """
    size = x.shape[-1]
    length = _piece_length(size)
    num_pieces = size // length
    if num_pieces < 2:
        return _products_of_pairs(x)

    def add_piece(number: Array, sums: Array) -> Array:
        piece = jax.lax.dynamic_slice_in_dim(x, number * length, length, axis=-1)
        # Without the barrier the compiler might make one long sum of the pieces.
        return sums + jax.lax.optimization_barrier(_products_of_pairs(piece))

    sums = jnp.zeros((x.shape[1], x.shape[0], x.shape[0]), x.dtype)
    sums = jax.lax.fori_loop(0, num_pieces, add_piece, sums)
    if num_pieces * length < size:
        rest = x[..., num_pieces * length :]
        sums = sums + jax.lax.optimization_barrier(_products_of_pairs(rest))
    return sums


def _products_of_pairs(x: Array) -> Array:
    """Return the products of all pairs of positions [K, T, T] of x [T, K, d], in full precision, by one contraction."""
    highest = jax.lax.Precision.HIGHEST
    if x.shape[1] == 1:  # a plain product, for which nothing needs to be transposed first
        return jnp.einsum("td,sd->ts", x[:, 0], x[:, 0], precision=highest)[None]
    return jnp.einsum("tkd,skd->kts", x, x, precision=highest)


def _piece_length(size: int) -> int:
    """Return the number of entries of one piece of a dot product of this length."""
    return max(_PIECE, math.isqrt(size))


def _dot_roundings(size: int) -> int:
    """Return the roundings of a dot product in `gram`: those of one piece, in any order, and of adding up pieces."""
    length = _piece_length(size)
    if size < 2 * length:
        return size
    return length + size // length


def rounded_up(
    products: Array, positions: RelativePositions, lengths: tuple[int, int], sum_dtype: Any
) -> ScaledSquares:
    """Return the squared norm: the sum of the products of pairs, rounded up as the docstring of the module says.

    Args:
      products: (left_t . left_s) (right_t . right_s), [K, T, T].
      positions: the sizes of the positions.
      lengths: the numbers of entries of the left and of the right factors.
      sum_dtype: the dtype of the weighted sum.
    """
    # |G|^2 as it is computed, and S, for each block.
    num_blocks, num_positions, _ = products.shape
    computed = bounded_sum(products.reshape(num_blocks, -1))
    size = bounded_sum(jnp.swapaxes(positions.sizes, 0, 1))

    # Rounding moves the square by at most kappa S^2, and the product of the row by at most gamma S.
    unit = _unit_roundoff(products.dtype)
    coarser_unit = max(unit, _unit_roundoff(sum_dtype))
    kappa = allowance(_gram_roundings(num_positions, lengths), unit)
    gamma = allowance(num_positions + _FEW_ROUNDINGS, coarser_unit)

    # sqrt(max(0, computed) + kappa S^2) + gamma S, NaN where S is.
    upper_square = jnp.maximum(computed, 0) + kappa * jnp.square(size)
    norm = ScaledSquares(upper_square, positions.exponent).root() + gamma * size
    return ScaledSquares(jnp.square(norm), positions.exponent).total()


def _gram_roundings(num_positions: int, lengths: tuple[int, int]) -> int:
    """Return the roundings of the sum over pairs of positions, in units of S^2."""
    of_dot_products = _dot_roundings(lengths[0]) + _dot_roundings(lengths[1])
    of_the_sum = most_sum_error_terms(num_positions**2)
    return of_dot_products + of_the_sum + _FEW_ROUNDINGS


def _unit_roundoff(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps) / 2


def allowance(roundings: int, unit: float) -> float:
    """Return a bound on so many roundings of a value, relative to it."""
    if roundings * unit > _MOST_RELATIVE_ERROR:
        raise ValueError(f"{roundings} roundings of {unit:.1g} each are too many to bound the norm of a gradient")
    return _SECOND_ORDER * roundings * unit
