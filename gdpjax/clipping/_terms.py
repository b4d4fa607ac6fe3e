"""Gradients of one parameter that are a sum, and how they are held: an outer product or table rows, plus terms M * c.

M is shared by all examples; c is one coefficient of each, or one for each column. `_mixed` takes their norms and
weighted sums, and derives what a `Budget` is. Small gradients, and sums that do not have this form, are formed.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import power_of_two, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping import _rows
from gdpjax.clipping._factors import arrange
from gdpjax.clipping._rows import Dense, RankOne, Rows, TableRows

_ORTHOGONAL = 0.7
"""Below sqrt(1/2), which is what is left of two orthogonal parts."""
_MANY = 64
_MOST_TERMS = 4
_LARGE = 2**10


class Budget(NamedTuple):
    """What rounding may cost: ``plain_rows`` are added plainly elsewhere, and ``spare`` as much is allowed here."""

    plain_rows: int
    spare: float

    @property
    def most_terms(self) -> int:
        """Up to how many terms leave orthogonal ones as they are."""
        return sum(self.least(terms, True) <= _ORTHOGONAL for terms in range(1, _MOST_TERMS + 1))

    def at_a_time(self, is_table: bool) -> tuple[int, int]:
        """m and J; few rows, and those of a table, are added up in one part."""
        if is_table or self.plain_rows < _MANY:
            return max(1, self.plain_rows // 4), 1
        return self.plain_rows // 8, 4

    def least(self, terms: int, is_table: bool) -> float:
        """x / z: the least norm, in units of the norms of the parts."""
        b, (m, parts) = self.plain_rows, self.at_a_time(is_table)
        x = 2 + (m + 1) / 2 - 1 / m + (parts + 1) / 2 - 1 / parts + terms
        return x / (self.spare * (2 + (b + 1) / 2 - 1 / b))


class Term(NamedTuple):
    """M * c: ``shared`` [K, d, p] (of a table: its shape) with columns scaled to 1; c is 2^exponent coefficients."""

    coefficients: Array  # [N, K, 1 or p]
    exponent: Array  # [N, K]
    shared: Array


class Mixed(NamedTuple):
    """Outer products or table rows, plus terms."""

    data: RankOne | TableRows
    terms: tuple[Term, ...]
    budget: Budget


AnyRows = Rows | Mixed


def mixed(rows: Rows, terms: list[tuple[Array, Array]], budget: Budget) -> AnyRows:
    """The sum of rows and terms (coefficients [N, ...] with ones where they are spread, shared array)."""
    if isinstance(rows, TableRows | RankOne) and len(terms) <= budget.most_terms:
        found = _of_table(rows, terms) if isinstance(rows, TableRows) else _of_product(rows, terms)
        if found is not None:
            data, prepared = found
            return Mixed(data, tuple(prepared), budget)
    whole = _as_dense(rows)
    for coefficients, shared in terms:
        dtype = functools.reduce(jnp.promote_types, [wide_dtype(x) for x in (whole, coefficients, shared)])
        whole = whole.astype(dtype) + coefficients.astype(dtype) * shared.astype(dtype)
    return Dense(whole)


def _as_dense(rows: Rows) -> Array:
    if isinstance(rows, Dense):
        return rows.rows
    if isinstance(rows, RankOne):
        left, right = _rows.wide(rows.left), _rows.wide(rows.right)
        return arrange(left[..., None] * right[..., None, :], rows.axes, rows.shape)
    values = _rows.wide(rows.values)
    place = jnp.broadcast_to(jnp.arange(values.shape[0], dtype=jnp.int32)[:, None], rows.index.shape)
    return jnp.zeros((values.shape[0], *rows.shape), values.dtype).at[place, rows.index].add(values, mode="drop")


def _of_table(rows: TableRows, terms: list[tuple[Array, Array]]) -> tuple[TableRows, list[Term]] | None:
    if math.prod(rows.shape) <= _LARGE or any(c[0].size > 1 for c, _ in terms):
        return None
    return rows, [_term(c.reshape(-1, 1, 1), m.reshape(1, -1, 1), m.shape) for c, m in terms]


def _of_product(rows: RankOne, terms: list[tuple[Array, Array]]) -> tuple[RankOne, list[Term]] | None:
    """The terms as blocks of matrices, with the coefficients along the right factor."""
    if math.prod(rows.shape) <= _LARGE:
        return None
    along = {kind for c, _ in terms for (kind, _), size in zip(rows.axes, c.shape[1:], strict=True) if size > 1}
    if "l" in along:
        if "r" in along:
            return None
        swapped = {"l": "r", "r": "l", "b": "b"}
        axes = tuple((swapped[kind], place) for kind, place in rows.axes)
        rows = RankOne(rows.right, rows.left, axes, rows.shape)
    order = [axis for kind in "blr" for _, axis in sorted((p, i) for i, (k, p) in enumerate(rows.axes) if k == kind)]
    kinds = [rows.axes[axis][0] for axis in order]
    blocks, right = kinds.count("b"), kinds.count("r")
    shape = (rows.left.shape[1], rows.left.shape[2], rows.right.shape[2])
    prepared = []
    for c, m in terms:
        m, c = jnp.transpose(m, order), jnp.transpose(c, (0, *(1 + axis for axis in order)))
        own = c.shape[len(c.shape) - right :]
        wide = m.shape[len(order) - right :] if math.prod(own) > 1 else own
        c = jnp.broadcast_to(c, (c.shape[0], *m.shape[:blocks], *(1,) * (len(order) - blocks - right), *wide))
        prepared.append(_term(c.reshape(c.shape[0], shape[0], -1), m.reshape(shape), None))
    return rows, prepared


def _term(coefficients: Array, shared: Array, shape: tuple[int, ...] | None) -> Term:
    """c [N, K, 1 or p] and M [K, d, p], scaled; M in another shape where one is given."""
    coefficients, shared = _rows.wide(coefficients), _rows.wide(shared)
    columns = jnp.swapaxes(shared, 1, 2)
    if coefficients.shape[-1] == 1:
        columns = columns.reshape(columns.shape[0], 1, -1)
    size, _ = _rows.scale(columns)  # [K, 1 or p]
    shared = shared * power_of_two(-size, shared.dtype)[:, None, :]
    own, largest = _rows.scale(coefficients[..., None])
    lowest = -(2**20)
    exponents = jnp.where(largest > 0, own + size, lowest)
    most = exponents.max(axis=-1)
    down = power_of_two(-own, coefficients.dtype) * power_of_two(exponents - most[..., None], coefficients.dtype)
    return Term(coefficients * down, jnp.where(most == lowest, 0, most), shared.reshape(shape or shared.shape))


def arrays(rows: AnyRows) -> list[Array]:
    """What is held for each row."""
    if not isinstance(rows, Mixed):
        return [x for x in rows if hasattr(x, "dtype")]
    return [*arrays(rows.data), *(x for term in rows.terms for x in term[:2])]


def row_blocks(rows: AnyRows, start: int, stop: int) -> list[tuple[int, int]]:
    """From ``start`` to ``stop`` in parts that may be added up plainly."""
    step = stop - start
    if isinstance(rows, Mixed):
        step = math.prod(rows.budget.at_a_time(isinstance(rows.data, TableRows)))
    return [(first, min(first + step, stop)) for first in range(start, stop, step)]


def taken(rows: AnyRows, start: int, stop: int) -> AnyRows:
    """Some of the rows."""
    if isinstance(rows, Dense):
        return Dense(rows.rows[start:stop])
    if isinstance(rows, RankOne):
        return rows._replace(left=rows.left[start:stop], right=rows.right[start:stop])
    if isinstance(rows, TableRows):
        return rows._replace(index=rows.index[start:stop], values=rows.values[start:stop])
    terms = [t._replace(coefficients=t.coefficients[start:stop], exponent=t.exponent[start:stop]) for t in rows.terms]
    return rows._replace(data=taken(rows.data, start, stop), terms=tuple(terms))


def computed_once(rows: list[AnyRows]) -> list[AnyRows]:
    """The same rows, for the norm and for the sum: the compiler is not to work them out anew for either."""
    leaves, structure = jax.tree.flatten(rows)
    found = iter(jax.lax.optimization_barrier([x for x in leaves if isinstance(x, jax.Array)]))
    return jax.tree.unflatten(structure, [next(found) if isinstance(x, jax.Array) else x for x in leaves])
