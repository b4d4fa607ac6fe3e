r"""Certified composition on grids of privacy losses.

    grid = below_from(cells, exponent)                      # losses on multiples of 2^exponent
    grid = compose_grids([grid], [1000], num_cells=8192)
    alpha, beta = vertices_below(grid)                      # a polygon below the curve of 1000 steps

* *From below*: each cell's mass is split between two neighbouring multiples of the spacing, which can only lower the
  curve. A composition is a convolution of the alternative's masses.
* *From above*: each cell goes to the nearest multiple, which makes a test, and any test gives a point above the curve.
  A composition is a convolution of the masses under the null, and one under the alternative.

Both lose O(T h^2) for T steps with spacing h. All masses are nonnegative and keep a relative error, which is carried
along. The proofs, the rounding terms and the choice of the spacing are in docs/theory/numeric_composition.md.
"""

import math
from typing import NamedTuple

import numpy as np

from gdpjax.tradeoff._loss_cells import LOSS_ERROR, RELATIVE_ERROR, LossCells

UNIT_ROUNDOFF = 2.0**-53
"""Unit roundoff of float64."""
_TAIL = 1e-22
"""The mass of a tail that is given away."""
_UNDERFLOW = 1e-290
"""The largest mass that underflow can take away."""
_DEFLATION = 8.0 * LOSS_ERROR + 2.0 * RELATIVE_ERROR
"""The error of the mean loss of a cell, in the direction that lowers the curve."""


class LossGrid(NamedTuple):
    """A composition: masses at multiples of a spacing, from below under the alternative alone, from above under both.

    From below it is an upper bound on D. From above the losses are those of a test statistic.

    Fields:
        first: index of the first masses; the loss of masses i is (first + i) 2^exponent.
        masses: under the alternative [1, n], or under null and alternative [2, n].
        infinite: the masses that are given to an infinite loss [1 or 2].
        exponent: the exponent of the spacing 2^exponent.
        error: relative error of every mass.
    """

    first: int
    masses: np.ndarray
    infinite: np.ndarray
    exponent: int
    error: float

    @property
    def size(self) -> int:
        """The number n of multiples."""
        return self.masses.shape[1]

    def convolved(self, grid: "LossGrid") -> "LossGrid":
        """Return the composition with another grid of the same spacing."""
        masses = [np.convolve(a, b) for a, b in zip(self.masses, grid.masses, strict=True)]
        total = np.sum(self.masses, axis=1)
        total_of_grid = np.sum(grid.masses, axis=1)
        # The loss of a composition is infinite if one of the two losses is.
        infinite = self.infinite * (total_of_grid + grid.infinite) + grid.infinite * total
        return self._replace(
            first=self.first + grid.first,
            masses=np.stack(masses),
            infinite=infinite * (1.0 + 1e-9),
            error=_error_of_products(self, grid),
        )

    def trimmed(self) -> "LossGrid":
        """Return the grid without tails: the lower one goes to the first loss that stays, the upper one to infinity."""
        low, high = _without_tails(np.sum(self.masses, axis=0))
        masses = self.masses[:, low:high].copy()
        masses[:, 0] += np.sum(self.masses[:, :low], axis=1)
        upper_tail = np.sum(self.masses[:, high:], axis=1)
        return self._replace(
            first=self.first + low,
            masses=masses,
            infinite=self.infinite + upper_tail * (1.0 + 1e-9),
            error=self.error + (low + 1) * UNIT_ROUNDOFF,
        )

    def coarser(self) -> "LossGrid":
        """Return the grid with twice the spacing.

        From below odd indices are split between their even neighbours, in the ratio that keeps the mean of e^{-L}. From
        above they go to the left one.
        """
        # The share of the left neighbour, rounded down.
        share = 1.0
        if len(self.masses) == 1:
            decay = math.exp(-math.ldexp(1.0, self.exponent))
            share = (1.0 - 8.0 * UNIT_ROUNDOFF) * decay / (1.0 + decay)

        # Pad the masses so that the first index is even and the last one odd.
        num_before = self.first % 2
        num_after = 2 - (num_before + self.size) % 2
        masses = np.pad(self.masses, ((0, 0), (num_before, num_after)))

        odd = masses[:, 1::2]
        to_the_left = odd * share
        to_the_right = odd - to_the_left
        merged = np.pad(masses[:, ::2] + to_the_left, ((0, 0), (0, 1)))
        merged[:, 1:] += to_the_right
        return self._replace(
            first=(self.first - num_before) // 2,
            masses=merged,
            exponent=self.exponent + 1,
            error=self.error + 4 * UNIT_ROUNDOFF,
        )


# Grids of one curve.


