"""Gradients of one parameter that are a sum: an outer product or table rows, plus shared arrays times coefficients.

An L2 term in the loss, and weight normalisation, add to an example's outer product X_i a multiple of an array that is
the same for all examples, such as 2 lam W (`_shared_values` says where it comes from):

    g_i = X_i + sum_r S_ri,    S_ri = M_r * c_ri,

with one coefficient c, or one for each column. Neither the norm nor the weighted sum needs g_i to be formed, but X_i
and S_i may cancel, by as many digits as somebody likes who chooses the data. Both are therefore taken with what
rounding can do to them, which is in proportion to the terms and not to g_i. Let T_i = ||X_i|| + sum_r ||S_ri||.

Norm. ||g||^2 = ||X||^2 + 2 <X, S> + ||S||^2, where <a (x) b, M * c> = sum_p (M^T a)_p b_p c_p is a product of M with
the left factor, and the norms of the S are numbers once the columns of the M have been multiplied with each other. Each
part is a sum of products that is off by at most k u times the sum of their absolute values, and this by Cauchy and
Schwarz is at most the product of the norms of its two sides; the products of norms add up to T^2. For a matrix product
of length n, done in pieces of length l, k is l + n / l, whatever the order inside of a piece; for `bounded_sum` it is
the depth of its tree. With all k added up, k u T^2 is a bound on the error of the whole, so that

    n^2 = max(0, computed) + 1.05 k u T^2

can only overstate ||g||^2. Where nothing cancels it does so by k u, some 1e-5 in float32.

Sum. sum_i f_i g_i is a sum of J contractions of the outer products of m rows, plus M times sum_i f_i c_i, taken in the
same way. Its rounding is (in units of u, to first order, for each row) at most

    x f T,   x = 2 + (m + 1) / 2 - 1 / m + (J + 1) / 2 - 1 / J + R,

where the 2 are those of "Terms" in `_rounding_budget` (of coefficients and products), the next parts are what adding up
m rows and J results costs, and R additions join the R + 1 parts. A row of any other gradient, clipped to C, is allowed

    z C,   z = 2 + (b + 1) / 2 - 1 / b,

in "Terms" and "Plain sums" there. So with m = b / 8 rows at a time, J = 4, and a norm that is rounded up to T x / z at
least,

    norm = max(n, T x / z),     f norm <= C,

the rounding of these rows is within what the slack in `_rounding_budget` holds for any row, whatever cancels: the
sensitivity is C, with the same slack for every strategy. What comes after (compensated sums of the parts, the result,
the devices) is relative to what is left after cancellation, as there, but for terms of second order, which are z / x
times as large and remain far below what the slack has to spare. In float32 z / x is 4.9 or more for R = 1, and no less
than 1.6 for batches of thousands: a row of which less than 20% (63%) of T is left is clipped to less than the
definition says, never to more;
where the terms are orthogonal, 70% are left. In float64 the slack allows 2^10 times as much rounding, and this
happens below 0.02% of T only. Rules that divide by the norm divide by this one.

All of it is done on numbers scaled by powers of two: the factors by rows and blocks, the M by columns, so that neither
large nor small ones are lost. A row with a NaN or an infinity anywhere has a norm of NaN and is left out, as any other.
"""

import dataclasses
import functools
import math
from typing import Any

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
from gdpjax.clipping._weight_axes import arrange

