"""A Toeplitz C whose coefficients are a sum of a few geometric sequences (BLT).

C(x) = prod_i (1 - zero_i x) / (1 - decay_i x) with 1 > decay_1 > zero_1 > decay_2 > zero_2 > ... > 0. Partial fractions
give scales that are positive and add up to less than 1, so the coefficients of C do not increase and its sensitivity is
exact. C^-1 is the same with zeros and decays exchanged, and its scales are negative. The 2 d distances of decays and
zeros from 1 increase. The logit of the first and the logarithms of the increments of the logits are the free numbers.
"""

import dataclasses
import math
from typing import Any

import jax
import numpy as np
import scipy
from jaxtyping import Float, Real

from gdpjax._core.arguments import check_array, check_count
from gdpjax._core.checks import REAL, Domain, check, is_traced
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree, Whole, pytree_dataclass
from gdpjax.correlated import _buffers
from gdpjax.correlated._minimize import Loss, adjoint, log_squared_error, log_squared_sensitivity, minimize
from gdpjax.correlated._participation import AbstractParticipation, check_participation
from gdpjax.correlated._series import CertifiedSeries, buffered_inverse, geometric_sums
from gdpjax.correlated._strategy import Draw, ToeplitzStrategy, check_error, length_of, refuse_scale
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload

_DECAY = Domain("numbers in [0, 1]", lambda x: (x >= 0) & (x <= 1))


@pytree_dataclass
class BufferedToeplitz(ToeplitzStrategy):
    """C_0 = 1 and C_t = sum_i scale_i decay_i^(t-1), with one buffer for each of the d terms.

        w_t = z_t - sum_i scale_i S_i,          S_i <- decay_i S_i + w_t

    The state is the d buffers, which are secret. A few suffice, and more steps need more of them: for one
    participation, four come within 0.3 % of the sensitivity^2 times error of the square root at 10^4 steps, three at
    1000.

    Args:
        decay: decay_i in [0, 1], shape [d].
        scale: scale_i, finite, shape [d].

    Returns:
        A strategy. Its sensitivity is exact (to a relative 1e-9) if all scales are >= 0 with a sum of at most 1;
        otherwise it is an upper bound.

    Raises:
        ValueError: numbers outside their ranges, or shapes that differ.

    Reference: McMahan, Xu and Zhang, arXiv:2408.08868; Dvijotham et al., arXiv:2404.16706.

    >>> from gdpjax.correlated import MinSep
    >>> strategy = BufferedToeplitz(decay=[0.986, 0.623], scale=[0.231, 0.273])
    >>> f"{strategy.sensitivity(1000, MinSep(10, 100))**2 * strategy.error(1000, 'max'):.2f}"
    '223.60'
    """

    decay: Real[Array, " buffers"]
    scale: Real[Array, " buffers"]

    def __post_init__(self) -> None:
        for name, domain in (("decay", _DECAY), ("scale", REAL)):
            array = check_array(name, getattr(self, name), ndim=1)
            check(name, array, domain)
            if not is_traced(array):
                array = np.array(array, np.float64)
            object.__setattr__(self, name, array)
            if not is_traced(array):
                refuse_scale(name, 1.0, np.append(array, 1.0))
        if np.shape(self.decay) != np.shape(self.scale):
            raise ValueError(
                f"decay and scale must have one number each per buffer, got {shown(self.decay)} and {shown(self.scale)}"
            )

    @property
    def num_buffers(self) -> int:
        """The number of buffers, d."""
        return length_of("decay", self.decay)

    def column(self, num_steps: int) -> CertifiedSeries:
        """Return the first column of C."""
        return geometric_sums(self.decay, self.scale, num_steps)

    def inverse_column(self, num_steps: int) -> Float[np.ndarray, " {num_steps}"]:
        """Return the first column of C^-1."""
        return buffered_inverse(self.decay, self.scale, num_steps)

    def init(self, like: PyTree) -> PyTree:
        """Return the buffers, float32 zeros with a leading axis of d."""
        return _buffers.zeros_like_each(like, self.num_buffers)

    def next(self, step: Whole, draw: Draw, state: PyTree) -> tuple[PyTree, PyTree]:
        """Return w_step, and the buffers after it."""
        drawn = _buffers.as_noise(draw(step))
        scale = _buffers.split_high_and_low(self.scale)
        decay = _buffers.split_high_and_low(self.decay)

        # w_t = z_t - sum_i scale_i S_i; then S_i <- decay_i S_i + w_t.
        noise = _buffers.subtract(drawn, _buffers.sum_of_slots(scale, state))
        decayed = _buffers.multiply(decay, state)
        return noise, jax.tree.map(_added_to_each_slot, decayed, noise)


def _added_to_each_slot(buffer: Any, leaf: Any) -> Any:
    """Return the buffer with the leaf added to all of its slots."""
    return buffer + leaf[None]


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

    One buffer is tried, then two, and so on while the loss becomes smaller by more than 0.05 %. The other optimisers
    have error="mean" by default: give it here as well to compare strategies by the mean.

    Args:
        num_steps: n >= 1.
        participation: in which steps an example may take part.
        error: "mean" or "max", the squared error that is made small. "max" costs some of the mean: 7 % of its root for
            1000 steps in 20 epochs.
        max_buffers: the largest number of buffers, each as large as the parameters.
        workload: what the run computes of the released sums.

    Returns:
        A `BufferedToeplitz` with decays in (0, 1) and scales > 0, so that its sensitivity is exact. No certificate says
        that no other strategy is better.

    Raises:
        ValueError: a number outside its range, or an error that is not "mean" or "max".

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
        logits = scipy.special.logit(np.geomspace(distance, 0.7, 2 * num_buffers))
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
    return scipy.special.expit(np.concatenate([point[:1], others]))


