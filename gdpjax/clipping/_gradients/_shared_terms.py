"""Gradients with shared terms: an outer product or table rows, plus arrays that all examples share times coefficients.

    gradients = with_shared_terms(outer_products, [(coefficients, shared_array)], budget)
    gradients.squared_norms(dtype), gradients.weighted_sum(weights)      # as of any other gradients

An L2 term in the loss adds to an example's outer product X_i a multiple of an array that is the same for all examples,
2 lam W. Weight normalisation does too (`_shared_values` says where the array comes from). So the gradient of example i
is

    g_i = X_i + sum_r S_ri,    S_ri = M_r * c_ri,

where M_r is the array, and c_ri one coefficient of the example or one for each column. Neither the norm nor the
weighted sum, with weights f_i, needs g_i to be formed:

    ||g||^2         = ||X||^2 + 2 sum_r <X, S_r> + sum_rs <S_r, S_s>
    sum_i f_i g_i   = sum_i f_i X_i + sum_r M_r * (sum_i f_i c_ri)

But X_i and the S_ri may cancel, and whoever chooses the data chooses how far. Rounding is in proportion to T = ||X|| +
sum_r ||S_r||, and not to ||g||. So the norm is rounded up by what rounding can take from the computed square, and it is
never less than a share x / z of T, which bounds the rounding of the weighted sum:

    norm = max(sqrt(max(0, computed) + 1.05 k u T^2),  T x / z).

u is the unit roundoff. docs/theory/cancelling_terms.md derives k, x and z. A row with a NaN or an infinity has a norm
of NaN, and is left out.
"""

import dataclasses
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import bounded_sum, most_sum_error_terms, power_of_two, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients._abstract import AbstractRowGradients
from gdpjax.clipping._gradients._formed import FormedGradients
from gdpjax.clipping._gradients._outer_products import OuterProducts, contracted
from gdpjax.clipping._gradients._scaled import (
    LOWEST_EXPONENT,
    RowWeights,
    ScaledSquares,
    largest_exponent,
    squared_norms,
    wide,
)
from gdpjax.clipping._gradients._table_rows import TableRows
from gdpjax.clipping._rounding_budget import RoundingBudget
from gdpjax.clipping._weight_axes import arrange, axes_of_kind

_LARGE = 2**10
"""A gradient of up to so many entries is formed, together with its shared terms."""

_PIECE = 128
"""The least number of entries of one contraction. Longer ones are cut into pieces, which keeps their rounding small."""
_MOST_PIECES = 16

_SECOND_ORDER = 1.05
"""Covers products of two and more roundings, which a count of roundings leaves out."""
_SCALING_ROUNDINGS = 8
"""Roundings of the inner products by scaling them, and of the sum of the norms."""


# Building the gradients.


def with_shared_terms(
    gradients: AbstractRowGradients, terms: list[tuple[Array, Array]], budget: RoundingBudget
) -> AbstractRowGradients:
    """Return gradients plus shared terms, in factors if the gradients are large and the terms are few.

    Otherwise the sum is formed.

    Args:
      gradients: the gradients without the terms.
      terms: for each term its coefficients [N, ...] and the shared array. The coefficients have the axes of the
        parameter, with length one along those where they are the same.
      budget: how much rounding the sum may take.
    """
    is_large = math.prod(gradients.shape) > _LARGE
    if is_large and len(terms) <= budget.most_shared_terms:
        if isinstance(gradients, TableRows):
            kept_apart = _table_with_terms(gradients, terms, budget)
        elif isinstance(gradients, OuterProducts):
            kept_apart = _outer_products_with_terms(gradients, terms, budget)
        else:
            kept_apart = None
        if kept_apart is not None:
            return kept_apart

    return _formed_sum(gradients, terms)


def _table_with_terms(
    rows: TableRows, terms: list[tuple[Array, Array]], budget: RoundingBudget
) -> "WithSharedTerms | None":
    """Return table rows plus terms, or None unless every example has one coefficient for each term."""
    if any(coefficients[0].size != 1 for coefficients, _ in terms):
        return None

    scaled_terms = []
    for coefficients, shared in terms:
        as_one_column = shared.reshape(1, -1, 1)
        scaled_terms.append(_scaled_term(coefficients.reshape(-1, 1, 1), as_one_column, shared.shape))
    return WithSharedTerms(rows, tuple(scaled_terms), budget)


