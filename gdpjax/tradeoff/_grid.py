r"""Certified composition on grids of privacy losses.

*From below.* Write D(e) = int (1 - e^{e - L})_+ dA for the profile. Two changes of a pair can only enlarge it:
raising a loss, and splitting the alternative's mass of a cell whose losses lie in [k h, k' h] between these two ends
so that the null mass a_1 e^{-kh} + a_2 e^{-k'h} is at most the cell's (the integrand is convex and decreasing in
e^{-L}). After splitting, all losses are multiples of h, and a composition is a convolution of the alternative's masses
a_k; the null's are a_k e^{-kh} and need no memory of their own. With A_j = sum_{k>j} a_k (infinite losses included) and
N_j = sum_{k>j} a_k e^{-kh} the composition's curve lies above the polygon with vertices (N_j, 1 - A_j). It costs
O(T h^2), as it keeps the mean of e^{-L}.

*From above.* Any test gives a point above the curve. Give each cell an index, any index; reject when the sum of indices
exceeds t. Both errors are sums over convolutions: of the null masses and of the alternative's masses. With indices
nearest to the losses the tests are nearly optimal, and the loss is O(T h^2) again, since it is second order in the
perturbation of the statistic.

*Rounding.* All numbers are nonnegative, so a sum of m products in any order has relative error at most (m + 1) u.
Direct convolution (no FFT, whose error is relative to the largest entry) keeps every entry, and so each tail, to a
relative error that is carried along: the sum of the two operands' errors and that. In the end vertices are moved
outwards by it. Products that underflow are below 1e-290 in total.

*Size.* h is a power of two, so that k h is exact. Where a convolution exceeds the number of cells, tails below _TAIL
are given away (to infinity, or to the last index) and then h is doubled: odd indices are split (below) or merged
(above). A power by repeated squaring thus has some thousand cells at each stage, whatever the number of steps.
"""

import math
from typing import NamedTuple, TypeVar

import numpy as np

from gdpjax.tradeoff._loss_cells import LOSS_ERROR, RELATIVE_ERROR, Cells

_U = 2.0**-53
"""Unit roundoff of float64."""
_TAIL = 1e-22
"""The mass of a tail that is given away."""
_LOST = 1e-290
"""What underflow can take away."""
_DEFLATION = 8.0 * LOSS_ERROR + 2.0 * RELATIVE_ERROR


