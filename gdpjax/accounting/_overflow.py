"""The price of a small probability of failure or overflow: the curve of a run from that of the run without it.

    WithFailure(ideal, Lost(failure=1e-6)).epsilon(1e-5)

* Events fail with probability d in all (`_ledgers`): delta(e) = d + (1 - d) delta_0(e).
* Steps without noise show the example that they add or remove with probability q in all. The pair of f_{0,q} reveals at
  least as much, so q is a failure from above. From below are f_{0,q}, the curve of being shown, and the run without
  these steps.
* Padded batches overflow with probability tau = s + a, silently (s) or announced (a), see `Event.overflow`:

      delta_ideal(e) - a - s (1 + e^e) <= delta(e) <= tau + (1 - tau) delta_ideal(e),
      (1 - tau) f_ideal(alpha / (1 - tau)) <= f(alpha) <= f_ideal(alpha - s) + s + a.

Hence epsilon is at most the ideal one at (delta - tau) / (1 - tau) and at least the ideal one at
delta + a + s (1 + e^{upper}). Every quotient and every lost mass is rounded to the safe side. Proofs and rounding are
in docs/theory/overflow.md. The numbers asked at are known before compiling.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._composition import complement
from gdpjax._core.arguments import check_flag, check_instance, check_number
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, OPEN_UNIT, UNIT, known
from gdpjax._core.types import FAILURE, Bounds, Numbers
from gdpjax.accounting._combinators import AccountedCurve, Between
from gdpjax.tradeoff import ApproximateDP, CertifiedCurve, CurveBounds

End = Callable[[np.ndarray], np.ndarray]
"""One end of the answers of a run, as a function of what they are asked at."""
_ULPS = 1e-15
_LOST_ERROR = 2e-15
_SMALLEST_POSITIVE = 1e-300
_LARGEST_EXPONENT = 700.0
_UP, _DOWN = 1.0, -1.0


class Lost(NamedTuple):
    """The probabilities of failure and overflow, in the symbols of the module docstring.

    Attributes:
        failure: d, the probability that a guarantee fails.
        silent: s, the probability of an overflow that is not announced.
        exact: whether ``failure`` is free of rounding.
        largest_loss: the largest privacy loss of the run if nothing is lost.
        announced: a, the probability of an overflow that is announced.
        shown: q, the probability that a step without noise shows an example that is added or removed.
    """

    failure: float = 0.0
    silent: float = 0.0
    exact: bool = True
    largest_loss: float = np.inf
    announced: float = 0.0
    shown: float = 0.0

    @property
    def overflow(self) -> float:
        """Return tau, the probability of an overflow of either kind."""
        return min(self.silent + self.announced, 1.0)

    def from_below(self, epsilon: np.ndarray) -> np.ndarray:
        """Return a + s (1 + e^epsilon), rounded up: the most that may be missing from delta(epsilon)."""
        # Beyond 700 the largest number stands for e^epsilon: unlike inf it leaves 0 where nothing is silent.
        largest = np.finfo(np.float64).max
        is_moderate = epsilon < _LARGEST_EXPONENT
        ratio = np.where(is_moderate, np.exp(np.minimum(epsilon, _LARGEST_EXPONENT)), largest)
        with np.errstate(over="ignore"):
            return (self.announced + self.silent * (1.0 + ratio)) * (1.0 + 1e-12)


def _rounded(lost: float, direction: float) -> float:
    """Return a lost mass, moved up (`_UP`) or down (`_DOWN`) by what it may be rounded."""
    return lost * (1.0 + direction * _LOST_ERROR)


def _without(share: np.ndarray, lost: float, direction: float) -> np.ndarray:
    """Return (share - lost) / (1 - lost), rounded up or down; 0 where everything is lost."""
    lost = _rounded(lost, -direction)
    kept_mass = 1.0 - min(lost, 1.0)
    if not kept_mass > 0:
        return np.zeros_like(share)
    return (share - lost) / kept_mass * (1.0 + direction * _ULPS)


def _at_inner_points(ideal: End, points: np.ndarray, otherwise: float) -> np.ndarray:
    """Return one end of the ideal answers at the points in (0, 1), and ``otherwise`` at all others."""
    is_inside = (points > 0) & (points < 1)
    answer = ideal(np.where(is_inside, points, 0.5))
    return np.where(is_inside, answer, otherwise)


def upper_end(ideal: End, share: np.ndarray, lost: Lost) -> np.ndarray:
    """Return an upper bound on epsilon or mu at a probability, from one on that of the run that loses nothing."""
    # It is asked at what is left of the probability after overflow and failure, rounded down.
    without_overflow = _without(share, lost.overflow, _DOWN)
    remaining = _without(_without(without_overflow, lost.failure, _DOWN), lost.shown, _DOWN)
    return _at_inner_points(ideal, remaining, np.inf)


def _failing_error(ideal: End, alpha: np.ndarray, failure: float, direction: float) -> np.ndarray:
    """Return one end of the curve (1 - d) f_0(alpha / (1 - d)) of a run whose guarantees fail, rounded up or down."""
    kept_mass = max(1.0 - _rounded(failure, -direction), _SMALLEST_POSITIVE)
    ideal_alpha = alpha / kept_mass * (1.0 - direction * _ULPS)
    value = kept_mass * ideal(np.clip(ideal_alpha, 0.0, 1.0)) * (1.0 + direction * _ULPS)
    return np.where(ideal_alpha >= 1.0, 0.0, value)


class WithFailure(AccountedCurve):
    """The certified curve of a run that may fail, or overflow.

    Args:
        ideal: the curve of the run if nothing is lost.
        lost: the probabilities of failure and overflow.
    """

    def __init__(self, ideal: CertifiedCurve, lost: Lost) -> None:
        self.ideal = ideal
        self.lost = lost

    def epsilon(self, delta: Numbers) -> Bounds:
        """Bracket epsilon."""
        delta = known("delta", delta, OPEN_UNIT)
        lost = self.lost
        upper = upper_end(lambda left: self.ideal.epsilon(left).upper, delta, lost)

        # From below: the ideal epsilon at a larger delta, which pays for the overflow.
        larger_delta = delta
        if lost.overflow:
            larger_delta = delta + lost.from_below(upper)
        remaining = _without(larger_delta, lost.failure, _UP)
        points = np.maximum(remaining, _SMALLEST_POSITIVE)
        lower = _at_inner_points(lambda left: self.ideal.epsilon(left).lower, points, 0.0)

        # Where delta covers all failures, epsilon is at most the largest loss.
        if not lost.overflow:
            failure = lost.failure if lost.exact else _rounded(lost.failure, _UP)
            upper = np.where(delta >= failure, np.minimum(upper, lost.largest_loss), upper)
            lower = np.minimum(lower, upper)

        # Where the failures surely exceed delta, no epsilon holds.
        exceeds_delta = larger_delta < lost.failure if lost.exact else remaining < 0
        return Bounds(np.where(exceeds_delta, np.inf, lower)[()], upper[()])

    def delta(self, epsilon: Numbers) -> Bounds:
        """Bracket delta."""
        epsilon = known("epsilon", epsilon, NONNEGATIVE)
        return self._paid(epsilon, self.ideal.delta(epsilon))

    def _deltas(self, epsilon: np.ndarray, width: float) -> Bounds:
        return self._paid(epsilon, self.ideal._deltas(epsilon, width))

    def _paid(self, epsilon: np.ndarray, ideal: Bounds) -> Bounds:
        """Return the bracket on delta from that of the ideal run."""
        # Failures: d + (1 - d) delta_0.
        least_failure = _rounded(self.lost.failure, _DOWN)
        largest_failure = min(_rounded(self.lost.failure, _UP), 1.0)
        lower = least_failure + (1.0 - least_failure) * ideal.lower
        upper = largest_failure + (1.0 - largest_failure) * ideal.upper

        # Overflow, which is paid for on both sides.
        lower = lower - self.lost.from_below(epsilon)
        overflow = min(_rounded(self.lost.overflow, _UP), 1.0)
        upper = overflow + (1.0 - overflow) * upper

        lower = np.maximum(lower * (1.0 - _ULPS), 0.0)
        upper = np.minimum(upper * (1.0 + _ULPS), 1.0)
        return Bounds(lower[()], upper[()])

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Bracket mu."""
        failure = known("failure", failure, OPEN_UNIT)
        lost = self.lost
        upper = upper_end(lambda left: self.ideal.mu(left).upper, failure, lost)
        if lost.silent:
            return Bounds(np.zeros_like(upper)[()], upper[()])

        # From below: the ideal mu at q + a / (1 - delta_m(0)), where 1 - delta_m(0) = 2 Phi(-m/2) at the upper end m.
        larger_failure = failure
        if lost.announced:
            success = np.maximum(2.0 * scipy.special.ndtr(-0.5 * upper), _SMALLEST_POSITIVE)
            larger_failure = failure + lost.announced / success * (1.0 + 1e-9)
        remaining = _without(larger_failure, lost.failure, _UP)
        lower = _at_inner_points(lambda left: self.ideal.mu(left).lower, remaining, 0.0)
        lower = np.minimum(lower, upper)

        # Where the failures surely exceed q, no mu holds.
        if not lost.announced:
            lower = np.where(remaining < 0, np.inf, lower)
        return Bounds(lower[()], upper[()])

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Bracket the trade-off curve."""
        alpha = known("alpha", alpha, UNIT)
        lost = self.lost

        # From below: (1 - tau) f(alpha / (1 - tau)).
        overflow = _rounded(lost.overflow, _UP)
        kept_mass = max(1.0 - overflow, _SMALLEST_POSITIVE)
        larger_alpha = alpha / kept_mass * (1.0 + _ULPS)
        lower = _failing_error(lambda at: self.ideal.tradeoff(at).lower, larger_alpha, lost.failure, _DOWN)
        lower = kept_mass * lower * (1.0 - _ULPS)

        # From above: f(alpha - s) + s + a, and never more than guessing, 1 - alpha.
        smaller_alpha = alpha
        if lost.silent:
            smaller_alpha = (alpha - _rounded(lost.silent, _UP)) * (1.0 - _ULPS) - _SMALLEST_POSITIVE
            smaller_alpha = np.maximum(smaller_alpha, 0.0)
        upper = _failing_error(lambda at: self.ideal.tradeoff(at).upper, smaller_alpha, lost.failure, _UP)
        upper = np.minimum(upper + overflow, complement(alpha).upper)
        return Bounds(np.minimum(lower, upper)[()], upper[()])


def with_failure(ideal: CertifiedCurve, lost: Lost) -> CertifiedCurve:
    """Return the curve of a run that may fail or overflow, from that of the run that does not."""
    if lost.shown:
        rest = with_failure(ideal, lost._replace(shown=0.0))
        above = WithFailure(rest, Lost(failure=lost.shown, exact=False))
        shown = ApproximateDP(0.0, _rounded(lost.shown, _DOWN))
        return Between(above, rest, CurveBounds(shown, shown))
    if not lost.failure and not lost.overflow:
        return ideal
    return WithFailure(ideal, lost)


def with_overflow(
    curve: CertifiedCurve,
    overflow: float,
    *,
    announced: bool = False,
) -> CertifiedCurve:
    """Return the certified curve of a run whose padded batches may overflow, from that of the run without overflow.

    Formula: delta_ideal(e) - overflow <= delta(e) <= overflow + (1 - overflow) delta_ideal(e) where it is announced;
    where it is not, overflow (1 + e^e) on the left. A `Ledger` with overflow in its events needs no such call.

    Args:
        curve: of the run without overflow, as `certified` gives it.
        overflow: probability in [0, 1) that some batch of the run does not fit.
        announced: whether the run stops at such a batch and says so, as in `gdpjax.Event`.

    Returns:
        A `gdpjax.tradeoff.CertifiedCurve`; certified.

    Raises:
        ValueError: something else than a curve, or a number that is out of range or traced.

    >>> from gdpjax.accounting import certified
    >>> curve = certified(1.0, 0.01, 1000, group_size=2)
    >>> padded = with_overflow(curve, 1e-8, announced=True)
    >>> bool(padded.epsilon(1e-5).upper > curve.epsilon(1e-5).upper)
    True
    """
    check_instance("curve", curve, CertifiedCurve, "such as gdpjax.accounting.certified gives")
    overflow = check_number("overflow", overflow, HALF_OPEN_UNIT)
    if check_flag("announced", announced):
        return with_failure(curve, Lost(announced=overflow))
    return with_failure(curve, Lost(silent=overflow))