def _outer_products_with_terms(
    rows: OuterProducts, terms: list[tuple[Array, Array]], budget: RoundingBudget
) -> "WithSharedTerms | None":
    """Return outer products plus terms, or None if the coefficients lie along both factors."""
    # `WithSharedTerms` wants the coefficients along the right factor, so exchange the factors if need be.
    factors_with_coefficients = _factors_with_coefficients(rows, terms)
    if "l" in factors_with_coefficients:
        if "r" in factors_with_coefficients:
            return None
        rows = _with_factors_exchanged(rows)

    scaled_terms = []
    for coefficients, shared in terms:
        scaled_terms.append(_term_of_product(rows, coefficients, shared))
    return WithSharedTerms(rows, tuple(scaled_terms), budget)


def _factors_with_coefficients(rows: OuterProducts, terms: list[tuple[Array, Array]]) -> set[str]:
    """Return the kinds ("b", "l", "r") of the axes along which the coefficients of any term differ."""
    kinds = set()
    for coefficients, _ in terms:
        for (kind, _), size in zip(rows.axes, coefficients.shape[1:], strict=True):
            if size > 1:
                kinds.add(kind)
    return kinds


def _with_factors_exchanged(rows: OuterProducts) -> OuterProducts:
    """Return the same gradients, with the left factor as the right one."""
    exchanged = {"l": "r", "r": "l", "b": "b"}
    axes = tuple((exchanged[kind], place) for kind, place in rows.axes)
    return OuterProducts(rows.right, rows.left, axes, rows.shape)


def _term_of_product(rows: OuterProducts, coefficients: Array, shared: Array) -> "SharedTerm":
    """Return a term as blocks of matrices, with its coefficients along the right factor.

    Args:
      rows: the outer products to which the term is added.
      coefficients: [N, ...], the axes of the weight, of length one where they are spread.
      shared: an array of the weight's shape.
    """
    # The axes of the weight in the order of blocks, left factor, right factor.
    block_axes, left_axes, right_axes = (axes_of_kind(rows.axes, kind) for kind in "blr")
    order = [*block_axes, *left_axes, *right_axes]
    shared = jnp.transpose(shared, order)
    coefficients = jnp.transpose(coefficients, (0, *(1 + axis for axis in order)))

    # One coefficient for each block, or one for each column of a block.
    num_rows = coefficients.shape[0]
    first_right = len(block_axes) + len(left_axes)
    columns = coefficients.shape[1 + first_right :]
    if math.prod(columns) > 1:
        columns = shared.shape[first_right:]
    blocks = shared.shape[: len(block_axes)]
    ones_along_left = (1,) * len(left_axes)
    coefficients = jnp.broadcast_to(coefficients, (num_rows, *blocks, *ones_along_left, *columns))

    # [N, K, 1 or p] and [K, d, p]
    num_blocks, num_left, num_right = rows.left.shape[1], rows.left.shape[2], rows.right.shape[2]
    shape = (num_blocks, num_left, num_right)
    return _scaled_term(coefficients.reshape(num_rows, num_blocks, -1), shared.reshape(shape), shape)


def _scaled_term(coefficients: Array, shared: Array, shape: tuple[int, ...]) -> "SharedTerm":
    """Return the term of c [N, K, 1 or p] and M [K, d, p], scaled; M is held in ``shape``."""
    coefficients, shared = wide(coefficients), wide(shared)

    # Scale the columns of M, together if there is one coefficient for all of them.
    columns = jnp.swapaxes(shared, 1, 2)
    if coefficients.shape[-1] == 1:
        columns = columns.reshape(columns.shape[0], 1, -1)
    column_exponent, _ = largest_exponent(columns)  # [K, 1 or p]
    shared = shared * power_of_two(-column_exponent, shared.dtype)[:, None, :]

    # Scale the coefficients to the largest product of a column and its coefficient.
    own_exponent, largest = largest_exponent(coefficients[..., None])
    exponents = jnp.where(largest > 0, own_exponent + column_exponent, LOWEST_EXPONENT)
    block_exponent = exponents.max(axis=-1)
    to_one = power_of_two(-own_exponent, coefficients.dtype)
    to_the_block = power_of_two(exponents - block_exponent[..., None], coefficients.dtype)
    scale = to_one * to_the_block

    exponent = jnp.where(block_exponent == LOWEST_EXPONENT, 0, block_exponent)
    return SharedTerm(coefficients * scale, exponent, shared.reshape(shape))


def _formed_sum(gradients: AbstractRowGradients, terms: list[tuple[Array, Array]]) -> FormedGradients:
    """Return the gradients plus the terms, formed, in the widest dtype of them."""
    total = gradients.formed()
    for coefficients, shared in terms:
        dtypes = [wide_dtype(x) for x in (total, coefficients, shared)]
        dtype = functools.reduce(jnp.promote_types, dtypes)
        total = total.astype(dtype) + coefficients.astype(dtype) * shared.astype(dtype)
    return FormedGradients(total)


