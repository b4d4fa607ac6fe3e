"""Clip the gradients of a batch of examples and add them up, within a derived rounding bound.

The promise is on what the machine returns, not on real arithmetic: for any two batches, padded to the same size B,
that differ by one added or removed row, the two returned sums differ by at most C in l2 norm, given that the computed
gradient of a row (for an outer product its two computed factors) is a function of that row, and one value: what its
norm is taken of is what is added (`_rows` fixes its rounding and sets a barrier for that). So much is the compiler's:
programs of different batch sizes may compute the same row's gradient differently (a ReLU at its kink can fall on
either side), so pad to ONE static size. With u the unit roundoff of the accumulation dtype (2^-24 for float32) and d
coordinates in n leaves, the parts are, relative to C:

* Norm. Squares and their sum are off by at most sum_error_terms(d) + sum_error_terms(n) + 1 roundings, for the two
  factors of an outer product by twice that, halved by the square root; group bounds, the square root, the quotient and
  the product cost 10 more. A row may thus be scaled to C (1 + k u). No difference is taken anywhere, so nothing
  cancels; where a gradient is held as a sum of terms, `_mixed` rounds its norm up by what they can lose.
* Terms. c_i g_i is rounded at most twice, once when it is scaled and once in the product of a contraction: 2 u B C.
* Plain sums. At most b rows are added by one reduction or contraction, in whatever order the compiler likes: whatever
  the tree, its inner nodes hold partial sums of at most m rows, m = 2..b, so it is off by at most
  u C (2 + ... + b), that is u B C ((b + 1) / 2 - 1 / b) for all of them.
* Compensated sums. Those partial sums are added with the error of each addition kept (`two_sum`), off by less than
  2 u^2 (B + 9) B C, which is below u B C / 100 up to the largest B that is accepted; the result is rounded once: u B C.
  Tables whose rows few examples touch are added in whole numbers instead, exactly (`_table_sum`).
* Devices. Where the batch is spread over G devices, each has its own compensated sum of its rows, and one all-reduce of
  those adds at most u B C ((G + 1) / 2 - 1 / G).

Rows that are held as a sum of terms stay within "Terms" and "Plain sums" of other rows (`_mixed`), in float64, in a
model of more than 1,024 parameters, within 2^10 times as much.

Neighbours differ by one row and by two such errors: rows are clipped to C / (1 + slack) with

    slack = min(1%, u (k + B (b + 1 - 2 / b + 6.1)))

(there u (k + B (2^10 (b + 1 - 2 / b + 4) + 2.1))) and b = 128, for which a contraction costs what it costs without
privacy; in a model of up to 1,024 parameters b = 1, where it costs little (with 4,810 parameters and 384 rows it would
cost ten times the whole step on a CPU). Larger batches take the largest b that keeps the slack at 1%, and one for which
even b = 1 would not (float32: 27,000 rows) is refused. Over G devices b is at least G + 2, of which a device adds b - G
- 1 rows plainly. The sensitivity is then exactly C.

The slack depends on shapes alone and is the same for every strategy. It must not follow the realised, private, batch
size: where batches are padded to several sizes it must be that of the largest (`max_batch_size`). (slack / B does not
grow with B, so that even batches of B and B + 1 rows, not padded, differ by at most C in exact arithmetic.)

Sums of several calls. Where K sums are added up (`gdpjax.accumulate_clipped`, compensated), an added row moves others
from one call to the next, so the errors of all of them count, those of call t being R_t (b + 1 - 2 / b + 6.1) u for its
R_t rows, and u R_t for either neighbour, with 5% for what the compensation loses, where the total is rounded. All are
in units of what call t clips to, C / (1 + slack_t). The total moves by at most C times

    (1 + u k) / (1 + slack) + sum_t u R_t (b + 1 - 2 / b + 6.1 + 2.1) / (1 + slack_t),

where the slack is that of the last call. Calls of other sizes may clip to other thresholds, and a row that moves from
one call to the next then changes by the difference of (1 + u k) / (1 + slack_t): the difference of any two calls that
follow each other is added twice, once for what the moved row changes by and once to bound the largest of them by the
last. By that number, if it is above 1, the noise is enlarged. ``max_batch_size``, where it is given as the rows of all
calls together, makes slack_t hold nearly all of it.

A row with a NaN or an infinity contributes exact zeros, as does padding.
"""

