r"""A lower bound on the privacy of shuffled batches, from the largest noisy sum of every epoch.

`LargestSums` is a certified curve: it proves lower bounds on delta, epsilon and mu, and an upper bound on the trade-off
curve; its other ends say nothing. It is one of the curves below shuffled batches. Derivation:
docs/theory/shuffling.md.

Let every gradient but the target's be -1 (clip norm 1, noise of standard deviation s), and the target's be 1 in one
data set and null in the other. The sum of a batch of others is public. Without it, the t outputs of an epoch are noise,
except for the step of the target, whose mean is 2 or 1. Their largest is

    M with P(M <= c) = Phi((c - 2) / s) Phi(c / s)^{t - 1},      Q(M <= c) = Phi((c - 1) / s) Phi(c / s)^{t - 1},

independently in each epoch. Every test of (M_1, ..., M_E) is a test of the run, too.

**Scores.** M is replaced by a whole number k(M), log(P / Q) of a cell around M in units of h, rounded. The run is
replaced by the sum of the scores of its epochs. That is post-processing whatever the scores are, so the laws of the
sum, convolutions of positive masses, are a pair whose tests are attacks on the run. Merging neighbouring scores, to
keep arrays short, is post-processing as well, and an outcome that is left out is one on which no test rejects.

**Rounding.** Masses are stored twice, rounded down and up, by 1e-11 of the distribution function they are differences
of and by the rounding of sums of positive products. A test of P against Q takes P from below and Q from above.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._core.checks import NONNEGATIVE, OPEN_UNIT, UNIT, known
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import FAILURE, Bounds, Numbers
from gdpjax.accounting._combinators import AccountedCurve
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
_SUM_ROUNDING = 1e-12
_BISECTIONS = 40


class _ScoreLaws(NamedTuple):
    """The laws of a score under P and Q.

    Attributes:
        level: one score is 2^level of log(P / Q).
        p_low, p_high: the masses under P [scores], rounded down and up.
        q_low, q_high: the masses under Q [scores], rounded down and up.
    """

    level: int
    p_low: np.ndarray
    p_high: np.ndarray
    q_low: np.ndarray
    q_high: np.ndarray

    @property
    def masses(self) -> tuple[np.ndarray, ...]:
        """Return the four arrays of masses."""
        return self[1:]


class LargestSums(AccountedCurve):
    """Attacks on the largest noisy sums of some epochs, and the bounds that they prove.

    Args:
        epochs: (noise_multiplier > 0, steps_per_epoch >= 1, num_epochs >= 1), one or several.
    """

    def __init__(self, epochs: Iterable[tuple[float, int, int]]) -> None:
        laws = None
        for noise_multiplier, steps_per_epoch, num_epochs in epochs:
            laws_of_epoch = _laws_of_epoch(noise_multiplier, steps_per_epoch)
            laws_of_epochs = _power(laws_of_epoch, num_epochs)
            laws = laws_of_epochs if laws is None else _convolved(laws, laws_of_epochs)
        assert laws is not None
        self._remove = _Tests(laws.p_low, laws.q_high)
        self._add = _Tests(laws.q_low, laws.p_high)
        self._largest_loss = max(self._remove.largest_loss, self._add.largest_loss)

    def delta(self, epsilon: Numbers) -> Bounds:
        """Bound delta from below."""
        lower = self._delta(known("epsilon", epsilon, NONNEGATIVE))
        return Bounds(lower, np.ones_like(lower))

    def epsilon(self, delta: Numbers) -> Bounds:
        """Bound epsilon from below."""
        lower = self._epsilon(known("delta", delta, OPEN_UNIT))
        return Bounds(lower, np.full_like(lower, np.inf))

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Bound the trade-off curve from above."""
        alpha = known("alpha", alpha, UNIT)
        upper = np.minimum(self._remove.beta(alpha), self._add.beta(alpha))
        return Bounds(np.zeros_like(upper), upper)

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Bound mu from below."""
        failure = known("failure", failure, OPEN_UNIT)
        answers = [self._mu(float(probability)) for probability in failure.flat]
        lower = np.reshape(answers, failure.shape)
        return Bounds(lower, np.full_like(lower, np.inf))

    def _delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Return a lower bound on delta."""
        return np.maximum(self._remove.delta(epsilon), self._add.delta(epsilon))

    def _epsilon(self, delta: np.ndarray) -> np.ndarray:
        """Return a lower bound on epsilon."""
        ends = np.zeros(delta.shape), np.full(delta.shape, self._largest_loss)
        lower, _ = bisect_on_host(lambda middle: self._delta(middle) > delta, *ends, num_iterations=_BISECTIONS)
        return lower

    def _mu(self, failure: float) -> float:
        """Return the largest mu with delta(epsilon) > failure + (1 - failure) delta_mu at some epsilon."""
        largest_epsilon = float(self._epsilon(np.asarray(failure)))
        epsilon = np.linspace(0.0, largest_epsilon, _MU_POINTS)
        delta_mu = (self._delta(epsilon) - failure) / (1.0 - failure) * (1.0 - _SHAVED)
        forced_mu = np.asarray(gdp_mu(epsilon, np.maximum(delta_mu, _UNDERFLOW)))
        forced_mu = np.where(delta_mu > _UNDERFLOW, forced_mu, 0.0)
        return float(np.max(forced_mu)) * (1.0 - _SHAVED)