# The gradients.


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class SharedTerm:
    """M * c, a shared array times coefficients of each row.

    Attributes:
      coefficients: [N, K, 1 or p]; c is these times 2^exponent.
      exponent: int32 [N, K].
      shared: M [K, d, p] (of a table: its shape), with columns scaled to about one.
    """

    coefficients: Array
    exponent: Array
    shared: Array

    def cast(self, dtype: Any) -> "SharedTerm":
        """Return the same term in ``dtype``."""
        return SharedTerm(self.coefficients.astype(dtype), self.exponent, self.shared.astype(dtype))

    def map_rows(self, function: Any) -> "SharedTerm":
        """Apply ``function`` to the arrays that have an axis of rows."""
        return SharedTerm(function(self.coefficients), function(self.exponent), self.shared)

    def weighted_coefficients(self, weights: RowWeights, parts: list[slice]) -> Array:
        """Return sum_i f_i c_i [K, 1 or p], the parts of the rows added one after the other."""
        by_block = weights.broadcast_to(self.exponent.shape)
        by_block = by_block._replace(exponent=by_block.exponent - self.exponent)
        power, rest = by_block.factors(self.coefficients.dtype)
        scaled = by_block.scaled(self.coefficients, power)

        # By products: the compiler would add rows up again for every entry of M.
        highest = jax.lax.Precision.HIGHEST
        has_one_block = scaled.shape[1] == 1
        sums = []
        for part in parts:
            if has_one_block:
                sums.append(jnp.einsum("n,np->p", rest[part, 0], scaled[part, 0], precision=highest))
            else:
                sums.append(jnp.einsum("nk,nkp->kp", rest[part], scaled[part], precision=highest))
        total = _added(sums)
        return total[None] if has_one_block else total


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class WithSharedTerms(AbstractRowGradients):
    """Outer products or table rows, plus shared terms.

    Attributes:
      data: the gradients without the terms.
      terms: the terms.
      budget: how much rounding the sum may take.
    """

    data: OuterProducts | TableRows
    terms: tuple[SharedTerm, ...]
    budget: RoundingBudget = dataclasses.field(metadata=dict(static=True))

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape

    @property
    def method(self) -> str:
        return self.data.method

    @property
    def is_table(self) -> bool:
        """Whether the data are rows of a table."""
        return isinstance(self.data, TableRows)

    def row_arrays(self) -> list[Array]:
        """Return the arrays with a leading axis of rows."""
        arrays = self.data.row_arrays()
        for term in self.terms:
            arrays += [term.coefficients, term.exponent]
        return arrays

    def map_rows(self, function: Any) -> "WithSharedTerms":
        """Apply ``function`` to the arrays that have an axis of rows."""
        terms = tuple(term.map_rows(function) for term in self.terms)
        return WithSharedTerms(self.data.map_rows(function), terms, self.budget)

    def __getitem__(self, rows: Any) -> "WithSharedTerms":
        return self.map_rows(lambda x: x[rows])

    def rows_per_part(self, budget: RoundingBudget) -> int:
        """Return how many rows `weighted_sum` may add up at once: fewer than of other gradients."""
        rows, parts = self.budget.rows_with_terms(self.is_table)
        return max(min(rows * parts, self.num_rows), 1)

    def needs_compensation(self, budget: RoundingBudget, num_calls: int) -> bool:
        """Return whether errors have to be kept: always, as the sum itself may take all that is allowed."""
        return num_calls * self.num_parts(budget) > 1

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norms, rounded up by what the sum of the terms can lose."""
        terms = [term.cast(dtype) for term in self.terms]
        num_terms = len(terms)

        # ||X||^2 and <X, S_r>
        if isinstance(self.data, TableRows):
            products = _products_of_table(self.data, terms, dtype)
        else:
            products = _products_of_factors(self.data, terms, dtype)

        # <S_r, S_s> for r <= s
        shared_products = {}
        for r, s in itertools.combinations_with_replacement(range(num_terms), 2):
            shared_products[r, s] = _shared_product(terms[r], terms[s])

        # Put all parts on the scale of the largest part of each block.
        of_data = products.squares
        exponents = [jnp.where(of_data.value == 0, LOWEST_EXPONENT, of_data.exponent)]
        for r, term in enumerate(terms):
            exponents.append(jnp.where(shared_products[r, r] == 0, LOWEST_EXPONENT, term.exponent))
        largest = functools.reduce(jnp.maximum, exponents)
        largest = jnp.where(largest == LOWEST_EXPONENT, 0, largest)
        data_scale, *term_scales = [power_of_two(exponent - largest, dtype) for exponent in exponents]

        # T, the sum of the norms of the parts.
        sum_of_norms = _root(of_data.value) * data_scale
        for r, scale in enumerate(term_scales):
            sum_of_norms = sum_of_norms + _root(shared_products[r, r]) * scale

        # ||X||^2 + 2 sum_r <X, S_r> + sum_rs <S_r, S_s>
        computed = of_data.value * data_scale * data_scale
        for product, scale in zip(products.with_terms, term_scales, strict=True):
            computed = computed + 2 * product * (data_scale * scale)
        for (r, s), product in shared_products.items():
            times = 1 if r == s else 2
            computed = computed + times * product * (term_scales[r] * term_scales[s])

        # Round up by what the additions can lose.
        lost = _lost(products.roundings, num_terms, dtype)
        squares = jnp.maximum(computed, 0) + lost * jnp.square(sum_of_norms)

        # The norm is at least the share of T that bounds the rounding of the weighted sum.
        least = self.budget.least_share(num_terms, self.is_table)
        squares = jnp.maximum(squares, jnp.square(least * sum_of_norms))
        return ScaledSquares(squares, largest).total()

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum: that of the data, plus the shared arrays times sums of coefficients."""
        if isinstance(self.data, TableRows):
            return self._weighted_sum_of_table(self.data, weights)
        return self._weighted_sum_of_factors(self.data, weights)

    def _weighted_sum_of_table(self, data: TableRows, weights: RowWeights) -> Array:
        all_rows = [slice(None)]
        total = data.weighted_sum(weights)
        for term in self.terms:
            coefficient = term.weighted_coefficients(weights, all_rows)
            coefficient = coefficient.reshape((1,) * total.ndim)
            total = total + _times_shared(coefficient, term.shared)
        return total

    def _weighted_sum_of_factors(self, data: OuterProducts, weights: RowWeights) -> Array:
        left, right = data.weighted_factors(weights)

        # A few contractions of some rows each, added one after the other.
        num_rows = left.shape[0]
        length, _ = self.budget.rows_with_terms(is_table=False)
        parts = []
        for start in range(0, num_rows, length):
            parts.append(slice(start, min(start + length, num_rows)))
        total = _added([contracted(left[part], right[part]) for part in parts])

        # The terms, their coefficients added up in the same parts.
        for term in self.terms:
            coefficient = term.weighted_coefficients(weights, parts)[:, None, :]
            total = total + _times_shared(coefficient, term.shared)
        return arrange(total, data.axes, data.shape)

    def formed(self) -> Array:
        """Raise: shared terms are only added once."""
        raise NotImplementedError("gradients with shared terms are not formed")  # pragma: no cover

    def weighted_rows(self, weights: RowWeights) -> Array:
        """Raise: a model that is small enough for its rows to be formed has no shared terms kept apart."""
        raise NotImplementedError("gradients with shared terms are not formed")  # pragma: no cover


