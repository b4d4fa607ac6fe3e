"""Gradients of a weight that an example uses at many positions: sum_t left_t right_t^T, never held for all rows at once.

The norm of such a gradient G comes from two Gram matrices over the positions,

    |G|^2 = sum_{t,s} (left_t . left_s) (right_t . right_s),

a sum whose terms may cancel. Let S = sum_t |left_t| |right_t|. Rounding moves that sum by at most kappa S^2, and moves
the product of one row, which the weighted sum takes row by row, by at most gamma S. The norm that a clip rule sees is

    sqrt(max(0, computed) + kappa S^2) + gamma S.

It is at least the norm of what the row adds to the sum, however much the positions cancel. `docs/theory/positions.md`
derives kappa and gamma, and says what the bound costs.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import bounded_sum, most_sum_error_terms, power_of_two, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._factors import Axis, arrange
from gdpjax.clipping._rows import Square as ScaledSquares
from gdpjax.clipping._rows import Weights, halves, kept, scale, scaled_square, total, wide

_HIGHEST = jax.lax.Precision.HIGHEST
_GRAM_PIECE = 504
"""Entries over which one contraction runs, at least; longer ones are taken in pieces to keep their rounding small."""
_SUM_PIECE = 2**19
"""Entries of one row's product that are computed and added at a time: they should stay in a cache."""
_LOWEST = -(2**20)
"""The exponent of zero."""
_SECOND_ORDER = 1.05
"""Covers products of roundings, which a first-order count of them leaves out."""
_FEW_ROUNDINGS = 12
"""Scaling, square roots, and the last additions and multiplications."""


def gram_squared_norms(left: Array, right: Array, dtype: Any = None) -> ScaledSquares:
    """Return the squared norms of sum_t left[n, t, k] (x) right[n, t, k] over all blocks k, rounded up.

    Args:
      left: [N, T, K, d].
      right: [N, T, K, p].
      dtype: of the norms; at least that of the weighted sum, which is the default.
    """
    sum_dtype = _sum_dtype(left, right)
    dtype = sum_dtype if dtype is None else dtype

    def of_one_row(factors: tuple[Array, Array]) -> ScaledSquares:
        left, right = (wide(x).astype(dtype) for x in factors)
        lengths = (left.shape[-1], right.shape[-1])

        # Every factor is scaled by itself, and then the right ones to the largest position of their block.
        of_left, of_right = scaled_square(left), scaled_square(right)
        position = _relative_positions(of_left, of_right)
        left = left * power_of_two(-of_left.exponent, dtype)[..., None]
        right = right * power_of_two(-of_right.exponent, dtype)[..., None] * position.scale[..., None]

        products = _gram(left) * _gram(right)
        return _rounded_up(products, position, lengths, sum_dtype)

    # A loop, so that every row is computed by the same code.
    return jax.lax.map(of_one_row, (left, right))


def _sum_dtype(left: Array, right: Array) -> Any:
    """The dtype in which the rows are added: float32 or wider."""
    return jnp.promote_types(wide_dtype(left), wide_dtype(right))


class _Positions(NamedTuple):
    """How large the positions of one example are, relative to the largest of their block.

    Attributes:
      scale: powers of two for the products of scaled factors, at most one; [T, K].
      sizes: |left_t| |right_t| on that scale; [T, K].
      exponent: of the largest position; [K].
    """

    scale: Array
    sizes: Array
    exponent: Array


def _relative_positions(of_left: ScaledSquares, of_right: ScaledSquares) -> _Positions:
    """Compare positions, given the squared norms of their factors [T, K]."""
    sizes = _root(of_left.value) * _root(of_right.value)
    # A position whose product is zero must not decide the scale of the others.
    exponents = jnp.where(sizes == 0, _LOWEST, of_left.exponent + of_right.exponent)
    largest = exponents.max(axis=0)
    largest = jnp.where(largest == _LOWEST, 0, largest)
    scale = power_of_two(exponents - largest, sizes.dtype)
    return _Positions(scale, sizes * scale, largest)


def _root(value: Array) -> Array:
    """The square root, with slope zero at zero."""
    return jnp.where(value == 0, 0, jnp.sqrt(jnp.where(value == 0, 1, value)))