import functools
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import CLIP_NORM
from gdpjax._core.trees import (
    compensated_add,
    compensated_row_sum,
    is_floating,
    most_sum_error_terms,
    num_elements,
    power_of_two,
    two_sum,
    wide_dtype,
)
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._mixed import partial_sum, square
from gdpjax.clipping._rows import (
    Dense,
    RankOne,
    Square,
    TableRows,
    Weights,
    entries,
    formed,
    in_blocks,
    stacked,
    total,
    weighted_values,
)
from gdpjax.clipping._rules import AbstractClipRule, Groups, bounded_coefficients
from gdpjax.clipping._table_sum import is_exact, table_sum
from gdpjax.clipping._terms import AnyRows, Mixed, arrays, row_blocks, taken

MAX_SLACK = 0.01
_PLAIN_ROWS = 128
_TABLE_TERMS = most_sum_error_terms(2**31) / 2
"""An example may look up more rows of a small table than the table has, but not more entries than can be indexed."""
_SMALL = 2**10
"""Parameters up to which every row is added with its rounding error kept."""
_FINE = 2.0**-50
_SPARE = 2.0**10
"""With a unit roundoff below `_FINE` a gradient of terms that cancel (`_mixed`) may be rounded so much more."""


_FEW_BLOCKS = 8
"""Blocks of rows that are added one after the other in a program; more are added by a loop."""
_SCATTER = 2
"""Cost of adding a number to a place of a table twice, over that of a compensated addition in order."""


class Rounding(NamedTuple):
    """How a batch is added up, and what is kept back for it.

    Attributes:
      slack: rows are clipped to C / (1 + slack).
      plain_rows: rows added by one reduction.
      norm: what is needed for the norm of one row, u k.
      per_row: what is needed for the sum, for each row.
      unit: u.
      spare: allowance for terms and plain sums, in what rows of one gradient need.
    """

    slack: float
    plain_rows: int
    norm: float
    per_row: float
    unit: float
    spare: float


Pair = tuple[Array, Array]
"""An unevaluated sum hi + lo."""


def rounding(leaves: list[Array], num_rows: int, devices: int = 1) -> Rounding:
    """The static rounding allowance for ``num_rows`` rows of gradients shaped like ``leaves``, over all devices."""
    unit = max(float(np.finfo(wide_dtype(leaf)).eps) / 2 for leaf in leaves)
    sizes = [num_elements(leaf) for leaf in leaves]
    norm_terms = max(most_sum_error_terms(max(sizes)), _TABLE_TERMS) + (most_sum_error_terms(len(leaves)) + 1) / 2 + 10
    large = sum(sizes) > _SMALL
    spare = _SPARE if large and unit < _FINE else 1.0
    per_row = lambda b: unit * (spare * (b + 1 - 2 / b + 4) + 2.1)  # noqa: E731
    slack_of = lambda b: unit * norm_terms + num_rows * per_row(b)  # noqa: E731
    least = 1 if devices == 1 else devices + 2
    rows = max(_PLAIN_ROWS if large else 1, least)
    slack = min(slack_of(rows), MAX_SLACK)
    while slack_of(rows) > MAX_SLACK and rows > least:
        rows -= 1
    if slack_of(rows) > MAX_SLACK:
        raise ValueError(
            f"a batch of {num_rows} rows is too large for the rounding of its sum to stay within 1% of the clip norm "
            f"(it could reach {slack_of(rows):.1%}); use smaller logical batches, or float64 gradients"
        )
    plain = rows if devices == 1 else rows - devices - 1
    return Rounding(slack, plain, unit * norm_terms, per_row(rows), unit, spare)


class Scaling(NamedTuple):
    """What each row is multiplied by in each group of parameters, and the norms of the rows before."""

    weights: list[Weights]
    norms: Array
    bounds: list[Array]
    is_dropped: Array  # rows that are not padding, and not finite


def scaling(
    rows: list[AnyRows], rule: AbstractClipRule, groups: Groups, slack: float, is_padding: Array | None
) -> Scaling:
    """Norms of the rows and what the rule makes of them."""
    dtype = functools.reduce(jnp.promote_types, [_dtype(r) for r in rows])
    squares = [square(r, dtype) for r in rows]
    whole = total(stacked(squares))
    keep = jnp.isfinite(whole.value)
    is_dropped = ~keep
    if is_padding is not None:
        keep, is_dropped = keep & ~is_padding, is_dropped & ~is_padding
    weights, bounds = [], []
    for number, bound in enumerate(groups.bounds):
        members = [s for s, group in zip(squares, groups.of_leaf, strict=True) if group == number]
        part = whole if len(groups.bounds) == 1 else total(stacked(members)) if members else whole
        checked = jnp.asarray(bound, dtype)
        checked = jnp.where(CLIP_NORM.contains(checked * _headroom(groups)), checked, jnp.nan) / (1 + slack)
        bounds.append(checked)
        weights.append(Weights(part.exponent, bounded_coefficients(rule, _root(part), part.exponent, checked), keep))
    norms = _root(whole) * power_of_two(whole.exponent, dtype)
    return Scaling(weights, jnp.where(keep, norms, 0), bounds, is_dropped)


