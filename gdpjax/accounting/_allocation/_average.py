"""Averages of independent likelihood ratios on one geometric grid.

For values y_b and y_a = y_{b-e} of the grid, e >= 0, with the weights v and 1 - v, the average is

    v y_b + (1 - v) y_a = y_b e^{c(e)},      c(e) = log(v + (1 - v) e^{-e h}) <= 0,        h the spacing.

It lies in the cell [y_k, y_{k+1}) of k = b - s(e), s(e) = ceil(-c(e) / h): how far below the larger value depends on e
alone, and most neighbouring e share it. Of all pairs in a cell two sums are taken, the mass and the mean:

    m_k = sum q_a q_b,          M_k = sum q_a q_b (v y_b + (1 - v) y_a) = sum v (q_b y_b) q_a + (1 - v) q_b (q_a y_a).

    upper: the mass goes to the ends of its cell, (M_k / y_k - m_k) / (e^h - 1) of it to the right one,
           which keeps the mean of every pair;
    lower: the cell is the label, and the excess is M_k / y_k - m_k.

All of these are sums of products of shifted arrays without any weights. The e with one s are a range, so the smaller
values are first summed over it (`_Neighbours`), and `average` takes a loop over s of elementwise products.

**Rounding.** Every sum is one of positive terms. M_k / y_k - m_k is a difference: where `error` is the relative error
of its two sides, it is off by (1 + e^h) error m_k at most. More mass than this may amount to is added to both ends of
each cell of the upper law, which only raises the deltas. The mean of a label is off by 3 error. The details are in
docs/theory/allocation.md.

The mean of t = m + m or m + (m + 1) ratios comes from those of m and m + 1, so log2 t rounds give the mean of any
number t, `average_of_steps`. As the range of log R shrinks, `_cut` drops the ends, and the next average is made on a
grid that is finer by a power of two; the old values are values of the new grid.
"""

import math

import numpy as np

from gdpjax.accounting._allocation._law import SMALLEST_MASS, UNIT_ROUNDOFF, RatioGrid, RatioLaw

_FINEST = 6
_RANGES_TOGETHER = 32
_UNDERFLOW = 1e-300
"""More than the sum of all products that underflow, each below 1e-307."""


class _Neighbours:
    """Sums over neighbours on the left of ``columns`` interleaved arrays, together [size * columns].

    Level j has the sums over 2^j neighbours, each of which is the sum of two of the level before.
    """

    def __init__(self, values: np.ndarray, columns: int) -> None:
        self._columns = columns
        self._levels = [values]

    def sums(self, first: int, length: int) -> np.ndarray:
        """Return for b >= first the sum over first <= e < first + length of the values at b - e, 0 left of all others.

        The array must not be written to.
        """
        level = length.bit_length() - 1
        end = self._levels[0].size - first * self._columns
        total = self._level(level)[:end]
        rest = length - (1 << level)
        if rest == 0:
            return total

        # The other binary digits of the length.
        total = total.copy()
        start = self._columns << level
        while rest and start < end:
            level = rest.bit_length() - 1
            total[start:] += self._level(level)[: end - start]
            start += self._columns << level
            rest -= 1 << level
        return total

    def _level(self, level: int) -> np.ndarray:
        """Return the sums over 2^level neighbours, which are made where they are first needed."""
        while len(self._levels) <= level:
            finer = self._levels[-1]
            shift = min(self._columns << (len(self._levels) - 1), finer.size)
            coarser = finer.copy()
            coarser[shift:] += finer[: finer.size - shift]
            self._levels.append(coarser)
        return self._levels[level]


def _cells_below(weight: float, grid: RatioGrid, factor: int) -> np.ndarray:
    """Return s(e) in cells of the finer grid, for 0 <= e < size, where the larger of the two values has this weight.

    Rounding moves a value by a few ulp of the range of the grid into its cell, also where s would fall otherwise.
    """
    e = np.arange(grid.size)
    log_average = np.log1p((1.0 - weight) * np.expm1(-e * grid.spacing))
    cells = np.ceil(-log_average * factor / grid.spacing).astype(np.int64)
    # The average is at least the smaller value, and strictly below the larger one.
    cells = np.clip(cells, np.minimum(e, 1), factor * e)
    return np.maximum.accumulate(cells)


