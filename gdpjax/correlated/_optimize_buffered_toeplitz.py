"""The best strategy with a few buffers (BLT) under a participation.

C(x) = prod_i (1 - zero_i x) / (1 - decay_i x) with 1 > decay_1 > zero_1 > decay_2 > zero_2 > ... > 0. Partial fractions
give scales that are positive and add up to less than 1, so the coefficients of C do not increase and its sensitivity is
exact. C^-1 is the same with zeros and decays exchanged, and its scales are negative. All 2 d numbers are distances from
1 whose logits increase, which leaves 2 d free numbers to optimise.
"""

import dataclasses
import math

import numpy as np
from scipy.special import expit, logit

from gdpjax._core.arguments import check_count
from gdpjax.correlated._buffered_toeplitz import BufferedToeplitz
from gdpjax.correlated._minimize import Loss, adjoint, minimize, weights_of_error
from gdpjax.correlated._participation import AbstractParticipation, check_participation
from gdpjax.correlated._sensitivity import sum_of_columns
from gdpjax.correlated._strategy import check_error
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload

_WORTH_A_BUFFER = 5e-4
"""The relative gain of the loss for which one buffer more is taken."""
_LONGEST_SEARCH = 4096
"""Steps up to which L-BFGS begins at every guess, and not at the best two only."""


def optimize_buffered_toeplitz(
    num_steps: int,
    participation: AbstractParticipation,
    error: str = "max",
    *,
    max_buffers: int = 4,
    workload: AbstractWorkload = PREFIX_SUM,
) -> BufferedToeplitz:
    """Return the buffered Toeplitz strategy of least certified sensitivity^2 times error that L-BFGS finds.

    One buffer is tried, then two, and so on while the loss becomes smaller by more than 0.05 %.

    Args:
        num_steps: n >= 1.
        participation: in which steps an example may take part.
        error: "mean" or "max", the squared error that is made small.
        max_buffers: the largest number of buffers, each as large as the parameters.
        workload: what the run computes of the released sums.

    Returns:
        A `BufferedToeplitz` with decays in (0, 1) and scales > 0, so that its sensitivity is exact. No certificate says
        that no other strategy is better.

    Raises:
        ValueError: a number outside its range, or an unknown error.

    Reference: McMahan, Xu and Zhang, arXiv:2408.08868; Dvijotham et al., arXiv:2404.16706.

    >>> from gdpjax.correlated import SingleParticipation
    >>> strategy = optimize_buffered_toeplitz(1000, SingleParticipation(), max_buffers=3)
    >>> f"{strategy.sensitivity(1000, SingleParticipation())**2 * strategy.error(1000, 'max'):.4f}"
    '10.6924'
    """
    num_steps = check_count("num_steps", num_steps)
    max_buffers = check_count("max_buffers", max_buffers)
    count, separation = check_participation(participation).limits(num_steps)
    check_error(error)
    loss = _loss(num_steps, count, separation, error, check_workload(workload))

    best, least = None, math.inf
    for num_buffers in range(1, max_buffers + 1):
        starts = _starts(num_steps, separation, num_buffers)
        starts.sort(key=lambda start: loss(start)[0])
        num_tried = len(starts) if num_steps <= _LONGEST_SEARCH else 2
        ends = []
        for start in starts[:num_tried]:
            ends.append(minimize(loss, start, max_iterations=150, tolerance=1e-9))
        strategy = _strategy(min(ends, key=lambda end: loss(end)[0]))
        squared = strategy.sensitivity(num_steps, participation) ** 2
        certified = squared * strategy.error(num_steps, error, workload=workload)
        if certified > (1.0 - _WORTH_A_BUFFER) * least:
            break
        best, least = strategy, certified
    assert best is not None
    return best


def _starts(num_steps: int, separation: int, num_buffers: int) -> list[np.ndarray]:
    """Return guesses whose distances from 1 are spread evenly on a logarithmic scale, down to a few scales of time."""
    smallest = []
    for length in (num_steps, min(separation, num_steps)):
        for factor in (0.3, 1.0, 3.0):
            smallest.append(min(factor / length, 0.2))
    points = []
    for distance in sorted(set(smallest)):
        logits = logit(np.geomspace(distance, 0.7, 2 * num_buffers))
        increments = np.diff(logits)
        points.append(np.concatenate([logits[:1], np.log(increments)]))
    return points


def _strategy(point: np.ndarray) -> BufferedToeplitz:
    """Return the strategy of 2 d free numbers."""
    distances = _distances(point)
    scales = _partial_fractions(distances[0::2], distances[1::2])
    return BufferedToeplitz(1.0 - distances[0::2], scales.values)


def _distances(point: np.ndarray) -> np.ndarray:
    """Return the increasing distances from 1 of decay_1, zero_1, decay_2, zero_2, ..."""
    increments = np.exp(point[1:])
    others = point[0] + np.cumsum(increments)
    return expit(np.concatenate([point[:1], others]))