def _headroom(groups: Groups) -> float:
    """A bound split over many leaves may lie below the range of a whole one."""
    return float(np.sqrt(len(groups.bounds)))


def _dtype(rows: AnyRows) -> jnp.dtype:
    return functools.reduce(jnp.promote_types, [wide_dtype(x) for x in arrays(rows) if is_floating(x)])


def _root(part: Square) -> Array:
    # sqrt(0) has an infinite slope, which would spoil derivatives through the clipped sum.
    return jnp.where(part.value > 0, jnp.sqrt(jnp.where(part.value > 0, part.value, 1)), 0)


def add_clipped(carry: list[Pair], rows: list[AnyRows], scale: Scaling, groups: Groups, how: Rounding) -> list[Pair]:
    """Add the clipped rows to the running sums."""
    members = zip(carry, rows, groups.of_leaf, strict=True)
    return [_added(pair, r, scale.weights[group], scale.bounds[group], how) for pair, r, group in members]


def _added(carry: Pair, rows: AnyRows, weights: Weights, bound: Array, how: Rounding) -> Pair:
    """Add the clipped rows of one parameter, in the way that costs least for its shape."""
    start, num_rows, size = 0, weights.keep.shape[0], num_elements(carry[0])
    blocks = -(-num_rows // how.plain_rows)
    if isinstance(rows, TableRows) and blocks * size > _SCATTER * num_rows * entries(rows):
        values = weighted_values(rows, weights)
        if is_exact(num_rows, entries(rows), values.dtype):
            return two_sum(*compensated_add(carry, table_sum(rows.index, values, bound, carry[0])))
    if how.plain_rows == 1 and not isinstance(rows, Mixed):  # for the others there is no budget then
        return two_sum(*compensated_add(carry, compensated_row_sum(formed(rows, weights))))
    if blocks > _FEW_BLOCKS and isinstance(rows, Dense | RankOne) and blocks * size <= num_rows * entries(rows):
        start = num_rows // how.plain_rows * how.plain_rows
        sums = in_blocks(cast(Dense | RankOne, taken(rows, 0, start)), weights[:start], how.plain_rows)
        carry = two_sum(*compensated_add(carry, compensated_row_sum(sums)))
    for first in range(start, num_rows, how.plain_rows):
        for block in row_blocks(rows, first, min(first + how.plain_rows, num_rows)):
            carry = _plus(carry, partial_sum(taken(rows, *block), weights[slice(*block)]))
    return carry


def _plus(pair: Pair, part: Array) -> Pair:
    # Renormalising keeps lo a rounding error of hi, so its own rounding never builds up.
    return two_sum(*compensated_add(pair, (part, jnp.zeros_like(part))))


def zero_pairs(leaves: list[Array]) -> list[Pair]:
    """Where the running sums of parameters shaped like ``leaves`` start."""
    zeros = [jnp.zeros(leaf.shape, wide_dtype(leaf)) for leaf in leaves]
    return [(zero, zero) for zero in zeros]


def rounded(pairs: list[Pair]) -> list[Array]:
    """hi + lo, the one rounding of the sum."""
    return [hi + lo for hi, lo in pairs]


def zeros_like_sum(leaf: Array) -> Array:
    """What a leaf without a gradient contributes: zeros, in the dtype of a sum where it is floating."""
    return jnp.zeros(jnp.shape(leaf), wide_dtype(leaf) if is_floating(leaf) else jnp.result_type(leaf))


def merge_leaves(params: PyTree, which: tuple[bool, ...], values: list[Array]) -> PyTree:
    """A tree like ``params`` with ``values`` at the marked leaves and zeros at the others."""
    leaves, structure = jax.tree.flatten(params)
    remaining = iter(values)
    merged = [next(remaining) if mark else zeros_like_sum(leaf) for leaf, mark in zip(leaves, which, strict=True)]
    return jax.tree.unflatten(structure, merged)