_MOST_PIECES = 16
_PIECE = 128
_LARGE = 2**10
"""Entries up to which a gradient is formed rather than kept apart from its shared terms."""


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
        if scaled.shape[1] == 1:
            sums = [jnp.einsum("n,np->p", rest[i, 0], scaled[i, 0], precision=highest) for i in parts]
            return _added(sums)[None]
        sums = [jnp.einsum("nk,nkp->kp", rest[i], scaled[i], precision=highest) for i in parts]
        return _added(sums)


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
        return max(min(math.prod(self.budget.rows_with_terms(self.is_table)), self.num_rows), 1)

    def needs_compensation(self, budget: RoundingBudget, num_calls: int) -> bool:
        """Return whether errors have to be kept: always, as the sum itself may take all that is allowed."""
        return num_calls * self.num_parts(budget) > 1

    def squared_norms(self, dtype: Any) -> ScaledSquares:
        """Return the squared norms, rounded up by what the sum of the terms can lose."""
        terms = [term.cast(dtype) for term in self.terms]
        if isinstance(self.data, TableRows):
            of_data, products, roundings = _table_products(self.data, terms, dtype)
        else:
            of_data, products, roundings = _outer_products(self.data, terms, dtype)
        count = len(terms)
        pairs = [(r, s) for r in range(count) for s in range(r, count)]
        inner = {(r, s): _shared_product(terms[r], terms[s]) for r, s in pairs}

        # Put all parts on the scale of the largest part of each block.
        exponents = [jnp.where(of_data.value == 0, LOWEST_EXPONENT, of_data.exponent)]
        for r, term in enumerate(terms):
            exponents.append(jnp.where(inner[r, r] == 0, LOWEST_EXPONENT, term.exponent))
        largest = functools.reduce(jnp.maximum, exponents)
        largest = jnp.where(largest == LOWEST_EXPONENT, 0, largest)
        down, *downs = [power_of_two(exponent - largest, dtype) for exponent in exponents]

        # T, the sum of the norms of the parts.
        sizes = _root(of_data.value) * down
        for r, scale in enumerate(downs):
            sizes = sizes + _root(inner[r, r]) * scale

        # ||X||^2 + 2 sum_r <X, S_r> + sum_rs <S_r, S_s>, and what the additions can lose of it.
        found = of_data.value * down * down
        for product, scale in zip(products, downs, strict=True):
            found = found + 2 * product * (down * scale)
        for r, s in pairs:
            twice = 1 if r == s else 2
            found = found + twice * inner[r, s] * (downs[r] * downs[s])
        upper = jnp.maximum(found, 0) + _lost(roundings, count, dtype) * jnp.square(sizes)

        # The norm is at least the share of T that bounds the rounding of the weighted sum.
        least = self.budget.least_share(count, self.is_table)
        return ScaledSquares(jnp.maximum(upper, jnp.square(least * sizes)), largest).total()

    def weighted_sum(self, weights: RowWeights) -> Array:
        """Return the weighted sum: that of the data, plus the shared arrays times sums of coefficients."""
        if isinstance(self.data, TableRows):
            total = self.data.weighted_sum(weights)
            for term in self.terms:
                coefficient = term.weighted_coefficients(weights, [slice(None)]).reshape((1,) * total.ndim)
                total = total + _times_shared(coefficient, term.shared)
            return total

        # A few contractions of some rows each, added one after the other.
        left, right = self.data.weighted_factors(weights)
        rows, _ = self.budget.rows_with_terms(False)
        parts = [slice(start, min(start + rows, left.shape[0])) for start in range(0, left.shape[0], rows)]
        total = _added([contracted(left[part], right[part]) for part in parts])
        for term in self.terms:
            coefficient = term.weighted_coefficients(weights, parts)[:, None, :]
            total = total + _times_shared(coefficient, term.shared)
        return arrange(total, self.data.axes, self.data.shape)

    def formed(self) -> Array:
        """Raise: shared terms are only added once."""
        raise NotImplementedError("gradients with shared terms are not formed")  # pragma: no cover

    def weighted_rows(self, weights: RowWeights) -> Array:
        """Raise: a model that is small enough for its rows to be formed has no shared terms kept apart."""
        raise NotImplementedError("gradients with shared terms are not formed")  # pragma: no cover


def with_shared_terms(
    gradients: AbstractRowGradients, terms: list[tuple[Array, Array]], budget: RoundingBudget
) -> AbstractRowGradients:
    """Return gradients plus shared terms.

    Args:
      gradients: the gradients without the terms.
      terms: for each its coefficients [N, ...], with ones where they are spread, and the shared array.
      budget: how much rounding the sum may take.

    Small gradients, and sums that are not of the form of `WithSharedTerms`, are formed.
    """
    if len(terms) <= budget.most_shared_terms and math.prod(gradients.shape) > _LARGE:
        if isinstance(gradients, TableRows) and all(c[0].size == 1 for c, _ in terms):
            own = [_scaled_term(c.reshape(-1, 1, 1), m.reshape(1, -1, 1), m.shape) for c, m in terms]
            return WithSharedTerms(gradients, tuple(own), budget)
        if isinstance(gradients, OuterProducts) and (oriented := _along_right(gradients, terms)) is not None:
            own = [_term_of_product(oriented, c, m) for c, m in terms]
            return WithSharedTerms(oriented, tuple(own), budget)

    # Form the sum.
    whole = gradients.formed()
    for coefficients, shared in terms:
        dtype = functools.reduce(jnp.promote_types, [wide_dtype(x) for x in (whole, coefficients, shared)])
        whole = whole.astype(dtype) + coefficients.astype(dtype) * shared.astype(dtype)
    return FormedGradients(whole)


