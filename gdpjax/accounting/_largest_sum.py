r"""A lower bound on the privacy of shuffled batches, from the largest noisy sum of every epoch.

Derivation: docs/theory/shuffling.md. Let every gradient but the target's be -1 (clip norm 1, noise of standard
deviation s), and the target's be 1 in one data set and null in the other. Less what a batch of others sums to, which is
public, the t outputs of an epoch are noise, but for the step of the target, whose mean is 2 or 1. Their largest is

    M with P(M <= c) = Phi((c - 2) / s) Phi(c / s)^{t - 1},      Q(M <= c) = Phi((c - 1) / s) Phi(c / s)^{t - 1},

independently in each epoch. What a test of (M_1, ..., M_E) finds, the best test of the run finds, too.

**Scores.** M is replaced by a whole number k(M), log(P / Q) of a cell around M in units of h, rounded; the run by the
sum of the scores of its epochs. That is post-processing whatever the scores are, so the laws of the sum, convolutions
of positive masses, are a pair whose tests are attacks on the run. Merging neighbouring scores, to keep arrays short, is
post-processing as well, and an outcome that is left out is one on which no test rejects.

**Rounding.** Masses are kept twice, rounded down and up, by 1e-11 of the distribution function they are differences of
and by the rounding of sums of positive products; a test of P against Q takes P from below and Q from above.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy

from gdpjax.accounting._gdp import gdp_mu

_CELLS = 4096
_SCORES = 2048
_LONGEST = 4096
_LEAST_MASS = 1e-60
_UNDERFLOW = 1e-300
_LOG_LEAST_CDF = -80.0
_TAIL = 18.0
_ROUNDING = 1e-11
_MU_POINTS = 256
_SHAVED = 1e-9


class _Laws(NamedTuple):
    """The laws of a score under P and Q: masses [scores], rounded down and up; one score is 2^level of log(P / Q)."""

    level: int
    p_low: np.ndarray
    p_high: np.ndarray
    q_low: np.ndarray
    q_high: np.ndarray

    @property
    def masses(self) -> tuple[np.ndarray, ...]:
        return self[1:]


class LargestSums:
    """Attacks on the largest noisy sums of some epochs, and what they prove.

    Args:
        epochs: (noise_multiplier > 0, steps_per_epoch >= 1, num_epochs >= 1), one or several.
    """

    def __init__(self, epochs: Iterable[tuple[float, int, int]]) -> None:
        laws = None
        for noise_multiplier, steps_per_epoch, num_epochs in epochs:
            power = _power(_laws_of_epoch(noise_multiplier, steps_per_epoch), num_epochs)
            laws = power if laws is None else _convolved(laws, power)
        if laws is None:
            raise ValueError("expected at least one epoch")
        self._directions = (_Tests(laws.p_low, laws.q_high), _Tests(laws.q_low, laws.p_high))

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """A lower bound on delta at ``epsilon``, of any shape."""
        return np.maximum(*(tests.delta(epsilon) for tests in self._directions))

    def epsilon(self, delta: np.ndarray) -> np.ndarray:
        """A lower bound on epsilon at ``delta``, of any shape."""
        low, high = np.zeros(np.shape(delta)), np.full(np.shape(delta), self._largest_loss)
        while np.max(high - low, initial=0.0) > 1e-9 * (1.0 + self._largest_loss):
            middle = 0.5 * (low + high)
            exceeds = self.delta(middle) > delta
            low, high = np.where(exceeds, middle, low), np.where(exceeds, high, middle)
        return low

    def tradeoff(self, alpha: np.ndarray) -> np.ndarray:
        """An upper bound on the trade-off curve at ``alpha``, of any shape."""
        return np.minimum(*(tests.beta(alpha) for tests in self._directions))

    def mu(self, failure: np.ndarray) -> np.ndarray:
        """A lower bound on mu at a failure probability, of any shape."""
        answers = [self._mu(float(one)) for one in np.ravel(failure)]
        return np.reshape(answers, np.shape(failure))

    def _mu(self, failure: float) -> float:
        """The largest mu that is too small at some epsilon: delta(epsilon) > failure + (1 - failure) delta_mu."""
        epsilon = np.linspace(0.0, float(self.epsilon(np.asarray(failure))), _MU_POINTS)
        share = (self.delta(epsilon) - failure) / (1.0 - failure) * (1.0 - _SHAVED)
        forced = np.asarray(gdp_mu(epsilon, np.maximum(share, _UNDERFLOW)))
        return float(np.max(np.where(share > _UNDERFLOW, forced, 0.0))) * (1.0 - _SHAVED)

    @property
    def _largest_loss(self) -> float:
        return max(tests.largest_loss for tests in self._directions)


class _Tests:
    """The most powerful tests between two laws, in the order of their size."""

    def __init__(self, p_low: np.ndarray, q_high: np.ndarray) -> None:
        kept = p_low > 0
        p, q = p_low[kept], q_high[kept]
        order = np.argsort(-np.log(p / q), kind="stable")
        self._loss = np.log(p / q)[order]
        # The rounding of the sums, once more to the safe side.
        self._power = np.cumsum(p[order]) * (1.0 - 1e-12)
        self._size = np.cumsum(q[order]) * (1.0 + 1e-12)

    @property
    def largest_loss(self) -> float:
        return max(float(self._loss[0]), 0.0) if len(self._loss) else 0.0

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """P(S) - e^epsilon Q(S) for the outcomes S whose loss is above epsilon."""
        number = np.searchsorted(-self._loss, -np.asarray(epsilon), side="left")
        power = np.concatenate(([0.0], self._power))[number]
        log_size = np.log(np.concatenate(([_UNDERFLOW], self._size))[number])
        return np.maximum(power - np.exp(np.minimum(epsilon + log_size, 1.0)) * (1.0 + 1e-12), 0.0)

    def beta(self, alpha: np.ndarray) -> np.ndarray:
        """1 - P(S) for the test of size alpha."""
        size = np.concatenate(([0.0], self._size))
        beta = np.concatenate(([1.0], 1.0 - self._power))
        return np.clip(np.interp(alpha, size, beta) + 1e-15, 0.0, 1.0)


def _laws_of_epoch(noise_multiplier: float, steps: int) -> _Laws:
    """The scores of the largest sum of one epoch."""
    s = noise_multiplier
    # From where both distribution functions are below e^-80, to far beyond where either has its mass.
    lowest = 1.0 - 12.5 * s
    if steps > 1:
        lowest = max(lowest, s * float(scipy.special.ndtri_exp(_LOG_LEAST_CDF / (steps - 1))))
    highest = max(2.0, s * math.sqrt(2.0 * math.log(steps))) + _TAIL * s
    edges = np.linspace(lowest, highest, _CELLS + 1)
    p_low, p_high = _masses(edges, 2.0, s, steps)
    q_low, q_high = _masses(edges, 1.0, s, steps)

    kept = (p_low > 0) | (q_low > 0)
    p_low, p_high, q_low, q_high = (mass[kept] for mass in (p_low, p_high, q_low, q_high))
    loss = np.log(p_high / q_high)
    span = max(float(np.ptp(loss)), 1e-6)
    level = math.ceil(math.log2(span / _SCORES))
    score = np.floor((loss - loss.min()) / 2.0**level).astype(np.int64)
    return _trimmed(_Laws(level, *(np.bincount(score, mass) for mass in (p_low, p_high, q_low, q_high))))


def _masses(edges: np.ndarray, mean: float, s: float, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """The mass between neighbouring edges of the largest of t normal numbers, one of mean ``mean``, down and up."""
    log_cdf = scipy.special.log_ndtr((edges - mean) / s) + (steps - 1) * scipy.special.log_ndtr(edges / s)
    cdf, tail = np.exp(log_cdf), -np.expm1(log_cdf)
    # Differences on the side where they lose fewer digits.
    on_left = cdf[1:] < 0.5
    mass = np.where(on_left, np.diff(cdf), -np.diff(tail))
    error = _ROUNDING * np.where(on_left, cdf[1:], tail[:-1])
    return np.maximum(mass - error, 0.0), np.maximum(mass, 0.0) + error + _UNDERFLOW


def _power(laws: _Laws, num: int) -> _Laws:
    """The scores of ``num`` epochs, by doubling."""
    result = None
    while True:
        if num % 2:
            result = laws if result is None else _convolved(result, laws)
        num //= 2
        if not num:
            assert result is not None
            return result
        laws = _convolved(laws, laws)


def _convolved(one: _Laws, other: _Laws) -> _Laws:
    """The law of the sum of two independent scores, in the unit of the coarser one."""
    while one.level < other.level:
        one = _coarser(one)
    while other.level < one.level:
        other = _coarser(other)
    rounding = (min(len(one.p_low), len(other.p_low)) + 4) * 2.0**-52
    p_low, p_high, q_low, q_high = (np.convolve(*pair) for pair in zip(one.masses, other.masses, strict=True))
    up, down = 1.0 + rounding, 1.0 - rounding
    # Products that underflowed are missing from the sums.
    laws = _Laws(one.level, p_low * down, p_high * up + _UNDERFLOW, q_low * down, q_high * up + _UNDERFLOW)
    return _trimmed(laws)


def _trimmed(laws: _Laws) -> _Laws:
    """Without scores of next to no mass at the ends, and not longer than `_LONGEST`."""
    (kept,) = np.nonzero((laws.p_low > _LEAST_MASS) | (laws.q_low > _LEAST_MASS))
    if len(kept):
        laws = _Laws(laws.level, *(mass[kept[0] : kept[-1] + 1] for mass in laws.masses))
    while len(laws.p_low) > _LONGEST:
        laws = _coarser(laws)
    return laws


def _coarser(laws: _Laws) -> _Laws:
    """Pairs of neighbouring scores as one."""
    odd = len(laws.p_low) % 2
    merged = (np.append(mass, np.zeros(odd)).reshape(-1, 2).sum(axis=1) for mass in laws.masses)
    return _Laws(laws.level + 1, *merged)
