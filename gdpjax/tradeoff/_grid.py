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
from typing import NamedTuple

import numpy as np

from gdpjax.tradeoff._cells import LOSS_ERROR, RELATIVE_ERROR, Cells

_U = 2.0**-53
_TAIL = 1e-22
_LOST = 1e-290  # what underflow can take away
_DEFLATION = 8.0 * LOSS_ERROR + 2.0 * RELATIVE_ERROR


class Below(NamedTuple):
    """Alternative masses at losses (first + i) 2^exponent, and what is lost to infinity: an upper bound on D."""

    first: int
    mass: np.ndarray
    infinite: float
    exponent: int
    error: float


class Above(NamedTuple):
    """Null and alternative masses of a test statistic with values (first + i) 2^exponent, infinite losses left out."""

    first: int
    null: np.ndarray
    alternative: np.ndarray
    exponent: int
    error: float


def below_from(cells: Cells, exponent: int) -> Below:
    """Losses split to the multiples of 2^exponent on either side."""
    h = math.ldexp(1.0, exponent)
    unbounded = np.isposinf(cells.high)
    infinite = cells.infinite + float(np.sum(cells.alternative[unbounded]))
    n, a, low, high = (part[~unbounded] for part in cells[:4])
    if not a.size:
        return Below(0, np.zeros(1), min(infinite, 1.0), exponent, RELATIVE_ERROR)
    above = np.ceil((high + LOSS_ERROR) / h)
    under = np.floor((np.maximum(low, -1e9) + 4.0 * LOSS_ERROR) / h)
    above = np.where(np.isneginf(low), above, np.maximum(above, under + 1.0))
    under = np.where(np.isneginf(low), above, under)
    width = (above - under) * h
    mean = np.log(a) - np.log(n) + _DEFLATION - under * h
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.exp(-mean) * np.expm1(np.minimum(mean - width, 0.0)) / np.expm1(-width)
    share = np.where(width > 0, np.clip(share, 0.0, 1.0), 0.0)
    first = int(under.min())
    size = int(above.max()) - first + 1
    mass = np.bincount((under - first).astype(int), a * share, size)
    mass += np.bincount((above - first).astype(int), a - a * share, size)
    return Below(first, mass, infinite, exponent, RELATIVE_ERROR + (a.size + 8) * _U)


def above_from(cells: Cells, exponent: int) -> Above:
    """Each cell at the multiple of 2^exponent nearest to the middle of its losses."""
    h = math.ldexp(1.0, exponent)
    low = np.where(np.isfinite(cells.low), cells.low, cells.high)
    high = np.where(np.isfinite(cells.high), cells.high, cells.low)
    if not low.size:
        return Above(0, np.zeros(1), np.zeros(1), exponent, RELATIVE_ERROR)
    index = np.rint(0.5 * (low + high) / h)
    first = int(index.min())
    size = int(index.max()) - first + 1
    null, alternative = (np.bincount((index - first).astype(int), m, size) for m in (cells.null, cells.alternative))
    return Above(first, null, alternative, exponent, RELATIVE_ERROR + (low.size + 8) * _U)