def _along_right(rows: OuterProducts, terms: list[tuple[Array, Array]]) -> OuterProducts | None:
    """Exchange the factors if the coefficients lie along the left one; None if they lie along both."""
    along = set()
    for coefficients, _ in terms:
        for (kind, _), size in zip(rows.axes, coefficients.shape[1:], strict=True):
            if size > 1:
                along.add(kind)
    if "l" not in along:
        return rows
    if "r" in along:
        return None
    exchanged = {"l": "r", "r": "l", "b": "b"}
    axes = tuple((exchanged[kind], place) for kind, place in rows.axes)
    return OuterProducts(rows.right, rows.left, axes, rows.shape)


def _term_of_product(rows: OuterProducts, coefficients: Array, shared: Array) -> SharedTerm:
    """Return a term as blocks of matrices, with its coefficients along the right factor."""
    # The axes of the weight in the order of blocks, left factor, right factor.
    order: list[int] = []
    for kind in "blr":
        of_kind = [(place, axis) for axis, (k, place) in enumerate(rows.axes) if k == kind]
        order += [axis for _, axis in sorted(of_kind)]
    kinds = [rows.axes[axis][0] for axis in order]
    num_blocks, num_right = kinds.count("b"), kinds.count("r")
    num_left = len(order) - num_blocks - num_right
    shared = jnp.transpose(shared, order)
    coefficients = jnp.transpose(coefficients, (0, *(1 + axis for axis in order)))

    # One coefficient for each block, or one for each column of a block.
    first_right = len(order) - num_right
    columns = coefficients.shape[1 + first_right :]
    if math.prod(columns) > 1:
        columns = shared.shape[first_right:]
    spread = (coefficients.shape[0], *shared.shape[:num_blocks], *(1,) * num_left, *columns)
    coefficients = jnp.broadcast_to(coefficients, spread)
    shape = (rows.left.shape[1], rows.left.shape[2], rows.right.shape[2])
    return _scaled_term(coefficients.reshape(coefficients.shape[0], shape[0], -1), shared.reshape(shape), shape)


def _scaled_term(coefficients: Array, shared: Array, shape: tuple[int, ...]) -> SharedTerm:
    """Return the term of c [N, K, 1 or p] and M [K, d, p], scaled; M is held in ``shape``."""
    coefficients, shared = wide(coefficients), wide(shared)

    # Scale the columns of M, together if there is one coefficient for all of them.
    columns = jnp.swapaxes(shared, 1, 2)
    if coefficients.shape[-1] == 1:
        columns = columns.reshape(columns.shape[0], 1, -1)
    size, _ = largest_exponent(columns)  # [K, 1 or p]
    shared = shared * power_of_two(-size, shared.dtype)[:, None, :]

    # Scale the coefficients to the largest product of a column and its coefficient.
    own, largest = largest_exponent(coefficients[..., None])
    exponents = jnp.where(largest > 0, own + size, LOWEST_EXPONENT)
    most = exponents.max(axis=-1)
    down = power_of_two(-own, coefficients.dtype) * power_of_two(exponents - most[..., None], coefficients.dtype)
    exponent = jnp.where(most == LOWEST_EXPONENT, 0, most)
    return SharedTerm(coefficients * down, exponent, shared.reshape(shape))


def _lost(roundings: int, terms: int, dtype: Any) -> float:
    """Return 1.05 k u: the products are off by ``roundings`` and a few for scaling, and added up with others."""
    return 1.05 * float(np.finfo(dtype).eps) / 2 * (roundings + 8 + (terms + 1) ** 2)


