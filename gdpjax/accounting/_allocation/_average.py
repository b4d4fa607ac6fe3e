"""Averages of independent likelihood ratios on one geometric grid.

For values y_i and y_{i+d} of the grid, weighted u and 1 - u, the average is y_i e^{c(d)} with

    c(d) = log(u + (1 - u) e^{d h}),        h the spacing,

whose offset from y_i depends on d alone. With m(d) a whole number next to c(d) / h and f = c(d) - m(d) h,

    upper: m from below: to i + m + 1 with weight (e^f - 1) / (e^h - 1), to i + m with the rest, which keeps the mean;
    lower: m nearest: label i + m, whose excess grows by (e^f - 1) l_i l_j + e^f (a x_i l_j + b l_i x_j), where l are
           the masses and x the excesses of the two labels, a = u e^{-c} and b = (1 - u) e^{d h - c} their shares.

So averaging takes a loop over d of shifted elementwise products: `average`. The mean of t = m + m or m + (m + 1) ratios
comes from those of m and m + 1, so log2 t rounds give the mean of any number t, `average_of_steps`. As the range of log
R shrinks, `_cut` drops the ends and doubles the resolution; the old values stay values of the new grid.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._allocation._law import CELLS, UNIT_ROUNDOFF, Grid, Law

_CHUNK = 256
_UNROLLED = 4
_DIFFERENCES = np.arange(2 * CELLS) - (CELLS - 1)
_HIGHEST_OFFSETS = np.maximum(_DIFFERENCES - 1, -np.sign(np.abs(_DIFFERENCES)))
_FINEST = 6


class _Offsets(NamedTuple):
    """For each difference d [2 CELLS]: the two offsets m, and the weights of the products."""

    upper_offset: Array
    to_left: Array
    to_right: Array
    lower_offset: Array
    multiplicity: Array
    own_excess: Array
    first_excess: Array
    second_excess: Array


def _log_mean_exp(share: Array, x: Array) -> Array:
    """log(share + (1 - share) e^x), to a few ulp of itself also near zero."""
    # Relative to the larger of the two terms.
    swap = x > 0
    weight = jnp.where(swap, share, 1.0 - share)
    change = weight * jnp.expm1(-jnp.abs(x))
    near = change > -0.25  # XLA's log1p loses digits below -0.4
    direct = jnp.log(1.0 - weight + weight * jnp.exp(-jnp.abs(x)))
    value = jnp.where(near, jnp.log1p(jnp.where(near, change, 0.0)), direct)
    return jnp.where(swap, x + value, value)


def _offsets(grid: Grid, share: Array, symmetric: Array) -> _Offsets:
    """Where pairs go, and with which weights."""
    d, h = _DIFFERENCES, grid.spacing
    c = _log_mean_exp(share, d * h)
    # The average lies between the two, and strictly below the larger one.
    offset = jnp.clip(jnp.floor(c / h), np.minimum(d, 0), _HIGHEST_OFFSETS)
    rest = jnp.clip(c - offset * h, 0.0, h)
    nearest = offset + jnp.where(rest > 0.5 * h, 1.0, 0.0)
    lower_rest = c - nearest * h

    # Two equal laws: d and -d give the same.
    doubled = jnp.where(d > 0, 2.0, jnp.where(d == 0, 1.0, 0.0))
    multiplicity = jnp.where(symmetric, doubled, 1.0)
    whole = multiplicity / jnp.expm1(h)
    growth = multiplicity * jnp.exp(lower_rest)
    return _Offsets(
        upper_offset=offset.astype(np.int32),
        to_left=whole * jnp.exp(rest) * jnp.expm1(h - rest),
        to_right=whole * jnp.expm1(rest),
        lower_offset=nearest.astype(np.int32),
        multiplicity=multiplicity,
        own_excess=multiplicity * jnp.expm1(lower_rest),
        first_excess=growth * share * jnp.exp(-c),
        second_excess=growth * (1.0 - share) * jnp.exp(jnp.minimum(d * h - c, 50.0)),
    )


def average(first: Law, second: Law, grid: Grid, share: Array, symmetric: Array) -> Law:
    """The law of share R_1 + (1 - share) R_2, R_1 and R_2 independent.

    ``symmetric`` says that the two laws are equal and the share is 1/2, which halves the work.
    """
    table = _offsets(grid, share, symmetric)
    begin = jnp.where(symmetric, CELLS - 1, CELLS - grid.size).astype(np.int32) // _UNROLLED
    end = (CELLS - 1 + grid.size).astype(np.int32) // _UNROLLED + 1
    pad = functools.partial(jnp.pad, pad_width=CELLS)
    upper_1, lower_1, excess_1 = pad(first.upper), pad(first.lower), pad(first.excess)
    upper_2, lower_2, excess_2 = pad(second.upper), pad(second.lower), pad(second.excess)
    cut = functools.partial(jax.lax.dynamic_slice_in_dim, slice_size=_CHUNK)

    def one_difference(index: Array, start: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
        left, right, lower, excess = sums
        at = _Offsets(*(column[index] for column in table))
        difference = index - (CELLS - 1)

        i = start - at.upper_offset
        j = i + difference
        product = cut(upper_1, i) * cut(upper_2, j)
        left = left + at.to_left * product
        right = right + at.to_right * product
        i = start - at.lower_offset
        j = i + difference
        mass_1, mass_2 = cut(lower_1, i), cut(lower_2, j)
        product = mass_1 * mass_2
        lower = lower + at.multiplicity * product
        moved = at.first_excess * cut(excess_1, i) * mass_2 + at.second_excess * mass_1 * cut(excess_2, j)
        return left, right, lower, excess + (at.own_excess * product + moved)

    def chunk(c: Array, totals: tuple[Array, ...]) -> tuple[Array, ...]:
        def block(b: Array, sums: tuple[Array, ...]) -> tuple[Array, ...]:
            for k in range(_UNROLLED):
                sums = one_difference(_UNROLLED * b + k, CELLS + _CHUNK * c, sums)
            return sums

        zeros = jnp.zeros(_CHUNK)
        sums = jax.lax.fori_loop(begin, end, block, (zeros,) * 4)
        put = functools.partial(jax.lax.dynamic_update_slice_in_dim, start_index=_CHUNK * c, axis=0)
        return tuple(put(total, part) for total, part in zip(totals, sums, strict=True))

    zeros = jnp.zeros(CELLS)
    chunks = (grid.size.astype(np.int32) + (_CHUNK - 1)) // _CHUNK
    left, right, lower, excess = jax.lax.fori_loop(np.int32(0), chunks, chunk, (zeros,) * 4)

    # The average of 0 and y is moved to 0 and y, which keeps its mean; so no third value is needed.
    upper = left + jnp.roll(right, 1)
    beside_zero = first.at_zero * (1.0 - share) * second.upper + second.at_zero * share * first.upper
    # A label's mean is off by the error of the weights times the spread of what goes into it.
    rounding = first.rounding + second.rounding + UNIT_ROUNDOFF * (2.0 * grid.size + 64.0)
    moved = 16.0 * UNIT_ROUNDOFF * (grid.spacing * grid.size + jnp.abs(grid.origin))
    spread = jnp.expm1(grid.spacing) + 2.0 * jnp.max(jnp.abs(jnp.stack([first.mean_excess(), second.mean_excess()])))
    means_moved = moved + 4.0 * rounding * spread
    return Law(
        upper=upper + beside_zero,
        at_zero=share * first.at_zero + (1.0 - share) * second.at_zero + 1e-300,
        at_infinity=share * first.at_infinity + (1.0 - share) * second.at_infinity + grid.underflow(),
        lower=lower,
        excess=excess,
        rounding=rounding,
        displacement=jnp.maximum(first.displacement, second.displacement) + moved,
        lower_displacement=jnp.maximum(first.lower_displacement, second.lower_displacement) + means_moved,
    )


def _cut(laws: tuple[Law, Law], grid: Grid, most: Array, log_tail: Array) -> tuple[tuple[Law, Law], Grid]:
    """Drop values at both ends that carry next to nothing, and double the resolution as often as ``most`` values allow.

    The upper law moves the mass above the last value down to it and its P-mass to infinity, the mass below the first
    one to 0 and to that value. The lower law leaves them out.
    """
    index = np.arange(CELLS)
    log_values = grid.log_values()
    total = laws[0].upper + laws[1].upper
    log_total = jnp.where(total > 0, jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)
    # The tails fall by a factor of e in some thirty values.
    tolerance = log_tail - np.log(30.0)
    first = jnp.min(jnp.where(log_total > tolerance, index, CELLS - 1))
    last = jnp.max(jnp.where(log_total + log_values > tolerance, index, 0))
    last = jnp.maximum(last, first + 1)

    # The largest power of two that fits.
    powers = 2 ** np.arange(_FINEST + 1)
    factor = jnp.max(jnp.where((last - first) * powers < most, powers, 1))
    size = ((last - first) * factor + 1).astype(grid.size.dtype)
    finer = Grid(grid.origin + first * grid.spacing, grid.spacing / factor, size)
    source = jnp.minimum(first + index // factor, CELLS - 1)
    occupied = (index % factor == 0) & (index < finer.size)

    def spread(values: Array) -> Array:
        return jnp.where(occupied, values[source], 0.0)

    moved = 16.0 * UNIT_ROUNDOFF * (jnp.abs(finer.origin) + grid.spacing * grid.size)

    def one(law: Law) -> Law:
        below = jnp.where(index < first, law.upper, 0.0)
        above = jnp.where(index > last, law.upper, 0.0)
        at_first = jnp.sum(below * jnp.exp(jnp.minimum((index - first) * grid.spacing, 0.0)))
        upper = law.upper + jnp.where(index == first, at_first, 0.0) + jnp.where(index == last, jnp.sum(above), 0.0)
        return law._replace(
            upper=spread(upper),
            at_zero=law.at_zero + jnp.sum(below),
            at_infinity=law.at_infinity + jnp.sum(jnp.where(above > 0, above * jnp.exp(log_values), 0.0)),
            lower=spread(law.lower),
            excess=spread(law.excess),
            rounding=law.rounding + UNIT_ROUNDOFF * CELLS,
            displacement=law.displacement + moved,
            lower_displacement=law.lower_displacement + moved,
        )

    return (one(laws[0]), one(laws[1])), finer


def average_of_steps(
    step: Law, grid: Grid, num_steps: Array, also_next: Array, log_tail: Array
) -> tuple[tuple[Law, Law], Grid]:
    """The laws of the mean of t = ``num_steps`` ratios with the law ``step``, and (if ``also_next``) of t + 1.

    Binary digits of t, from the first: the laws of m and m + 1 give those of 2 m and 2 m + 1, or of 2 m + 1 and
    2 m + 2.
    """
    most = grid.size
    nothing = jax.tree.map(jnp.zeros_like, step)
    steps = num_steps.astype(np.int64)
    digits = 64 - jax.lax.clz(steps)

    def double(i: Array, state: tuple[tuple[Law, Law], Grid]) -> tuple[tuple[Law, Law], Grid]:
        (small, large), grid = state
        position = digits - 1 - i
        m = steps >> (position + 1)
        digit = (steps >> position) & 1
        remaining = steps & ((np.int64(1) << position) - 1)
        next_needed = (remaining > 0) | also_next

        # m = 0 stands before the first digit: there is nothing small, and large is one step.
        equal = jax.tree.map(lambda a, b: jnp.where(digit == 1, b, a), small, large)
        known = (m == 0) | ((m == 1) & (digit == 0) & next_needed)  # one step, and the mean of two
        equal_needed = jnp.where(digit == 1, next_needed, ~known)
        mixed_needed = jnp.where(digit == 1, m > 0, next_needed)
        share = jnp.where(m > 0, m, 1) / (2.0 * m + 1.0)

        # One compiled loop serves both: two equal laws, and a mixed pair.
        pairs = jax.tree.map(lambda *laws: jnp.stack(laws), (equal, equal), (small, large))
        shares, symmetric = jnp.stack([0.5 * jnp.ones_like(share), share]), np.array([True, False])
        needed = jnp.stack([equal_needed, mixed_needed])

        def make(task: tuple[Array, Law, Law, Array, Array]) -> Law:
            needed, *rest = task
            return jax.lax.cond(needed, lambda: average(rest[0], rest[1], grid, *rest[2:]), lambda: nothing)

        made = jax.lax.map(make, (needed, *pairs, shares, symmetric))
        of_equal, of_mixed = (jax.tree.map(lambda leaf, row=row: leaf[row], made) for row in (0, 1))
        even, odd = (of_equal, of_mixed), (of_mixed, of_equal)
        first, second = jax.tree.map(lambda a, b: jnp.where(digit == 1, b, a), even, odd)
        first = jax.tree.map(lambda old, new: jnp.where(known, old, new), large, first)
        return _cut((first, second), grid, most, log_tail)

    return jax.lax.fori_loop(np.int64(0), digits, double, ((nothing, step), grid))