def _coarser_below(grid: Below) -> Below:
    """Twice the spacing: odd indices are split between their even neighbours, in the ratio that keeps e^{-L}."""
    spacing = math.ldexp(1.0, grid.exponent)
    share = (1.0 - 8.0 * _U) / (1.0 + math.exp(spacing)) if spacing < 700.0 else 0.0
    pad = grid.first % 2
    mass = np.concatenate([np.zeros(pad), grid.mass, np.zeros(2 - (pad + grid.mass.size) % 2)])
    odd = mass[1::2]
    halved = mass[::2] + odd * share
    halved = np.append(halved, 0.0)
    halved[1:] += odd - odd * share
    return Below((grid.first - pad) // 2, halved, grid.infinite, grid.exponent + 1, grid.error + 4 * _U)


def _coarser_above(grid: Above) -> Above:
    """Twice the spacing: pairs of indices are merged."""
    pad = grid.first % 2
    size = grid.null.size
    merged = [
        np.concatenate([np.zeros(pad), m, np.zeros((pad + size) % 2)]).reshape(-1, 2).sum(axis=1)
        for m in (grid.null, grid.alternative)
    ]
    return Above((grid.first - pad) // 2, merged[0], merged[1], grid.exponent + 1, grid.error + _U)


def _kept(mass: np.ndarray) -> tuple[int, int]:
    """Where the tails of a mass function begin to matter."""
    low = int(np.searchsorted(np.cumsum(mass), _TAIL))
    high = mass.size - int(np.searchsorted(np.cumsum(mass[::-1]), _TAIL))
    return min(low, mass.size - 1), max(high, min(low, mass.size - 1) + 1)


def _trim_below(grid: Below) -> Below:
    low, high = _kept(grid.mass)
    mass = grid.mass[low:high].copy()
    mass[0] += np.sum(grid.mass[:low])
    infinite = grid.infinite + float(np.sum(grid.mass[high:])) * (1.0 + 1e-9)
    return Below(grid.first + low, mass, infinite, grid.exponent, grid.error + (low + 1) * _U)


def _trim_above(grid: Above) -> Above:
    low, high = _kept(grid.null + grid.alternative)
    parts = []
    for mass in (grid.null, grid.alternative):
        part = mass[low:high].copy()
        part[0] += np.sum(mass[:low])
        part[-1] += np.sum(mass[high:])
        parts.append(part)
    return Above(grid.first + low, parts[0], parts[1], grid.exponent, grid.error + (grid.null.size + 1) * _U)


def _combine_below(a: Below, b: Below, num_cells: int) -> Below:
    while a.exponent != b.exponent:
        a, b = (_coarser_below(a), b) if a.exponent < b.exponent else (a, _coarser_below(b))
    mass = np.convolve(a.mass, b.mass)
    total_a, total_b = float(np.sum(a.mass)), float(np.sum(b.mass))
    infinite = (a.infinite * (total_b + b.infinite) + b.infinite * total_a) * (1.0 + 1e-9)
    error = a.error + b.error + 2.0 * a.error * b.error + (min(a.mass.size, b.mass.size) + 2) * _U
    grid = _trim_below(Below(a.first + b.first, mass, infinite, a.exponent, error))
    while grid.mass.size > num_cells:
        grid = _coarser_below(grid)
    return grid


def _combine_above(a: Above, b: Above, num_cells: int) -> Above:
    while a.exponent != b.exponent:
        a, b = (_coarser_above(a), b) if a.exponent < b.exponent else (a, _coarser_above(b))
    null, alternative = np.convolve(a.null, b.null), np.convolve(a.alternative, b.alternative)
    error = a.error + b.error + 2.0 * a.error * b.error + (min(a.null.size, b.null.size) + 2) * _U
    grid = _trim_above(Above(a.first + b.first, null, alternative, a.exponent, error))
    while grid.null.size > num_cells:
        grid = _coarser_above(grid)
    return grid


def _combine(a: "Below | Above", b: "Below | Above", num_cells: int) -> "Below | Above":
    if isinstance(a, Below) and isinstance(b, Below):
        return _combine_below(a, b, num_cells)
    if isinstance(a, Above) and isinstance(b, Above):
        return _combine_above(a, b, num_cells)
    raise TypeError("both grids must bound the same side")


def compose_grids(grids: list["Below | Above"], counts: list[int], num_cells: int) -> "Below | Above":
    """Each grid to the power of its count, multiplied."""
    result = None
    for grid, count in zip(grids, counts, strict=True):
        power = grid
        while count:
            if count % 2:
                result = power if result is None else _combine(result, power, num_cells)
            count //= 2
            if count:
                power = _combine(power, power, num_cells)
    assert result is not None
    return result


def vertices_below(grid: Below) -> tuple[np.ndarray, np.ndarray]:
    """Points (N_j, 1 - A_j) for losses j h >= 0, moved towards the origin by all rounding."""
    h = math.ldexp(1.0, grid.exponent)
    error = grid.error + (grid.mass.size + 16) * _U
    index = grid.first + np.arange(grid.mass.size)
    with np.errstate(over="ignore", under="ignore"):
        null = np.where(index > 0, grid.mass * np.exp(-h * np.maximum(index, 0)), 0.0)
    start = min(max(0, 1 - grid.first), grid.mass.size)  # sums over indices above j, from j = 0 or just below the first
    alternative, null = (np.append(np.cumsum(part[::-1])[::-1], 0.0)[start:] for part in (grid.mass, null))
    alpha = np.maximum(null * (1.0 - error) - _LOST, 0.0)
    missing = (alternative + grid.infinite) * (1.0 + error) + _LOST
    return alpha, np.maximum(1.0 - missing, 0.0)


def points_above(grid: Above) -> tuple[np.ndarray, np.ndarray]:
    """The two errors of every threshold test, moved away from the origin by all rounding."""
    error = grid.error + (grid.null.size + 16) * _U
    alpha = np.append(np.cumsum(grid.null[::-1])[::-1], 0.0)
    beta = np.append(0.0, np.cumsum(grid.alternative))
    return np.minimum(alpha * (1.0 + error) + _LOST, 1.0), np.minimum(beta * (1.0 + error) + _LOST, 1.0)