def _masses_and_means(
    law: RatioLaw,
    values: np.ndarray,
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (masses, masses times means) of the labels of the upper law, and those of the lower law."""
    upper_means = values * law.upper
    lower_means = values * (law.lower + law.excess)
    return [(law.upper, upper_means), (law.lower, lower_means)]


def _interleaved(columns: list[np.ndarray]) -> np.ndarray:
    """Return columns [size] as one array [size * columns]."""
    return np.stack(columns, axis=1).ravel()


def _pair_sums(
    larger: RatioLaw,
    smaller: RatioLaw,
    weight: float,
    grid: RatioGrid,
    factor: int,
    *,
    with_equal: bool,
) -> np.ndarray:
    """Return (m, M) of the upper and (m, M) of the lower law [4, size of the finer grid], summed over all pairs a < b.

    The larger value, at b, has the law ``larger`` and this ``weight``. Pairs a = b are summed too if ``with_equal``.
    """
    values = np.exp(grid.log_values())

    # The products of the columns of the two are q_a q_b, v (q_b y_b) q_a and (1 - v) q_b (q_a y_a), of both laws.
    columns_of_larger = []
    for mass, mean in _masses_and_means(larger, values):
        columns_of_larger += [mass, weight * mean, (1.0 - weight) * mass]
    columns_of_smaller = []
    for mass, mean in _masses_and_means(smaller, values):
        columns_of_smaller += [mass, mass, mean]
    num_columns = len(columns_of_larger)
    of_larger = _interleaved(columns_of_larger)
    neighbours = _Neighbours(_interleaved(columns_of_smaller), num_columns)

    # The ranges of e with the same s, from the diagonal or from e = 1 on. Cell k = factor b - s of the finer grid is
    # place b + below in a row of its own for each k mod factor.
    cells = _cells_below(weight, grid, factor)
    firsts = np.flatnonzero(np.diff(cells, prepend=-1))[0 if with_equal else 1 :]
    lengths = np.diff(firsts, append=grid.size)
    below, rows = np.divmod(-cells[firsts], factor)

    # The places in the interleaved arrays where the larger values and their sums begin.
    starts = firsts * num_columns
    places = (firsts + below) * num_columns
    ranges = np.stack([firsts, lengths, starts, places, rows], axis=1).tolist()

    # Sums of a few ranges at a time, which have smaller rounding errors.
    total = np.zeros((factor, of_larger.size))
    partial = np.zeros_like(total)
    partial_rows = list(partial)
    products = np.empty_like(of_larger)
    for i, (first, length, start, place, row) in enumerate(ranges):
        product = products[start:]
        np.multiply(of_larger[start:], neighbours.sums(first, length), out=product)
        target = partial_rows[row][place : place + product.size]
        np.add(target, product, out=target)
        if i % _RANGES_TOGETHER == _RANGES_TOGETHER - 1:
            total += partial
            partial[:] = 0.0
    total += partial

    # [factor, size, columns] to [columns, factor size], less the cells beyond the last value.
    table = total.reshape(factor, grid.size, num_columns)
    table = table.transpose(2, 1, 0).reshape(num_columns, -1)
    table = table[:, : (grid.size - 1) * factor + 1]
    return np.stack([table[0], table[1] + table[2], table[3], table[4] + table[5]])


def _moved_right(values: np.ndarray, cells: int) -> np.ndarray:
    """Return the values that many cells further right, or left; those that would be beyond an end are dropped."""
    moved = np.zeros_like(values)
    if cells > 0:
        moved[cells:] = values[:-cells]
    elif cells < 0:
        moved[:cells] = values[-cells:]
    else:
        moved[:] = values
    return moved


def average(
    first: RatioLaw,
    second: RatioLaw,
    grid: RatioGrid,
    share: float,
    factor: int = 1,
) -> tuple[RatioLaw, RatioGrid]:
    """Return the law of share R_1 + (1 - share) R_2, R_1 and R_2 independent, on a grid ``factor`` times finer.

    Two laws that are one and the same object, with a share of 1/2, take half the work.
    """
    finer = RatioGrid(grid.origin, grid.spacing / factor, (grid.size - 1) * factor + 1)
    if first is second and share == 0.5:
        sums = 2.0 * _pair_sums(first, first, 0.5, grid, factor, with_equal=False)
        sums += _diagonal_sums(first, grid, factor, sums)
    else:
        sums = _pair_sums(first, second, share, grid, factor, with_equal=True)
        sums += _pair_sums(second, first, 1.0 - share, grid, factor, with_equal=False)
    upper_mass, upper_mean, lower_mass, lower_mean = sums
    values = np.exp(finer.log_values())
    step = math.expm1(finer.spacing)

    # The additions that a term goes through: of neighbours, of products in groups, and a few more. The error of
    # M_k / y_k has that of the values, too: the logarithms of y_a, y_b and y_k, and c, are right to a few ulp.
    additions = 2.0 * math.log2(grid.size) + _RANGES_TOGETHER + finer.size / _RANGES_TOGETHER + 32.0
    rounding = first.rounding + second.rounding + UNIT_ROUNDOFF * additions
    error = UNIT_ROUNDOFF * (additions + 8.0 * finer.reach + 32.0)

    # Each pair goes to the ends of its cell. As M_k / y_k <= (1 + step) m_k, the margin is more than the errors of the
    # rise and of step times the mass together.
    rise = np.clip(upper_mean / values - upper_mass, 0.0, step * upper_mass)
    margin = 2.0 * (1.0 + step) * error * upper_mass + _UNDERFLOW * (1.0 + 1.0 / values)
    upper = upper_mass + (margin - rise) / step
    upper[1:] += (rise + margin)[:-1] / step

    # The average of 0 and y is moved to 0 and y, which keeps its mean; so no third value is needed.
    zero_of_first = first.at_zero * (1.0 - share) * second.upper
    zero_of_second = second.at_zero * share * first.upper
    upper[::factor] += zero_of_first + zero_of_second
    total_of_first = max(float(np.sum(first.upper)) + first.at_zero, 1.0)
    total_of_second = max(float(np.sum(second.upper)) + second.at_zero, 1.0)
    at_zero = share * first.at_zero * total_of_second + (1.0 - share) * second.at_zero * total_of_first
    at_infinity = share * first.at_infinity * total_of_second + (1.0 - share) * second.at_infinity * total_of_first

    # The means of the labels would drift off to the right of y_k, where `_cut` drops them: they move along.
    if np.any(lower_mass > 0):
        mean_ratio = float(np.sum(lower_mean / values) / np.sum(lower_mass))
        drift = round(math.log(mean_ratio) / finer.spacing)
        lower_mass = _moved_right(lower_mass, drift)
        lower_mean = _moved_right(lower_mean, drift)

    # Labels of which too much may have underflowed are left out.
    is_large_enough = (lower_mass > SMALLEST_MASS) & (lower_mean > SMALLEST_MASS)
    lower = np.where(is_large_enough, lower_mass, 0.0)
    excess = np.where(is_large_enough, lower_mean / values - lower_mass, 0.0)

    # A label's mean is off by the error of its sums, and by that of the weights times the spread of the values in it.
    moved = 16.0 * UNIT_ROUNDOFF * finer.reach
    largest_excess_of_first = float(np.max(np.abs(first.mean_excess())))
    largest_excess_of_second = float(np.max(np.abs(second.mean_excess())))
    spread = step + 2.0 * max(largest_excess_of_first, largest_excess_of_second)
    means_moved = moved + 3.0 * error + 4.0 * rounding * spread
    law = RatioLaw(
        upper=upper,
        at_zero=at_zero + 1e-300,
        at_infinity=at_infinity + finer.underflow(),
        lower=lower,
        excess=excess,
        rounding=rounding,
        displacement=max(first.displacement, second.displacement) + moved,
        lower_displacement=max(first.lower_displacement, second.lower_displacement) + means_moved,
    )
    return law, finer


def _diagonal_sums(
    law: RatioLaw,
    grid: RatioGrid,
    factor: int,
    sums: np.ndarray,
) -> np.ndarray:
    """Return the part of the sums (m, M), (m, M) of pairs a = b of two equal laws, in the shape of ``sums``."""
    diagonal = np.zeros_like(sums)
    values = np.exp(grid.log_values())
    for i, (mass, mean) in enumerate(_masses_and_means(law, values)):
        diagonal[2 * i, ::factor] = mass * mass
        diagonal[2 * i + 1, ::factor] = mass * mean
    return diagonal


def _cut(
    laws: list[RatioLaw],
    grid: RatioGrid,
    log_tail: float,
) -> tuple[list[RatioLaw], RatioGrid]:
    """Return the laws without the values at both ends that carry next to nothing, on the shorter grid."""
    log_values = grid.log_values()
    total = sum(law.upper for law in laws)
    log_total = np.log(total, out=np.full_like(log_values, -np.inf), where=total > 0)

    # The tails fall by a factor of e in some thirty values.
    tolerance = log_tail - math.log(30.0)
    heavy_below = np.flatnonzero(log_total > tolerance)
    heavy_above = np.flatnonzero(log_total + log_values > tolerance)
    first = int(heavy_below[0]) if heavy_below.size else grid.size
    first = min(first, grid.size - 2)
    last = int(heavy_above[-1]) if heavy_above.size else 0
    last = max(last, first + 1)

    shorter = RatioGrid(grid.origin + first * grid.spacing, grid.spacing, last - first + 1)
    shorter_laws = [_cut_law(law, grid, shorter, first, last) for law in laws]
    return shorter_laws, shorter


def _cut_law(
    law: RatioLaw,
    grid: RatioGrid,
    shorter: RatioGrid,
    first: int,
    last: int,
) -> RatioLaw:
    """Return one law on the shorter grid, of the values from ``first`` to ``last``.

    The upper law moves the mass above the last value down to it and its P-mass to infinity, the mass below the first
    one to 0 and to that value. The lower law leaves them out.
    """
    moved = 16.0 * UNIT_ROUNDOFF * (abs(shorter.origin) + grid.spacing * grid.size)
    below = law.upper[:first]
    above = law.upper[last + 1 :]
    values_above = np.exp(grid.log_values()[last + 1 :])
    ratio_below = np.exp((np.arange(first) - first) * grid.spacing)
    upper = law.upper[first : last + 1].copy()
    upper[0] += np.sum(below * ratio_below)
    upper[-1] += np.sum(above)
    return law._replace(
        upper=upper,
        at_zero=law.at_zero + float(np.sum(below)),
        at_infinity=law.at_infinity + float(np.sum(above * values_above)),
        lower=law.lower[first : last + 1],
        excess=law.excess[first : last + 1],
        rounding=law.rounding + UNIT_ROUNDOFF * (grid.size + 4.0 * grid.reach + 16.0),
        displacement=law.displacement + moved,
        lower_displacement=law.lower_displacement + moved,
    )


def average_of_steps(
    step: RatioLaw,
    grid: RatioGrid,
    num_steps: int,
    also_next: bool,
    log_tail: float,
) -> tuple[tuple[RatioLaw, ...], RatioGrid]:
    """Return the law of the mean of t = ``num_steps`` ratios with the law ``step``, and that of t + 1 if ``also_next``.

    The binary digits of t, from the first: the laws of m and m + 1 give those of 2 m and 2 m + 1, or of 2 m + 1 and
    2 m + 2. The grid never has more values than at the beginning.
    """
    largest_size = grid.size
    m, digits = 1, bin(num_steps)[3:]
    laws = [step]
    if also_next or "1" in digits:
        law_of_two, _ = average(step, step, grid, 0.5)
        laws.append(law_of_two)
    laws, grid = _cut(laws, grid, log_tail)

    for i, digit in enumerate(digits):
        small, large = laws[0], laws[-1]

        # The largest power of two by which the grid can be refined.
        room = (largest_size - 1) // (grid.size - 1)
        factor = 1 << min(room.bit_length() - 1, _FINEST)

        # The digit says which of 2 m, 2 m + 1 and 2 m + 2 the next two are.
        share = m / (2.0 * m + 1.0)
        if digit == "0":
            pairs = [(small, small, 0.5), (small, large, share)]
        else:
            pairs = [(small, large, share), (large, large, 0.5)]
        next_is_needed = also_next or "1" in digits[i + 1 :]
        if not next_is_needed:
            pairs = pairs[:1]

        laws = []
        finer = grid
        for first, second, first_share in pairs:
            law, finer = average(first, second, grid, first_share, factor)
            laws.append(law)
        m = 2 * m + int(digit)
        laws, grid = _cut(laws, finer, log_tail)
    return tuple(laws), grid