def _root(value: Array) -> Array:
    return jnp.where(value == 0, 0, jnp.sqrt(jnp.where(value == 0, 1, value)))


def _shared_product(first: SharedTerm, second: SharedTerm) -> Array:
    """Return <S_r, S_s> [N, K], without the exponents."""
    num_blocks = first.coefficients.shape[1]
    a, b = (term.shared.reshape(num_blocks, -1, term.shared.shape[-1]) for term in (first, second))
    by_column = bounded_sum(jnp.swapaxes(a * b, 1, 2))
    if first.coefficients.shape[-1] == second.coefficients.shape[-1] == 1:
        by_column = bounded_sum(by_column)[:, None]
    return bounded_sum(first.coefficients * second.coefficients * by_column)


_Products = tuple[ScaledSquares, list[Array], int]
"""||X||^2 [N, K]; for each term <X, S> without the exponents; how many roundings any of the products is off by."""


def _table_products(rows: TableRows, terms: list[SharedTerm], dtype: Any) -> _Products:
    values = wide(rows.values).astype(dtype).reshape(rows.values.shape[0], -1)
    found = squared_norms(values)
    values = values * power_of_two(-found.exponent, dtype)[:, None]
    products = []
    for term in terms:
        shared = term.shared.at[rows.index].get(mode="fill", fill_value=0).reshape(values.shape)
        products.append(bounded_sum(values * shared)[:, None] * term.coefficients[..., 0])
    sizes = (values.shape[-1], math.prod(rows.shape[:-1]), rows.shape[-1])
    roundings = sum(most_sum_error_terms(size) for size in sizes)
    return ScaledSquares(found.value[:, None], found.exponent[:, None]), products, roundings


def _outer_products(rows: OuterProducts, terms: list[SharedTerm], dtype: Any) -> _Products:
    left, right = wide(rows.left).astype(dtype), wide(rows.right).astype(dtype)
    of_left, of_right = squared_norms(left), squared_norms(right)
    left = left * power_of_two(-of_left.exponent, dtype)[..., None]
    right = right * power_of_two(-of_right.exponent, dtype)[..., None]

    # <a (x) b, M * c> = sum_p (M^T a)_p b_p c_p, or the same by way of the right factor where that is shorter.
    products = []
    for term in terms:
        weighted = right * term.coefficients
        if left.shape[-1] < right.shape[-1]:
            products.append(bounded_sum(_product_in_pieces(left, term.shared, "d") * weighted))
        else:
            products.append(bounded_sum(_product_in_pieces(weighted, term.shared, "p") * left))
    sizes = (left.shape[-1], right.shape[-1])
    length = _piece_length(min(sizes))
    roundings = sum(most_sum_error_terms(size) for size in sizes) + length - (-min(sizes) // length)
    of_data = ScaledSquares(of_left.value * of_right.value, of_left.exponent + of_right.exponent)
    return of_data, products, roundings


def _piece_length(size: int) -> int:
    return min(size, max(_PIECE, -(-size // _MOST_PIECES)))


def _product_in_pieces(x: Array, matrix: Array, axis: str) -> Array:
    """Multiply x [n, k, d] by a matrix [k, d, p] over the axis d, or x [n, k, p] over p, in pieces added in turn."""
    size, length = x.shape[-1], _piece_length(x.shape[-1])
    place = "kdp".index(axis)
    letters = f"nk{axis},kdp->nk{'p' if axis == 'd' else 'd'}"
    one_block = x.shape[1] == 1
    if one_block:  # a plain product, for which nothing needs to be transposed first
        x, matrix, letters, place = x[:, 0], matrix[0], letters.replace("k", ""), place - 1
    parts = []
    for start in range(0, size, length):
        piece = jax.lax.slice_in_dim(matrix, start, min(start + length, size), axis=place)
        own = x[..., start : start + length]
        parts.append(jnp.einsum(letters, own, piece, precision=jax.lax.Precision.HIGHEST))
    total = _added(parts)
    return total[:, None] if one_block else total


def _times_shared(coefficient: Array, shared: Array) -> Array:
    """Multiply, where M may be infinite or NaN if no row is kept."""
    return jnp.where(coefficient == 0, 0, coefficient * shared)


def _added(parts: list[Array]) -> Array:
    return functools.reduce(jnp.add, parts)
