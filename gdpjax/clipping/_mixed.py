"""Gradients of one parameter that are a sum: an outer product or table rows, plus shared arrays times coefficients.

An L2 term in the loss, and weight normalisation, add to an example's outer product X_i a multiple of an array that is
the same for all examples, such as 2 lam W (`_ghost._cuts` says where it comes from):

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

where the 2 are those of "Terms" in `_clip` (of coefficients and products), the next parts are what adding m rows and J
results up costs, and R additions join the R + 1 parts. A row of any other gradient, clipped to C, is allowed

    z C,   z = 2 + (b + 1) / 2 - 1 / b,

in "Terms" and "Plain sums" there. So with m = b / 8 rows at a time, J = 4, and a norm that is rounded up to T x / z at
least,

    norm = max(n, T x / z),     f norm <= C,

the rounding of these rows is within what the slack in `_clip` holds for any row, whatever cancels: the sensitivity is
C, with the same slack for every strategy. What comes after (compensated sums of the parts, the result, the devices) is
relative to what is left after cancellation, as there, but for terms of second order, which are z / x times as large and
remain far below what `_clip` has to spare. In float32 z / x is 4.9 for R = 1, and no less than 1.6 for batches of
thousands: a row of which less than 20% (63%) of T is left is clipped to less than the definition says, never to more;
where the terms are orthogonal, 70% are left. In float64 the slack allows `_SPARE` of `_clip` as much rounding, and this
happens below 0.02% of T only. Rules that divide by the norm divide by this one.

All of it is done on numbers scaled by powers of two: the factors by rows and blocks, the M by columns, so that neither
large nor small ones are lost. A row with a NaN or an infinity anywhere has a norm of NaN and is left out, as any other.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import bounded_sum, most_sum_error_terms, power_of_two
from gdpjax._core.types import Array
from gdpjax.clipping import _rows
from gdpjax.clipping._factors import arrange
from gdpjax.clipping._rows import RankOne, Square, TableRows, Weights
from gdpjax.clipping._terms import AnyRows, Budget, Mixed, Term

_MOST_PIECES = 16
_PIECE = 128


def square(rows: AnyRows, dtype: jnp.dtype) -> Square:
    """Squared norms of the rows, those of `Mixed` rounded up: see the module."""
    if not isinstance(rows, Mixed):
        return _rows.square(rows, dtype)
    terms = [Term(t.coefficients.astype(dtype), t.exponent, t.shared.astype(dtype)) for t in rows.terms]
    if isinstance(rows.data, TableRows):
        of_data, products, error = _table_parts(rows.data, terms, dtype)
    else:
        of_data, products, error = _product_parts(rows.data, terms, dtype)
    count = len(terms)
    error = _rounding(error, count, dtype)
    inner = {(r, s): _shared_product(terms[r], terms[s]) for r in range(count) for s in range(r, count)}
    # All on the scale of the largest part of each block.
    lowest = -(2**20)
    exponents = [jnp.where(of_data.value == 0, lowest, of_data.exponent)]
    exponents += [jnp.where(inner[r, r] == 0, lowest, term.exponent) for r, term in enumerate(terms)]
    most = functools.reduce(jnp.maximum, exponents)
    most = jnp.where(most == lowest, 0, most)
    down, *downs = (power_of_two(e - most, dtype) for e in exponents)
    sizes = sum((_root(inner[r, r]) * scale for r, scale in enumerate(downs)), _root(of_data.value) * down)
    found = of_data.value * down * down + 2 * sum(p * (down * scale) for p, scale in zip(products, downs, strict=True))
    found = found + sum((1 + (r < s)) * value * (downs[r] * downs[s]) for (r, s), value in inner.items())
    upper = jnp.maximum(found, 0) + error * jnp.square(sizes)
    least = rows.budget.least(count, isinstance(rows.data, TableRows))
    return _rows.total(Square(jnp.maximum(upper, jnp.square(least * sizes)), most))


def _rounding(products: int, terms: int, dtype: jnp.dtype) -> float:
    """1.05 k u: the products are off by ``products`` roundings and a few for scaling, and added up with others."""
    return 1.05 * float(np.finfo(dtype).eps) / 2 * (products + 8 + (terms + 1) ** 2)


def _root(value: Array) -> Array:
    return jnp.where(value == 0, 0, jnp.sqrt(jnp.where(value == 0, 1, value)))


def _shared_product(first: Term, second: Term) -> Array:
    """<S_r, S_s> [N, K], without the exponents."""
    blocks = first.coefficients.shape[1]
    a, b = (t.shared.reshape(blocks, -1, t.shared.shape[-1]) for t in (first, second))
    by_column = bounded_sum(jnp.swapaxes(a * b, 1, 2))
    if first.coefficients.shape[-1] == second.coefficients.shape[-1] == 1:
        by_column = bounded_sum(by_column)[:, None]
    return bounded_sum(first.coefficients * second.coefficients * by_column)


_Parts = tuple[Square, list[Array], int]
"""||X||^2 [N, K]; for each term <X, S> without the exponents; how many roundings any of the products is off by."""


def _table_parts(rows: TableRows, terms: list[Term], dtype: jnp.dtype) -> _Parts:
    values = _rows.wide(rows.values).astype(dtype).reshape(rows.values.shape[0], -1)
    found = _rows.scaled_square(values)
    values = values * power_of_two(-found.exponent, dtype)[:, None]
    products = []
    for term in terms:
        shared = term.shared.at[rows.index].get(mode="fill", fill_value=0).reshape(values.shape)
        products.append(bounded_sum(values * shared)[:, None] * term.coefficients[..., 0])
    sizes = (values.shape[-1], math.prod(rows.shape[:-1]), rows.shape[-1])
    error = sum(most_sum_error_terms(size) for size in sizes)
    return Square(found.value[:, None], found.exponent[:, None]), products, error


def _product_parts(rows: RankOne, terms: list[Term], dtype: jnp.dtype) -> _Parts:
    left, right = (_rows.wide(x).astype(dtype) for x in (rows.left, rows.right))
    a, b = _rows.scaled_square(left), _rows.scaled_square(right)
    left = left * power_of_two(-a.exponent, dtype)[..., None]
    right = right * power_of_two(-b.exponent, dtype)[..., None]
    products = []
    for term in terms:
        weighted = right * term.coefficients
        if left.shape[-1] < right.shape[-1]:
            products.append(bounded_sum(_in_pieces(left, term.shared, "d") * weighted))
        else:
            products.append(bounded_sum(_in_pieces(weighted, term.shared, "p") * left))
    sizes = (left.shape[-1], right.shape[-1])
    length = _piece(min(sizes))
    error = sum(most_sum_error_terms(size) for size in sizes) + length - (-min(sizes) // length)
    return Square(a.value * b.value, a.exponent + b.exponent), products, error


def _piece(size: int) -> int:
    return min(size, max(_PIECE, -(-size // _MOST_PIECES)))


def _in_pieces(x: Array, matrix: Array, axis: str) -> Array:
    """x [n, k, d] times matrix [k, d, p] over the axis d, or [n, k, p] over p, in pieces that are added up in turn."""
    size, length, place = x.shape[-1], _piece(x.shape[-1]), "kdp".index(axis)
    letters = f"nk{axis},kdp->nk{'p' if axis == 'd' else 'd'}"
    if one_block := x.shape[1] == 1:  # a plain product, for which nothing needs to be transposed first
        x, matrix, letters, place = x[:, 0], matrix[0], letters.replace("k", ""), place - 1
    cut = functools.partial(jax.lax.slice_in_dim, matrix, axis=place)
    parts = [
        jnp.einsum(letters, x[..., i : i + length], cut(i, min(i + length, size)), precision=jax.lax.Precision.HIGHEST)
        for i in range(0, size, length)
    ]
    total = _added(parts)
    return total[:, None] if one_block else total


def partial_sum(rows: AnyRows, weights: Weights) -> Array:
    """The plain sum of weighted rows: their number is what `_clip`, or the budget, limits."""
    if not isinstance(rows, Mixed):
        return _rows.partial_sum(rows, weights)
    if isinstance(rows.data, TableRows):
        total = _rows.partial_sum(rows.data, weights)
        for term in rows.terms:
            share = _share(term, weights, [slice(None)]).reshape((1,) * total.ndim)
            total = total + jnp.where(share == 0, 0, share * term.shared)
        return total
    left, right = _rows.weighted_factors(rows.data, weights)
    parts = _parts(left.shape[0], rows.budget)
    total = _added([_rows.contracted(left[part], right[part]) for part in parts])
    for term in rows.terms:
        share = _share(term, weights, parts)[:, None, :]
        # M may be infinite or NaN where no row is kept.
        total = total + jnp.where(share == 0, 0, share * term.shared)
    return arrange(total, rows.data.axes, rows.data.shape)


def _parts(num_rows: int, budget: Budget) -> list[slice]:
    rows, _ = budget.at_a_time(False)
    return [slice(start, min(start + rows, num_rows)) for start in range(0, num_rows, rows)]


def _added(parts: list[Array]) -> Array:
    return functools.reduce(jnp.add, parts)


def _share(term: Term, weights: Weights, parts: list[slice]) -> Array:
    """sum_i f_i c_i [K, 1 or p]."""
    every = Weights(*(jnp.broadcast_to(part[:, None], term.exponent.shape) for part in weights))
    every = every._replace(exponent=every.exponent - term.exponent)
    down, rest = _rows.halves(every, term.coefficients.dtype)
    scaled = _rows.kept(term.coefficients, every, down)
    # By products: the compiler would add rows up again for every entry of M.
    highest = jax.lax.Precision.HIGHEST
    if scaled.shape[1] == 1:
        return _added([jnp.einsum("n,np->p", rest[i, 0], scaled[i, 0], precision=highest) for i in parts])[None]
    return _added([jnp.einsum("nk,nkp->kp", rest[i], scaled[i], precision=highest) for i in parts])