def _gram(x: Array) -> Array:
    """Return the products of all pairs of positions [K, T, T] of x [T, K, d].

    Each is off by at most `_dot_roundings` of d roundings, in units of the product of its two norms.
    """
    size = x.shape[-1]
    length = _gram_piece(size)
    num_pieces = size // length
    if num_pieces < 2:
        return _products_of_pairs(x)

    def add_piece(number: Array, gram: Array) -> Array:
        piece = jax.lax.dynamic_slice_in_dim(x, number * length, length, axis=-1)
        # A contraction that went on adding to the others would be one long sum.
        return gram + jax.lax.optimization_barrier(_products_of_pairs(piece))

    zeros = jnp.zeros((x.shape[1], x.shape[0], x.shape[0]), x.dtype)
    gram = jax.lax.fori_loop(0, num_pieces, add_piece, zeros)
    if size > num_pieces * length:
        gram = gram + jax.lax.optimization_barrier(_products_of_pairs(x[..., num_pieces * length :]))
    return gram


def _products_of_pairs(x: Array) -> Array:
    if x.shape[1] == 1:  # a plain product, for which nothing needs to be transposed first
        return jnp.einsum("td,sd->ts", x[:, 0], x[:, 0], precision=_HIGHEST)[None]
    return jnp.einsum("tkd,skd->kts", x, x, precision=_HIGHEST)


def _gram_piece(size: int) -> int:
    return max(_GRAM_PIECE, math.isqrt(size))


def _dot_roundings(size: int) -> int:
    """Roundings of a dot product in `_gram`: those of a piece in any order, and those of adding up the pieces."""
    length = _gram_piece(size)
    return size if size < 2 * length else length + size // length


def _rounded_up(products: Array, position: _Positions, lengths: tuple[int, int], sum_dtype: Any) -> ScaledSquares:
    """Add up the products of pairs, and round up by what they and the row in the weighted sum can be off by.

    Args:
      products: (left_t . left_s) (right_t . right_s) [K, T, T].
      position: the sizes of the positions.
      lengths: over how many entries the dot products of left and right factors run.
      sum_dtype: the dtype of the weighted sum.
    """
    num_blocks, num_positions, _ = products.shape
    computed = bounded_sum(products.reshape(num_blocks, -1))
    size = bounded_sum(jnp.swapaxes(position.sizes, 0, 1))
    kappa = _allowance(_gram_roundings(num_positions, lengths), _unit(products.dtype))
    gamma = _allowance(num_positions + _FEW_ROUNDINGS, max(_unit(products.dtype), _unit(sum_dtype)))
    norm = _root(jnp.maximum(computed, 0) + kappa * jnp.square(size)) + gamma * size
    return total(ScaledSquares(jnp.square(norm), position.exponent))


def _gram_roundings(num_positions: int, lengths: tuple[int, int]) -> int:
    """Roundings of the sum over pairs of positions, in units of S^2."""
    of_dot_products = _dot_roundings(lengths[0]) + _dot_roundings(lengths[1])
    return of_dot_products + most_sum_error_terms(num_positions**2) + _FEW_ROUNDINGS


def _unit(dtype: Any) -> float:
    return float(jnp.finfo(dtype).eps) / 2


def _allowance(roundings: int, unit: float) -> float:
    """What so many roundings can amount to."""
    if roundings * unit > 0.01:
        raise ValueError(f"{roundings} roundings of {unit:.1g} each are too many to bound the norm of a gradient")
    return _SECOND_ORDER * roundings * unit


Finish = Callable[[Array, Array, Any], Array]
"""(piece of a row's product, row, start of the piece) to that piece of the row."""


