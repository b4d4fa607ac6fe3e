"""Gradients of one parameter for a batch of examples ("rows"), formed or in factors: their norms and weighted sums.

Every kind is a function of each row alone and stands for an exact gradient g_i, of which two things are needed.

* Its squared norm, scaled: value 4^exponent, with value and exponent for each row. Squares of large gradients overflow
  and of small ones vanish, so each block of a row is first scaled by a power of two near its largest entry, which is
  exact. For an outer product the norm is the product of the norms of its factors: no cancellation is possible, and
  nothing needs to be formed. Rows of a table that an example looked up several times are added before they are squared.
* sum_i c_i g_i over some rows, in which every c_i g_i is rounded at most twice. Formed gradients and table rows are
  multiplied and added; outer products are contracted, left^T diag(c) right, over a number of rows that `_clip` limits.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import bounded_sum, power_of_two, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._factors import Axis, arrange


class Square(NamedTuple):
    """Squared norms value * 4**exponent, one for each row; NaN for a row that is not finite."""

    value: Array
    exponent: Array


class Dense(NamedTuple):
    """Formed gradients [N, ...]."""

    rows: Array


class RankOne(NamedTuple):
    """Outer products left (x) right in K blocks: left [N, K, d], right [N, K, p]; see `_factors`."""

    left: Array
    right: Array
    axes: tuple[Axis, ...]
    shape: tuple[int, ...]


class TableRows(NamedTuple):
    """Rows of a table: index [N, T], each at most once in an example (others out of range), values [N, T, ...]."""

    index: Array
    values: Array
    shape: tuple[int, ...]


_FEW = 8

Rows = Dense | RankOne | TableRows


def per_row(values: Array, like: Array) -> Array:
    """``values`` [N, ...] with axes of length one up to the rank of ``like``."""
    return values.reshape(values.shape + (1,) * (like.ndim - values.ndim))


def scale(x: Array) -> tuple[Array, Array]:
    """Over the last axis: e with max|x| in [2^(e-1), 2^e), limited so that 2^-e is normal; and max|x|."""
    largest = jnp.abs(x).max(axis=-1)
    _, exponent = jnp.frexp(jnp.where(jnp.isfinite(largest) & (largest > 0), largest, 1))
    limit = -np.finfo(x.dtype).minexp
    return jnp.clip(exponent, -limit, limit), largest


def scaled_square(x: Array) -> Square:
    """Scaled squared norms over the last axis."""
    exponent, largest = scale(x)
    # Without the barrier the compiler works the power of two out again for every entry.
    down = jax.lax.optimization_barrier(power_of_two(-exponent, x.dtype))
    value = bounded_sum(x, lambda part: jnp.square(part * per_row(down, part)))
    return Square(jnp.where(jnp.isfinite(largest), value, jnp.nan), exponent)


def wide(x: Array) -> Array:
    """In float32 or wider. A compiler may leave out the rounding to half precision, and then the norm and the sum would
    be of two different gradients; this rounding it must keep."""
    cast = x.astype(wide_dtype(x))
    info = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(cast, info.nexp, info.nmant) if info.bits < 32 else cast


def total(squares: Square) -> Square:
    """The sum of squared norms over the last axis, scaled to the largest of them."""
    lowest = -(2**20)
    exponents = jnp.where(squares.value == 0, lowest, squares.exponent)
    exponent = exponents.max(axis=-1)
    shift = 2 * (exponents - exponent[..., None])
    value = bounded_sum(squares.value * power_of_two(shift, squares.value.dtype))
    return Square(value, jnp.where(exponent == lowest, 0, exponent))


def stacked(squares: list[Square]) -> Square:
    """Squared norms of several parameters along a last axis."""
    return Square(*(jnp.stack(parts, axis=-1) for parts in zip(*squares, strict=True)))


def square(rows: Rows, dtype: jnp.dtype) -> Square:
    """Squared norms of the rows, in ``dtype``."""
    if isinstance(rows, RankOne):
        left, right = scaled_square(wide(rows.left).astype(dtype)), scaled_square(wide(rows.right).astype(dtype))
        return total(Square(left.value * right.value, left.exponent + right.exponent))
    entries = rows.rows if isinstance(rows, Dense) else rows.values
    return scaled_square(wide(entries).astype(dtype).reshape(entries.shape[0], -1))


class Weights(NamedTuple):
    """What rows are multiplied by: 2^-exponent coefficient, and exact zero (whatever they hold) where not kept."""

    exponent: Array
    coefficient: Array
    keep: Array

    def __getitem__(self, rows: Any) -> "Weights":  # type: ignore[override]
        return Weights(self.exponent[rows], self.coefficient[rows], self.keep[rows])


def halves(weights: Weights, dtype: Any) -> tuple[Array, Array]:
    """A weight as the product of a power of two and a number, neither of which leaves the range of the dtype."""
    limit = -np.finfo(dtype).minexp
    first = jnp.clip(weights.exponent, -limit, limit)
    rest = weights.coefficient.astype(dtype) * power_of_two(first - weights.exponent, dtype)
    return power_of_two(-first, dtype), jnp.where(weights.keep, rest, 0)


def kept(x: Array, weights: Weights, factor: Array) -> Array:
    """Rows times factors; exact zeros where they are not kept, whatever they hold."""
    return jnp.where(per_row(weights.keep, x), x * per_row(factor, x), jnp.zeros((), x.dtype))


def times(x: Array, weights: Weights) -> Array:
    """Rows times weights, rounded once."""
    down, rest = halves(weights, x.dtype)
    return kept(x, weights, down) * per_row(rest, x)


def _weighted_sum(x: Array, weights: Weights) -> Array:
    """The plain sum of weighted rows.

    A few large rows are added one after the other in one pass over memory; many small ones by a product. A reduction
    over rows would work the weights out again for every entry.
    """
    x = wide(x)
    if x.shape[0] <= _FEW:
        return functools.reduce(jnp.add, [times(x[i], weights[i]) for i in range(x.shape[0])])
    down, rest = halves(weights, x.dtype)
    flat = kept(x, weights, down).reshape(x.shape[0], -1)
    return jnp.einsum("n,nd->d", rest, flat, precision=jax.lax.Precision.HIGHEST).reshape(x.shape[1:])


def contracted(left: Array, right: Array) -> Array:
    """[n, k, d] and [n, k, p] to [k, d, p], in full precision."""
    highest = jax.lax.Precision.HIGHEST
    if left.shape[1] == 1:  # a plain product, for which nothing needs to be transposed first
        return jnp.einsum("nd,np->dp", left[:, 0], right[:, 0], precision=highest)[None]
    return jnp.einsum("nkd,nkp->kdp", left, right, precision=highest)


def weighted_factors(rows: RankOne, weights: Weights) -> tuple[Array, Array]:
    """The two factors of weighted rows."""
    left, right = wide(rows.left), wide(rows.right)
    every = Weights(*(jnp.broadcast_to(part[:, None], left.shape[:2]) for part in weights))
    # Each block's left factor is scaled by itself, so that the right one meets a power of two that it can hold.
    own, largest = scale(left)
    every = every._replace(keep=every.keep & (largest > 0))  # nothing bounds a right factor that meets zeros
    left = times(left, Weights(own, jnp.ones_like(left[..., 0]), every.keep))
    return left, times(right, every._replace(exponent=every.exponent - own))


def partial_sum(rows: Rows, weights: Weights) -> Array:
    """The plain sum of weighted rows: their number is what `_clip` limits."""
    if isinstance(rows, Dense):
        return _weighted_sum(rows.rows, weights)
    if isinstance(rows, TableRows):
        values = weighted_values(rows, weights)
        return jnp.zeros(rows.shape, values.dtype).at[rows.index].add(values, mode="drop")
    return arrange(contracted(*weighted_factors(rows, weights)), rows.axes, rows.shape)


def formed(rows: Rows, weights: Weights) -> Array:
    """Weighted rows as gradients [N, ...]."""
    if isinstance(rows, Dense):
        return times(wide(rows.rows), weights)
    if isinstance(rows, TableRows):
        values = weighted_values(rows, weights)
        place = jnp.broadcast_to(jnp.arange(values.shape[0], dtype=jnp.int32)[:, None], rows.index.shape)
        return jnp.zeros((values.shape[0], *rows.shape), values.dtype).at[place, rows.index].add(values, mode="drop")
    left, right = weighted_factors(rows, weights)
    return arrange(left[..., None] * right[..., None, :], rows.axes, rows.shape)


def weighted_values(rows: TableRows, weights: Weights) -> Array:
    """The values of weighted table rows."""
    return times(wide(rows.values), weights)


def entries(rows: Rows) -> int:
    """Numbers that stand for one row."""
    arrays = [x for x in rows if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating)]
    return sum(math.prod(x.shape[1:]) for x in arrays)


def in_blocks(rows: Dense | RankOne, weights: Weights, size: int) -> Array:
    """The plain sums of blocks of ``size`` weighted rows, [blocks, ...]; the rows must be that many."""
    arrays = [x for x in rows if isinstance(x, jax.Array)]
    split = lambda x: x.reshape(-1, size, *x.shape[1:])  # noqa: E731

    def one(block: list[Array], own: Weights) -> Array:
        return partial_sum(type(rows)(*block, *rows[len(block) :]), own)

    return jax.vmap(one)([split(x) for x in arrays], Weights(*(split(x) for x in weights)))


def distinct(index: Array, values: Array, shape: tuple[int, ...]) -> TableRows:
    """Add the values of equal indices of each example; index [N, T] may be out of range, which drops the value."""
    num_rows, times = index.shape
    values = wide(values)
    inside = (index >= 0) & (index < shape[0])
    index = jnp.where(inside, index, shape[0]).astype(jnp.int32)
    values = jnp.where(per_row(inside, values), values, 0)
    if times == 1:
        return TableRows(index, values, shape)
    position = jnp.broadcast_to(jnp.arange(times, dtype=jnp.int32), index.shape)
    example = jnp.broadcast_to(jnp.arange(num_rows, dtype=jnp.int32)[:, None], index.shape)
    # Of the positions at which an index occurs one stands for all of them; whichever is written last.
    slot = jnp.zeros((num_rows, shape[0] + 1), jnp.int32).at[example, index].set(position)[example, index]
    summed = jnp.zeros_like(values).at[example, slot].add(values)
    return TableRows(jnp.where(slot == position, index, shape[0]), summed, shape)