class _Tests:
    """The most powerful tests between two laws, in the order of their size.

    Args:
        p_low: masses under the law that a test should accept, rounded down.
        q_high: masses under the law that a test should reject, rounded up.
    """

    def __init__(self, p_low: np.ndarray, q_high: np.ndarray) -> None:
        is_possible = p_low > 0
        p = p_low[is_possible]
        q = q_high[is_possible]
        loss = np.log(p / q)
        order = np.argsort(-loss, kind="stable")
        self._loss = loss[order]

        # The rounding of the sums, once more to the safe side.
        self._power = np.cumsum(p[order]) * (1.0 - _SUM_ROUNDING)
        self._size = np.cumsum(q[order]) * (1.0 + _SUM_ROUNDING)

    @property
    def largest_loss(self) -> float:
        """Return the largest loss of an outcome, or 0."""
        if len(self._loss) == 0:
            return 0.0
        return max(float(self._loss[0]), 0.0)

    def delta(self, epsilon: np.ndarray) -> np.ndarray:
        """Return P(S) - e^epsilon Q(S) for the outcomes S whose loss is above epsilon."""
        num_outcomes = np.searchsorted(-self._loss, -np.asarray(epsilon), side="left")
        power = np.concatenate(([0.0], self._power))[num_outcomes]
        size = np.concatenate(([_UNDERFLOW], self._size))[num_outcomes]
        log_cost = epsilon + np.log(size)
        cost = np.exp(np.minimum(log_cost, 1.0)) * (1.0 + _SUM_ROUNDING)
        return np.maximum(power - cost, 0.0)

    def beta(self, alpha: np.ndarray) -> np.ndarray:
        """Return 1 - P(S) for the test of size alpha."""
        size = np.concatenate(([0.0], self._size))
        beta = np.concatenate(([1.0], 1.0 - self._power))
        return np.clip(np.interp(alpha, size, beta) + 1e-15, 0.0, 1.0)


def _laws_of_epoch(noise_multiplier: float, num_steps: int) -> _ScoreLaws:
    """Return the laws of the score of the largest sum of one epoch."""
    # From where both distribution functions are below e^-80, to far beyond where either has its mass.
    lowest = 1.0 - 12.5 * noise_multiplier
    if num_steps > 1:
        smallest_quantile = float(scipy.special.ndtri_exp(_LOG_LEAST_CDF / (num_steps - 1)))
        lowest = max(lowest, noise_multiplier * smallest_quantile)
    likely_largest = max(2.0, noise_multiplier * math.sqrt(2.0 * math.log(num_steps)))
    highest = likely_largest + _TAIL * noise_multiplier
    edges = np.linspace(lowest, highest, _CELLS + 1)
    p_low, p_high = _masses(edges, 2.0, noise_multiplier, num_steps)
    q_low, q_high = _masses(edges, 1.0, noise_multiplier, num_steps)

    # A cell without any mass has no loss.
    has_mass = (p_low > 0) | (q_low > 0)
    masses = [mass[has_mass] for mass in (p_low, p_high, q_low, q_high)]
    _, p_high, _, q_high = masses
    loss = np.log(p_high / q_high)

    # The score is the loss in units of 2^level, and cells of one score are merged.
    span = max(float(np.ptp(loss)), 1e-6)
    level = math.ceil(math.log2(span / _SCORES))
    score = np.floor((loss - loss.min()) / 2.0**level).astype(np.int64)
    masses_of_scores = [np.bincount(score, mass) for mass in masses]
    return _trimmed(_ScoreLaws(level, *masses_of_scores))