# Inner products.


class _DataProducts(NamedTuple):
    """Inner products of the data with themselves and with the terms.

    Attributes:
      squares: ||X||^2 [N, K].
      with_terms: for each term <X, S> [N, K], without the exponents.
      roundings: how many roundings any of these is off by, relative to the norms of its two sides.
    """

    squares: ScaledSquares
    with_terms: list[Array]
    roundings: int


def _products_of_table(rows: TableRows, terms: list[SharedTerm], dtype: Any) -> _DataProducts:
    values = wide(rows.values).astype(dtype).reshape(rows.values.shape[0], -1)
    squares = squared_norms(values)
    values = values * power_of_two(-squares.exponent, dtype)[:, None]

    # <X, S> has a term for each entry of the rows that are looked up.
    with_terms = []
    for term in terms:
        looked_up = term.shared.at[rows.index].get(mode="fill", fill_value=0)
        product = bounded_sum(values * looked_up.reshape(values.shape))
        with_terms.append(product[:, None] * term.coefficients[..., 0])

    # Sums over the entries of an example, and over the rows and columns of the table.
    sizes = (values.shape[-1], math.prod(rows.shape[:-1]), rows.shape[-1])
    roundings = sum(most_sum_error_terms(size) for size in sizes)
    by_block = ScaledSquares(squares.value[:, None], squares.exponent[:, None])
    return _DataProducts(by_block, with_terms, roundings)