def _loss(
    num_steps: int,
    count: int,
    separation: int,
    error: str,
    workload: AbstractWorkload,
) -> Loss:
    """Return log |v|^2 + log sum_s weight_s b_s^2, where v is the sum of the columns 0, b, 2 b, ... of C."""
    weights = weights_of_error(num_steps, error)

    def sum_of_pattern(column: np.ndarray) -> np.ndarray:
        return sum_of_columns(column, count, separation)

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        distances = _distances(point)
        to_decay, to_zero = distances[0::2], distances[1::2]
        forward = _GeometricColumn.of(to_decay, to_zero, num_steps)
        inverse = _GeometricColumn.of(to_zero, to_decay, num_steps)

        # The sensitivity.
        pattern = sum_of_pattern(forward.column)
        squared_sensitivity = pattern @ pattern
        to_column = 2.0 * adjoint(sum_of_pattern, pattern)
        to_column /= squared_sensitivity

        # The error.
        outputs = workload.apply(inverse.column)
        weighted = weights * outputs
        squared_error = weighted @ outputs
        to_inverse = 2.0 * adjoint(workload.apply, weighted)
        to_inverse /= squared_error

        # Through both columns to the distances, and to the free numbers.
        of_decay, of_zero = forward.pull_back(to_column)
        more_of_zero, more_of_decay = inverse.pull_back(to_inverse)
        of_distances = np.empty_like(distances)
        of_distances[0::2] = of_decay + more_of_decay
        of_distances[1::2] = of_zero + more_of_zero
        of_logits = of_distances * distances * (1.0 - distances)
        gradient = adjoint(np.cumsum, of_logits)
        gradient[1:] *= np.exp(point[1:])
        value = np.log(squared_sensitivity) + np.log(squared_error)
        return float(value), gradient

    return loss


@dataclasses.dataclass(frozen=True)
class _Scales:
    """The scales of the partial fractions, and their derivatives by the distances from 1 of poles and zeros."""

    values: np.ndarray
    by_poles: np.ndarray
    by_zeros: np.ndarray


def _partial_fractions(to_poles: np.ndarray, to_zeros: np.ndarray) -> _Scales:
    """Return scale_i of prod (1 - zero_j x) / (1 - pole_j x) = 1 + sum_i scale_i x / (1 - pole_i x).

        scale_i = prod_j (pole_i - zero_j) / prod_{j != i} (pole_i - pole_j)

    Differences are taken of the distances from 1, which keeps them precise near 1.
    """
    above_zeros = to_zeros[None, :] - to_poles[:, None]
    above_poles = to_poles[None, :] - to_poles[:, None]
    np.fill_diagonal(above_poles, 1.0)
    values = above_zeros.prod(axis=1) / above_poles.prod(axis=1)

    # The derivatives of log scale_i.
    inverse_gaps = 1.0 / above_poles
    np.fill_diagonal(inverse_gaps, 0.0)
    by_poles = -inverse_gaps
    own = inverse_gaps.sum(axis=1) - (1.0 / above_zeros).sum(axis=1)
    np.fill_diagonal(by_poles, own)
    by_zeros = 1.0 / above_zeros
    return _Scales(values, values[:, None] * by_poles, values[:, None] * by_zeros)


@dataclasses.dataclass(frozen=True)
class _GeometricColumn:
    """The series 1 + sum_i scale_i x / (1 - pole_i x), with what its derivatives need."""

    column: np.ndarray
    powers: np.ndarray
    """pole_i^t for t < n - 1, shape [d, n - 1]."""
    scales: _Scales

    @classmethod
    def of(cls, to_poles: np.ndarray, to_zeros: np.ndarray, num_steps: int) -> "_GeometricColumn":
        """Return the first coefficients for poles and zeros at these distances from 1."""
        scales = _partial_fractions(to_poles, to_zeros)
        powers = _powers(1.0 - to_poles, num_steps - 1)
        column = np.concatenate([[1.0], scales.values @ powers])
        return cls(column, powers, scales)

    def pull_back(self, to_column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives by the distances of poles and of zeros, from those by the column."""
        to_sums = to_column[1:]
        to_scales = self.powers @ to_sums

        # d pole^t = t pole^(t-1) d pole, and a distance is 1 - pole.
        exponents = np.arange(1, len(to_sums))
        by_power = self.powers[:, :-1] @ (exponents * to_sums[1:])
        of_poles = to_scales @ self.scales.by_poles - self.scales.values * by_power
        of_zeros = to_scales @ self.scales.by_zeros
        return of_poles, of_zeros


def _powers(bases: np.ndarray, num_powers: int) -> np.ndarray:
    """Return bases^t for t < num_powers, as products of small powers and powers of a large one."""
    num_small = max(1, math.isqrt(num_powers))
    num_large = -(-num_powers // num_small)
    small = bases[:, None] ** np.arange(num_small)
    large = (bases**num_small)[:, None] ** np.arange(num_large)
    products = large[:, :, None] * small[:, None, :]
    return products.reshape(len(bases), -1)[:, :num_powers]