def _loss(
    num_steps: int,
    count: int,
    separation: int,
    error: str,
    workload: AbstractWorkload,
) -> Loss:
    """Return log |v|^2 + log error, where v is the sum of the columns 0, b, 2 b, ... of C."""

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        distances = _distances(point)
        decay_distances, zero_distances = distances[0::2], distances[1::2]
        forward = _GeometricColumn.of(decay_distances, zero_distances, num_steps)
        inverse = _GeometricColumn.of(zero_distances, decay_distances, num_steps)
        log_sensitivity, gradient_by_column = log_squared_sensitivity(forward.column, count, separation)
        log_error, gradient_by_inverse = log_squared_error(inverse.column, error, workload)

        # Through both columns to the distances; the inverse has decays and zeros exchanged.
        by_decays, by_zeros = forward.pull_back(gradient_by_column)
        by_zeros_of_inverse, by_decays_of_inverse = inverse.pull_back(gradient_by_inverse)
        gradient_by_distances = np.empty_like(distances)
        gradient_by_distances[0::2] = by_decays + by_decays_of_inverse
        gradient_by_distances[1::2] = by_zeros + by_zeros_of_inverse

        # Through the logits to the free numbers.
        gradient_by_logits = gradient_by_distances * distances * (1.0 - distances)
        gradient = adjoint(np.cumsum, gradient_by_logits)
        gradient[1:] *= np.exp(point[1:])
        return log_sensitivity + log_error, gradient

    return loss


@dataclasses.dataclass(frozen=True)
class _Scales:
    """The scales of the partial fractions, and their derivatives by the distances from 1 of decays and zeros."""

    values: np.ndarray
    gradient_by_decay_distances: np.ndarray
    gradient_by_zero_distances: np.ndarray


def _partial_fractions(decay_distances: np.ndarray, zero_distances: np.ndarray) -> _Scales:
    """Return scale_i of prod (1 - zero_j x) / (1 - decay_j x) = 1 + sum_i scale_i x / (1 - decay_i x).

        scale_i = prod_j (decay_i - zero_j) / prod_{j != i} (decay_i - decay_j)

    Differences are taken of the distances from 1, which keeps them precise near 1.
    """
    gaps_to_zeros = zero_distances[None, :] - decay_distances[:, None]
    gaps_to_decays = decay_distances[None, :] - decay_distances[:, None]
    np.fill_diagonal(gaps_to_decays, 1.0)
    values = gaps_to_zeros.prod(axis=1) / gaps_to_decays.prod(axis=1)

    # The derivatives of log scale_i.
    inverse_gaps = 1.0 / gaps_to_decays
    np.fill_diagonal(inverse_gaps, 0.0)
    log_gradient_by_decays = -inverse_gaps
    diagonal = inverse_gaps.sum(axis=1) - (1.0 / gaps_to_zeros).sum(axis=1)
    np.fill_diagonal(log_gradient_by_decays, diagonal)
    log_gradient_by_zeros = 1.0 / gaps_to_zeros
    return _Scales(values, values[:, None] * log_gradient_by_decays, values[:, None] * log_gradient_by_zeros)


@dataclasses.dataclass(frozen=True)
class _GeometricColumn:
    """The series 1 + sum_i scale_i x / (1 - decay_i x), with what its derivatives need."""

    column: np.ndarray
    powers: np.ndarray
    """decay_i^t for t < n - 1, shape [d, n - 1]."""
    scales: _Scales

    @classmethod
    def of(cls, decay_distances: np.ndarray, zero_distances: np.ndarray, num_steps: int) -> "_GeometricColumn":
        """Return the first coefficients for decays and zeros at these distances from 1."""
        scales = _partial_fractions(decay_distances, zero_distances)
        powers = _powers(1.0 - decay_distances, num_steps - 1)
        column = np.concatenate([[1.0], scales.values @ powers])
        return cls(column, powers, scales)

    def pull_back(self, gradient_by_column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the derivatives by the distances of decays and of zeros, from those by the column."""
        gradient_by_sums = gradient_by_column[1:]
        gradient_by_scales = self.powers @ gradient_by_sums

        # d decay^t = t decay^(t-1) d decay, and a distance is 1 - decay.
        exponents = np.arange(1, len(gradient_by_sums))
        by_power = self.powers[:, :-1] @ (exponents * gradient_by_sums[1:])
        by_decays = gradient_by_scales @ self.scales.gradient_by_decay_distances - self.scales.values * by_power
        by_zeros = gradient_by_scales @ self.scales.gradient_by_zero_distances
        return by_decays, by_zeros


def _powers(bases: np.ndarray, num_powers: int) -> np.ndarray:
    """Return bases^t for t < num_powers, as products of small powers and powers of a large one."""
    num_small = max(1, math.isqrt(num_powers))
    num_large = -(-num_powers // num_small)
    small = bases[:, None] ** np.arange(num_small)
    large = (bases**num_small)[:, None] ** np.arange(num_large)
    products = large[:, :, None] * small[:, None, :]
    return products.reshape(len(bases), -1)[:, :num_powers]