class Below(NamedTuple):
    """A composition from below: alternative masses at multiples of a spacing. It is an upper bound on D.

    Fields:
        first: index of the first mass; the loss of mass i is (first + i) 2^exponent.
        mass: masses under the alternative.
        infinite: what is lost to infinity.
        exponent: of the spacing, 2^exponent.
        error: relative error of every mass.
    """

    first: int
    mass: np.ndarray
    infinite: float
    exponent: int
    error: float

    @property
    def size(self) -> int:
        """The number of masses."""
        return self.mass.size

    def convolved(self, other: "Below") -> "Below":
        """The composition with another one of the same spacing."""
        mass = np.convolve(self.mass, other.mass)
        total = float(np.sum(self.mass))
        total_of_other = float(np.sum(other.mass))
        infinite = self.infinite * (total_of_other + other.infinite) + other.infinite * total
        error = _error_of_products(self, other)
        return Below(self.first + other.first, mass, infinite * (1.0 + 1e-9), self.exponent, error)

    def trimmed(self) -> "Below":
        """Without tails: the lower one at the first loss that is kept, the upper one at infinity."""
        low, high = _kept(self.mass)
        mass = self.mass[low:high].copy()
        mass[0] += np.sum(self.mass[:low])
        infinite = self.infinite + float(np.sum(self.mass[high:])) * (1.0 + 1e-9)
        return Below(self.first + low, mass, infinite, self.exponent, self.error + (low + 1) * _U)

    def coarser(self) -> "Below":
        """Twice the spacing: odd indices are split between their even neighbours, in the ratio that keeps e^{-L}."""
        spacing = math.ldexp(1.0, self.exponent)
        share = (1.0 - 8.0 * _U) / (1.0 + math.exp(spacing)) if spacing < 700.0 else 0.0
        before = self.first % 2
        after = 2 - (before + self.size) % 2
        mass = np.concatenate([np.zeros(before), self.mass, np.zeros(after)])
        odd = mass[1::2]
        to_the_left = odd * share
        halved = np.append(mass[::2] + to_the_left, 0.0)
        halved[1:] += odd - to_the_left
        return Below((self.first - before) // 2, halved, self.infinite, self.exponent + 1, self.error + 4 * _U)


class Above(NamedTuple):
    """A composition from above: both masses of a test statistic, infinite losses left out.

    Fields:
        first: index of the first mass; the statistic of mass i is (first + i) 2^exponent.
        null: masses under the null.
        alternative: masses under the alternative.
        exponent: of the spacing, 2^exponent.
        error: relative error of every mass.
    """

    first: int
    null: np.ndarray
    alternative: np.ndarray
    exponent: int
    error: float

    @property
    def size(self) -> int:
        """The number of masses of each kind."""
        return self.null.size

    def convolved(self, other: "Above") -> "Above":
        """The composition with another one of the same spacing."""
        null = np.convolve(self.null, other.null)
        alternative = np.convolve(self.alternative, other.alternative)
        return Above(self.first + other.first, null, alternative, self.exponent, _error_of_products(self, other))

    def trimmed(self) -> "Above":
        """Without tails, which are given to the first and the last index that is kept."""
        low, high = _kept(self.null + self.alternative)
        null = _with_tails(self.null, low, high)
        alternative = _with_tails(self.alternative, low, high)
        return Above(self.first + low, null, alternative, self.exponent, self.error + (self.size + 1) * _U)

    def coarser(self) -> "Above":
        """Twice the spacing: pairs of indices are merged."""
        before = self.first % 2
        after = (before + self.size) % 2

        def merged(mass: np.ndarray) -> np.ndarray:
            whole = np.concatenate([np.zeros(before), mass, np.zeros(after)])
            return whole.reshape(-1, 2).sum(axis=1)

        first = (self.first - before) // 2
        return Above(first, merged(self.null), merged(self.alternative), self.exponent + 1, self.error + _U)


Grid = TypeVar("Grid", Below, Above)


# Grids of one curve.


def below_from(cells: Cells, exponent: int) -> Below:
    """Losses split to the multiples of 2^exponent on either side."""
    h = math.ldexp(1.0, exponent)
    unbounded = np.isposinf(cells.high)
    infinite = cells.infinite + float(np.sum(cells.alternative[unbounded]))
    null = cells.null[~unbounded]
    alternative = cells.alternative[~unbounded]
    low = cells.low[~unbounded]
    high = cells.high[~unbounded]
    if not alternative.size:
        return Below(0, np.zeros(1), min(infinite, 1.0), exponent, RELATIVE_ERROR)

    # The multiples of h on either side of each cell's losses. A cell that reaches to -inf goes to the upper one alone.
    above = np.ceil((high + LOSS_ERROR) / h)
    under = np.floor((np.maximum(low, -1e9) + 4.0 * LOSS_ERROR) / h)
    has_no_end = np.isneginf(low)
    above = np.where(has_no_end, above, np.maximum(above, under + 1.0))
    under = np.where(has_no_end, above, under)

    # The share of the lower one, which makes the null's mass at most that of the cell.
    width = (above - under) * h
    mean = np.log(alternative) - np.log(null) + _DEFLATION - under * h
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.exp(-mean) * np.expm1(np.minimum(mean - width, 0.0)) / np.expm1(-width)
    share = np.where(width > 0, np.clip(share, 0.0, 1.0), 0.0)

    # Add the masses up, index by index.
    first = int(under.min())
    size = int(above.max()) - first + 1
    to_the_lower = alternative * share
    mass = np.bincount((under - first).astype(int), to_the_lower, size)
    mass += np.bincount((above - first).astype(int), alternative - to_the_lower, size)
    return Below(first, mass, infinite, exponent, RELATIVE_ERROR + (alternative.size + 8) * _U)


def above_from(cells: Cells, exponent: int) -> Above:
    """Each cell at the multiple of 2^exponent nearest to the middle of its losses."""
    h = math.ldexp(1.0, exponent)
    low = np.where(np.isfinite(cells.low), cells.low, cells.high)
    high = np.where(np.isfinite(cells.high), cells.high, cells.low)
    if not low.size:
        return Above(0, np.zeros(1), np.zeros(1), exponent, RELATIVE_ERROR)
    nearest = np.rint(0.5 * (low + high) / h)
    first = int(nearest.min())
    size = int(nearest.max()) - first + 1
    index = (nearest - first).astype(int)
    null = np.bincount(index, cells.null, size)
    alternative = np.bincount(index, cells.alternative, size)
    return Above(first, null, alternative, exponent, RELATIVE_ERROR + (low.size + 8) * _U)


# Composition.


def _kept(mass: np.ndarray) -> tuple[int, int]:
    """Where the tails of a mass function begin to matter."""
    low = int(np.searchsorted(np.cumsum(mass), _TAIL))
    high = mass.size - int(np.searchsorted(np.cumsum(mass[::-1]), _TAIL))
    low = min(low, mass.size - 1)
    return low, max(high, low + 1)


def _with_tails(mass: np.ndarray, low: int, high: int) -> np.ndarray:
    """The masses from low to high, the first and the last one with the tails beyond."""
    kept = mass[low:high].copy()
    kept[0] += np.sum(mass[:low])
    kept[-1] += np.sum(mass[high:])
    return kept


def _error_of_products(a: Grid, b: Grid) -> float:
    """Relative error of every sum of a convolution, by the errors of the operands and the number of products."""
    return a.error + b.error + 2.0 * a.error * b.error + (min(a.size, b.size) + 2) * _U


def _composed(a: Grid, b: Grid, num_cells: int) -> Grid:
    # The same spacing for both.
    while a.exponent < b.exponent:
        a = a.coarser()
    while b.exponent < a.exponent:
        b = b.coarser()

    grid = a.convolved(b).trimmed()
    while grid.size > num_cells:
        grid = grid.coarser()
    return grid


def compose_grids(grids: list[Grid], counts: list[int], num_cells: int) -> Grid:
    """Each grid to the power of its count, multiplied."""
    result: Grid | None = None
    for grid, count in zip(grids, counts, strict=True):
        # By repeated squaring.
        power = grid
        while count:
            if count % 2:
                result = power if result is None else _composed(result, power, num_cells)
            count //= 2
            if count:
                power = _composed(power, power, num_cells)
    assert result is not None
    return result


# The curve of a composition.


def vertices_below(grid: Below) -> tuple[np.ndarray, np.ndarray]:
    """Points (N_j, 1 - A_j) for losses j h >= 0, moved towards the origin by all rounding."""
    h = math.ldexp(1.0, grid.exponent)
    error = grid.error + (grid.size + 16) * _U
    index = grid.first + np.arange(grid.size)
    with np.errstate(over="ignore", under="ignore"):
        null = np.where(index > 0, grid.mass * np.exp(-h * np.maximum(index, 0)), 0.0)

    # Sums over the indices above j, from j = 0 or just below the first.
    start = min(max(0, 1 - grid.first), grid.size)
    sums_of_alternative = _sums_from_above(grid.mass)[start:]
    sums_of_null = _sums_from_above(null)[start:]

    alpha = np.maximum(sums_of_null * (1.0 - error) - _LOST, 0.0)
    missing = (sums_of_alternative + grid.infinite) * (1.0 + error) + _LOST
    return alpha, np.maximum(1.0 - missing, 0.0)


def points_above(grid: Above) -> tuple[np.ndarray, np.ndarray]:
    """The two errors of every threshold test, moved away from the origin by all rounding."""
    error = grid.error + (grid.size + 16) * _U
    alpha = _sums_from_above(grid.null)
    beta = np.append(0.0, np.cumsum(grid.alternative))
    return np.minimum(alpha * (1.0 + error) + _LOST, 1.0), np.minimum(beta * (1.0 + error) + _LOST, 1.0)


def _sums_from_above(mass: np.ndarray) -> np.ndarray:
    """The sum of the masses from each index on, and 0 beyond the last."""
    return np.append(np.cumsum(mass[::-1])[::-1], 0.0)