def _sum_of_products(
    short: Array, long: Array, weights: Weights, dtype: Any, long_first: bool, finish: Finish | None = None
) -> Array:
    """Return sum_n weights[n] sum_t short[n, t] (x) long[n, t], one row after the other.

    The entries are taken some at a time, along the long factor, so that no row's product is ever whole.

    Args:
      short: [N, T, K, d].
      long: [N, T, K, p].
      weights: of the rows.
      dtype: of the sum.
      long_first: return [K, p, d], and not [K, d, p].
      finish: adds what else there is to a row.
    """
    num_rows, num_positions, num_blocks, num_short = short.shape
    num_long = long.shape[-1]
    short, long_weights = _scaled_factor(wide(short).astype(dtype), weights)

    def shape_of(width: int) -> tuple[int, int, int]:
        return (num_blocks, width, num_short) if long_first else (num_blocks, num_short, width)

    def sum_of_piece(start: Any, width: int) -> Array:
        def add_row(row: Array, sums: Array) -> Array:
            piece = jax.lax.dynamic_slice(long, (row, 0, 0, start), (1, num_positions, num_blocks, width))
            weighted = _multiplied(wide(piece[0]).astype(dtype), long_weights[row])
            product = _product(short[row], weighted, long_first)
            product = product if finish is None else finish(product, row, start)
            # A product that went on adding to the sums would be rounded by what they hold, and not by its own row.
            return sums + jax.lax.optimization_barrier(product)

        return jax.lax.fori_loop(0, num_rows, add_row, jnp.zeros(shape_of(width), dtype))

    width = _sum_piece(num_long, num_blocks * num_short)
    if width == num_long:
        return sum_of_piece(0, num_long)

    def fill(start: Any, width: int, sums: Array) -> Array:
        axis = 1 if long_first else 2
        return jax.lax.dynamic_update_slice_in_dim(sums, sum_of_piece(start, width), start, axis=axis)

    whole = num_long // width * width
    sums = jnp.zeros(shape_of(num_long), dtype)
    sums = jax.lax.fori_loop(0, num_long // width, lambda number, sums: fill(number * width, width, sums), sums)
    return fill(whole, num_long - whole, sums) if whole < num_long else sums


def _sum_piece(num_long: int, num_short: int) -> int:
    """Entries of the long factor that are taken at a time."""
    width = max(_SUM_PIECE // num_short, 1)
    if width >= num_long:
        return num_long
    # With lines a power of two apart, a product would use few places of a cache.
    return width - width % 16 - 8 if width > 24 else width


def _scaled_factor(factor: Array, weights: Weights) -> tuple[Array, Weights]:
    """Scale a factor [N, T, K, d] by powers of two, position by position, and return the weights of the other one."""
    own, largest = scale(factor)
    spread = Weights(*(jnp.broadcast_to(part[:, None, None], own.shape) for part in weights))
    # Nothing bounds a factor that meets zeros.
    keep = spread.keep & (largest > 0)
    factor = kept(factor, spread._replace(keep=keep), power_of_two(-own, factor.dtype))
    return factor, Weights(spread.exponent - own, spread.coefficient, keep)


def _multiplied(x: Array, weights: Weights) -> Array:
    """Multiply the vectors along the last axis of x by their weights, with one rounding."""
    power, rest = halves(weights, x.dtype)
    # Where x is zero nothing bounds what it is multiplied by.
    rest = jnp.minimum(rest, np.finfo(x.dtype).max)
    return kept(x, weights, power) * rest[..., None]


def _product(short: Array, long: Array, long_first: bool) -> Array:
    """Contract [T, K, d] and [T, K, p] over the positions, in full precision."""
    first, second = (long, short) if long_first else (short, long)
    if short.shape[1] == 1:
        return jnp.einsum("td,tp->dp", first[:, 0], second[:, 0], precision=_HIGHEST)[None]
    return jnp.einsum("tkd,tkp->kdp", first, second, precision=_HIGHEST)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class PositionProducts:
    """Sums over positions of outer products left (x) right, in K blocks.

    Attributes:
      left: [N, T, K, d].
      right: [N, T, K, p].
      axes: for each axis of the weight, which factor has it; see `_factors`.
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
        return f"outer products at {self.left.shape[1]} positions"

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norms from Gram matrices, rounded up."""
        return gram_squared_norms(self.left, self.right, dtype)

    def weighted_sum(self, weights: Weights) -> Array:
        """Return the weighted sum, the product of each row computed by itself."""
        dtype = _sum_dtype(self.left, self.right)
        if self.left.shape[-1] <= self.right.shape[-1]:
            sums = _sum_of_products(self.left, self.right, weights, dtype, long_first=False)
        else:
            sums = _sum_of_products(self.right, self.left, weights, dtype, long_first=True)
        return arrange(sums, self.axes, self.weight_shape)

    def formed(self) -> Array:
        """Return the sums of outer products, formed."""
        every = jnp.ones(self.left.shape[0], bool)
        return self.weighted_rows(Weights(jnp.zeros_like(every, jnp.int32), every.astype(jnp.float32), every))

    def weighted_rows(self, weights: Weights) -> Array:
        """Return the weighted rows, formed by the code of the weighted sum."""
        return _row_by_row(self, weights)

    def __getitem__(self, rows: Any) -> Any:
        return jax.tree.map(lambda x: x[rows], self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TiedPositionProducts:
    """Gradients of a table that is both looked up and multiplied with, as an embedding is that is tied to the head.

    The gradient is sum_t left_t right_t^T plus the rows ``values[l]`` at ``index[l]``: a looked-up row is an outer
    product too, of an indicator and the row, and is a position like the others.

    Attributes:
      left: along the rows of the table, [N, T, V].
      right: [N, T, p], for the other axes of the table together.
      index: [N, L]; one out of range drops its row.
      values: [N, L, p].
      weight_shape: shape of the table, [V, ...].
    """

    left: Array
    right: Array
    index: Array
    values: Array
    weight_shape: tuple[int, ...] = dataclasses.field(metadata=dict(static=True))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.weight_shape

    @property
    def method(self) -> str:
        return f"outer products at {self.left.shape[1]} positions, and table rows"

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norms from Gram matrices over positions and looked-up rows, rounded up."""
        sum_dtype = self._sum_dtype()

        def of_one_row(arrays: tuple[Array, Array, Array, Array]) -> ScaledSquares:
            index = arrays[2]
            left, right, values = (wide(x).astype(dtype) for x in (arrays[0], arrays[1], arrays[3]))
            left, right = left[:, None], jnp.concatenate([right, values])[:, None]
            lengths = (left.shape[-1], right.shape[-1])

            # An indicator has norm one, and is not scaled.
            of_products, of_right = scaled_square(left), scaled_square(right)
            ones = jnp.ones((index.shape[0], 1), dtype)
            of_left = ScaledSquares(
                jnp.concatenate([of_products.value, ones]),
                jnp.concatenate([of_products.exponent, jnp.zeros_like(ones, jnp.int32)]),
            )
            position = _relative_positions(of_left, of_right)
            left = left * power_of_two(-of_products.exponent, dtype)[..., None]
            right = right * power_of_two(-of_right.exponent, dtype)[..., None] * position.scale[..., None]

            # The products of an indicator with the left factors are their entries at its index.
            looked_up = left[:, 0].at[:, index].get(mode="fill", fill_value=0)
            same = (index[:, None] == index).astype(dtype)
            of_pairs = jnp.block([[_gram(left)[0], looked_up], [looked_up.T, same]])
            return _rounded_up(of_pairs * _gram(right), position, lengths, sum_dtype)

        index, values = self._inside()
        return jax.lax.map(of_one_row, (self.left, self.right, index, values))

    def weighted_sum(self, weights: Weights) -> Array:
        """Return the weighted sum; the product and the looked-up rows of each example are added by themselves."""
        index, values = self._inside()
        by_row = Weights(*(jnp.broadcast_to(part[:, None], index.shape) for part in weights))
        values = _multiplied(wide(values).astype(self._sum_dtype()), by_row)

        def add_rows(product: Array, row: Array, start: Any) -> Array:
            width = product.shape[1]
            place = index[row] - start
            place = jnp.where((place >= 0) & (place < width), place, width)
            return product.at[0, place].add(values[row], mode="drop")

        left, right = self.left[:, :, None], self.right[:, :, None]
        sums = _sum_of_products(right, left, weights, self._sum_dtype(), long_first=True, finish=add_rows)
        return sums.reshape(self.weight_shape)

    def _sum_dtype(self) -> Any:
        return jnp.promote_types(_sum_dtype(self.left, self.right), wide_dtype(self.values))

    def _inside(self) -> tuple[Array, Array]:
        """The index, and the values with zeros where it is out of range."""
        num_rows = self.weight_shape[0]
        inside = (self.index >= 0) & (self.index < num_rows)
        index = jnp.where(inside, self.index, num_rows).astype(jnp.int32)
        return index, jnp.where(inside[..., None], self.values, 0)

    def formed(self) -> Array:
        """Return the gradients, formed."""
        every = jnp.ones(self.left.shape[0], bool)
        return self.weighted_rows(Weights(jnp.zeros_like(every, jnp.int32), every.astype(jnp.float32), every))

    def weighted_rows(self, weights: Weights) -> Array:
        """Return the weighted rows, formed by the code of the weighted sum."""
        return _row_by_row(self, weights)

    def __getitem__(self, rows: Any) -> Any:
        return jax.tree.map(lambda x: x[rows], self)


def _row_by_row(gradients: Any, weights: Weights) -> Array:
    """Return the weighted rows [N, ...]."""

    def of_one_row(row: tuple[Any, Weights]) -> Array:
        gradients, weights = jax.tree.map(lambda x: x[None], row)
        return gradients.weighted_sum(weights)

    return jax.lax.map(of_one_row, (gradients, weights))