def _products_of_factors(rows: OuterProducts, terms: list[SharedTerm], dtype: Any) -> _DataProducts:
    left, right = wide(rows.left).astype(dtype), wide(rows.right).astype(dtype)
    of_left, of_right = squared_norms(left), squared_norms(right)
    left = left * power_of_two(-of_left.exponent, dtype)[..., None]
    right = right * power_of_two(-of_right.exponent, dtype)[..., None]
    num_left, num_right = left.shape[-1], right.shape[-1]

    # <a (x) b, M * c> = sum_p (M^T a)_p b_p c_p, or the same by way of the right factor where that is shorter.
    with_terms = []
    for term in terms:
        weighted = right * term.coefficients
        if num_left < num_right:
            product = _product_in_pieces(left, term.shared, "d") * weighted
        else:
            product = _product_in_pieces(weighted, term.shared, "p") * left
        with_terms.append(bounded_sum(product))

    # Sums over both factors, and the product with M in pieces over the shorter one.
    shorter = min(num_left, num_right)
    length = _piece_length(shorter)
    num_pieces = -(-shorter // length)
    of_sums = most_sum_error_terms(num_left) + most_sum_error_terms(num_right)
    roundings = of_sums + length + num_pieces

    squares = ScaledSquares(of_left.value * of_right.value, of_left.exponent + of_right.exponent)
    return _DataProducts(squares, with_terms, roundings)


def _shared_product(first: SharedTerm, second: SharedTerm) -> Array:
    """Return <S_r, S_s> [N, K], without the exponents."""
    num_blocks = first.coefficients.shape[1]
    first_shared = first.shared.reshape(num_blocks, -1, first.shared.shape[-1])
    second_shared = second.shared.reshape(num_blocks, -1, second.shared.shape[-1])

    # The columns of the shared arrays, multiplied with each other.
    by_column = bounded_sum(jnp.swapaxes(first_shared * second_shared, 1, 2))
    if first.coefficients.shape[-1] == second.coefficients.shape[-1] == 1:
        by_column = bounded_sum(by_column)[:, None]
    return bounded_sum(first.coefficients * second.coefficients * by_column)


def _lost(roundings: int, terms: int, dtype: Any) -> float:
    """Return 1.05 k u: the products are off by ``roundings`` and a few for scaling, and added up with others."""
    unit_twice = float(np.finfo(dtype).eps)
    num_added = (terms + 1) ** 2
    return _SECOND_ORDER * unit_twice / 2 * (roundings + _SCALING_ROUNDINGS + num_added)


def _piece_length(size: int) -> int:
    """Return how many of ``size`` entries one contraction runs over."""
    return min(size, max(_PIECE, -(-size // _MOST_PIECES)))


def _product_in_pieces(x: Array, matrix: Array, axis: str) -> Array:
    """Multiply by a matrix, over one of its axes, in pieces that are added one after the other.

    Args:
      x: [n, k, d] to multiply over the axis "d", or [n, k, p] to multiply over "p".
      matrix: [k, d, p].
      axis: "d" or "p".

    Returns:
      [n, k, p] or [n, k, d].
    """
    remaining = "p" if axis == "d" else "d"
    letters = f"nk{axis},kdp->nk{remaining}"
    matrix_axis = "kdp".index(axis)

    # With one block it is a plain product, for which nothing needs to be transposed first.
    has_one_block = x.shape[1] == 1
    if has_one_block:
        x, matrix = x[:, 0], matrix[0]
        letters = letters.replace("k", "")
        matrix_axis -= 1

    size = x.shape[-1]
    length = _piece_length(size)
    parts = []
    for start in range(0, size, length):
        of_matrix = jax.lax.slice_in_dim(matrix, start, min(start + length, size), axis=matrix_axis)
        of_x = x[..., start : start + length]
        parts.append(jnp.einsum(letters, of_x, of_matrix, precision=jax.lax.Precision.HIGHEST))
    total = _added(parts)
    return total[:, None] if has_one_block else total


# Small operations.


def _root(value: Array) -> Array:
    """Return the square root, with a slope of zero at zero in place of an infinite one."""
    return jnp.where(value == 0, 0, jnp.sqrt(jnp.where(value == 0, 1, value)))


def _times_shared(coefficient: Array, shared: Array) -> Array:
    """Multiply, where M may be infinite or NaN if no row is kept."""
    return jnp.where(coefficient == 0, 0, coefficient * shared)


def _added(parts: list[Array]) -> Array:
    """Add arrays one after the other."""
    return functools.reduce(jnp.add, parts)