def below_from(cells: LossCells, exponent: int) -> LossGrid:
    """Return the grid from below: the masses of the cells split to the multiples of 2^exponent on either side."""
    spacing = math.ldexp(1.0, exponent)

    # A cell that reaches to an infinite loss goes there.
    is_unbounded = np.isposinf(cells.high)
    infinite = cells.infinite + float(np.sum(cells.alternative[is_unbounded]))
    null, alternative, low, high, _, _ = cells.taken(~is_unbounded)
    if not alternative.size:
        return LossGrid(0, np.zeros((1, 1)), np.array([min(infinite, 1.0)]), exponent, RELATIVE_ERROR)

    # The multiples of the spacing on either side of each cell's losses. A cell that reaches to -inf goes to the upper
    # one alone.
    upper_index = np.ceil((high + LOSS_ERROR) / spacing)
    lower_index = np.floor((np.maximum(low, -1e9) + 4.0 * LOSS_ERROR) / spacing)
    has_no_end = np.isneginf(low)
    at_least_one_apart = np.maximum(upper_index, lower_index + 1.0)
    upper_index = np.where(has_no_end, upper_index, at_least_one_apart)
    lower_index = np.where(has_no_end, upper_index, lower_index)

    # The share of the lower one, which makes the null's mass at most that of the cell.
    width = (upper_index - lower_index) * spacing
    mean_loss = np.log(alternative) - np.log(null) + _DEFLATION
    mean_loss = mean_loss - lower_index * spacing
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.exp(-mean_loss) * np.expm1(np.minimum(mean_loss - width, 0.0)) / np.expm1(-width)
    share = np.where(width > 0, np.clip(share, 0.0, 1.0), 0.0)
    to_the_lower = alternative * share
    to_the_upper = alternative - to_the_lower

    # Add the masses up, index by index.
    first = int(lower_index.min())
    size = int(upper_index.max()) - first + 1
    mass = np.bincount((lower_index - first).astype(int), to_the_lower, size)
    mass += np.bincount((upper_index - first).astype(int), to_the_upper, size)
    error = RELATIVE_ERROR + (alternative.size + 8) * UNIT_ROUNDOFF
    return LossGrid(first, mass[None], np.array([infinite]), exponent, error)


def above_from(cells: LossCells, exponent: int) -> LossGrid:
    """Return the grid from above: each cell at the multiple of 2^exponent nearest to the middle of its losses."""
    spacing = math.ldexp(1.0, exponent)
    low = np.where(np.isfinite(cells.low), cells.low, cells.high)
    high = np.where(np.isfinite(cells.high), cells.high, cells.low)
    if not low.size:
        return LossGrid(0, np.zeros((2, 1)), np.zeros(2), exponent, RELATIVE_ERROR)
    nearest = np.rint(0.5 * (low + high) / spacing)

    # Add the masses up, index by index.
    first = int(nearest.min())
    size = int(nearest.max()) - first + 1
    index = (nearest - first).astype(int)
    null = np.bincount(index, cells.null, size)
    alternative = np.bincount(index, cells.alternative, size)
    error = RELATIVE_ERROR + (low.size + 8) * UNIT_ROUNDOFF
    return LossGrid(first, np.stack([null, alternative]), np.zeros(2), exponent, error)


# Composition.


def _without_tails(mass: np.ndarray) -> tuple[int, int]:
    """Return the range of indices outside of which a mass function has tails below _TAIL."""
    size_of_lower_tail = int(np.searchsorted(np.cumsum(mass), _TAIL))
    size_of_upper_tail = int(np.searchsorted(np.cumsum(mass[::-1]), _TAIL))
    low = min(size_of_lower_tail, mass.size - 1)
    high = mass.size - size_of_upper_tail
    return low, max(high, low + 1)


def _error_of_products(a: LossGrid, b: LossGrid) -> float:
    """Return the relative error of every sum of a convolution.

    It has the errors of the operands, and one rounding for each product that is added.
    """
    error_of_operands = a.error + b.error + 2.0 * a.error * b.error
    num_products = min(a.size, b.size)
    return error_of_operands + (num_products + 2) * UNIT_ROUNDOFF


def _composed(a: LossGrid, b: LossGrid, num_cells: int) -> LossGrid:
    """Return the composition of two grids, with at most ``num_cells`` masses."""
    # The same spacing for both.
    while a.exponent < b.exponent:
        a = a.coarser()
    while b.exponent < a.exponent:
        b = b.coarser()

    grid = a.convolved(b).trimmed()
    while grid.size > num_cells:
        grid = grid.coarser()
    return grid


def compose_grids(grids: list[LossGrid], counts: list[int], num_cells: int) -> LossGrid:
    """Return the composition of each grid with itself, repeated by its count, and of all grids."""
    result: LossGrid | None = None
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


def vertices_below(grid: LossGrid) -> tuple[np.ndarray, np.ndarray]:
    """Return the points (N_j, 1 - A_j) for losses j h >= 0, moved towards the origin by all rounding."""
    (mass,) = grid.masses
    spacing = math.ldexp(1.0, grid.exponent)
    index = grid.first + np.arange(grid.size)
    with np.errstate(over="ignore", under="ignore"):
        decay = np.exp(-spacing * np.maximum(index, 0))
        null = np.where(index > 0, mass * decay, 0.0)

    # Sums over the indices above j, from j = 0 or just below the first.
    start = min(max(0, 1 - grid.first), grid.size)
    sums_of_alternative = _sums_from_above(mass)[start:]
    sums_of_null = _sums_from_above(null)[start:]

    # Move both down.
    error = grid.error + (grid.size + 16) * UNIT_ROUNDOFF
    alpha = sums_of_null * (1.0 - error) - _UNDERFLOW
    missing = (sums_of_alternative + grid.infinite[0]) * (1.0 + error) + _UNDERFLOW
    return np.maximum(alpha, 0.0), np.maximum(1.0 - missing, 0.0)


def points_above(grid: LossGrid) -> tuple[np.ndarray, np.ndarray]:
    """Return the two errors of every threshold test, moved away from the origin by all rounding."""
    null, alternative = grid.masses
    alpha = _sums_from_above(null) + grid.infinite[0]
    beta = np.append(0.0, np.cumsum(alternative))

    # Move both up.
    error = grid.error + (grid.size + 16) * UNIT_ROUNDOFF
    alpha = alpha * (1.0 + error) + _UNDERFLOW
    beta = beta * (1.0 + error) + _UNDERFLOW
    return np.minimum(alpha, 1.0), np.minimum(beta, 1.0)


def _sums_from_above(mass: np.ndarray) -> np.ndarray:
    """Return the sum of the masses from each index on, and 0 beyond the last."""
    sums = np.cumsum(mass[::-1])[::-1]
    return np.append(sums, 0.0)