def _masses(
    edges: np.ndarray,
    mean: float,
    noise_multiplier: float,
    num_steps: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the masses of the largest of t normal numbers between neighbouring edges, rounded down and up.

    One of the t numbers has the mean ``mean``, all others 0.
    """
    log_cdf_of_target = scipy.special.log_ndtr((edges - mean) / noise_multiplier)
    log_cdf_of_others = (num_steps - 1) * scipy.special.log_ndtr(edges / noise_multiplier)
    log_cdf = log_cdf_of_target + log_cdf_of_others
    cdf = np.exp(log_cdf)
    tail = -np.expm1(log_cdf)

    # Differences on the side where they lose fewer digits.
    is_on_left = cdf[1:] < 0.5
    mass = np.where(is_on_left, np.diff(cdf), -np.diff(tail))
    error = _ROUNDING * np.where(is_on_left, cdf[1:], tail[:-1])
    low = np.maximum(mass - error, 0.0)
    high = np.maximum(mass, 0.0) + error + _UNDERFLOW
    return low, high


def _power(laws: _ScoreLaws, num_epochs: int) -> _ScoreLaws:
    """Return the laws of the sum of the scores of ``num_epochs`` epochs, by doubling."""
    result = None
    while True:
        if num_epochs % 2:
            result = laws if result is None else _convolved(result, laws)
        num_epochs //= 2
        if not num_epochs:
            assert result is not None
            return result
        laws = _convolved(laws, laws)


def _convolved(first: _ScoreLaws, second: _ScoreLaws) -> _ScoreLaws:
    """Return the laws of the sum of two independent scores, in the unit of the coarser one."""
    while first.level < second.level:
        first = _coarser(first)
    while second.level < first.level:
        second = _coarser(second)

    masses = []
    for first_mass, second_mass in zip(first.masses, second.masses, strict=True):
        masses.append(np.convolve(first_mass, second_mass))
    p_low, p_high, q_low, q_high = masses

    # The rounding of sums of that many products. Products that underflowed are missing from the sums.
    num_products = min(len(first.p_low), len(second.p_low))
    rounding = (num_products + 4) * 2.0**-52
    up, down = 1.0 + rounding, 1.0 - rounding
    laws = _ScoreLaws(
        level=first.level,
        p_low=p_low * down,
        p_high=p_high * up + _UNDERFLOW,
        q_low=q_low * down,
        q_high=q_high * up + _UNDERFLOW,
    )
    return _trimmed(laws)


def _trimmed(laws: _ScoreLaws) -> _ScoreLaws:
    """Return the laws without scores of next to no mass at the ends, and not longer than `_LONGEST`."""
    (heavy,) = np.nonzero((laws.p_low > _LEAST_MASS) | (laws.q_low > _LEAST_MASS))
    if len(heavy):
        masses = [mass[heavy[0] : heavy[-1] + 1] for mass in laws.masses]
        laws = _ScoreLaws(laws.level, *masses)
    while len(laws.p_low) > _LONGEST:
        laws = _coarser(laws)
    return laws


def _coarser(laws: _ScoreLaws) -> _ScoreLaws:
    """Return the laws in which each pair of neighbouring scores is one score."""
    padding = np.zeros(len(laws.p_low) % 2)
    masses = []
    for mass in laws.masses:
        pairs = np.append(mass, padding).reshape(-1, 2)
        masses.append(pairs.sum(axis=1))
    return _ScoreLaws(laws.level + 1, *masses)
