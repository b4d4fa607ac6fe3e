"""The price of a small probability of failure or overflow: brackets of a run from those of the run without it.

Each of `epsilon`, `delta`, `tradeoff` and `mu` below takes the bracket of the ideal run, as a function, and `Lost`, the
probabilities of failure and overflow. `_run_curve.CurveWithLostMass` asks them.

* Events fail with probability d in all (`_ledgers`): delta(e) = d + (1 - d) delta_0(e).
* Padded batches overflow with probability tau = s + a, silently (s) or announced (a), see `Event.overflow`:

      delta_ideal(e) - a - s (1 + e^e) <= delta(e) <= tau + (1 - tau) delta_ideal(e),
      (1 - tau) f_ideal(alpha / (1 - tau)) <= f(alpha) <= f_ideal(alpha - s) + s + a.

Hence epsilon is at most the ideal one at (delta - tau) / (1 - tau) and at least the ideal one at
delta + a + s (1 + e^{upper}). Every quotient and every lost mass is rounded to the safe side. Proofs and rounding are
in docs/theory/overflow.md. Every function here is for NumPy arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from gdpjax._core.checks import HALF_OPEN_UNIT, OPEN_UNIT, check, check_broadcast, is_traced
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import complement

Ideal = Callable[[np.ndarray], Bounds]
_ULPS = 1e-15
_LOST_ERROR = 2e-15
_SMALLEST_POSITIVE = 1e-300
_LARGEST_EXPONENT = 700.0
_UP, _DOWN = 1.0, -1.0
_LOWER_END, _UPPER_END = 0, 1


class Lost(NamedTuple):
    """The probabilities of failure and overflow, in the symbols of the module docstring.

    Attributes:
        failure: d, the probability that a guarantee fails.
        silent: s, the probability of an overflow that is not announced.
        exact: whether ``failure`` is free of rounding.
        largest_loss: the largest privacy loss of the run if nothing is lost.
        announced: a, the probability of an overflow that is announced.
    """

    failure: float
    silent: Any
    exact: bool = True
    largest_loss: float = np.inf
    announced: Any = 0.0

    @property
    def overflow(self) -> Any:
        """Return tau, the probability of an overflow of either kind."""
        return np.minimum(self.silent + self.announced, 1.0)

    @property
    def is_nothing(self) -> bool:
        """Return whether nothing can fail or overflow."""
        return not (self.failure or np.any(self.overflow))

    def from_below(self, epsilon: Any) -> Any:
        """Return a + s (1 + e^epsilon), rounded up: the most that may be missing from delta(epsilon)."""
        # Beyond 700 the largest number stands for e^epsilon: unlike inf it leaves 0 where nothing is silent.
        largest = np.finfo(np.float64).max
        is_moderate = np.asarray(epsilon) < _LARGEST_EXPONENT
        ratio = np.where(is_moderate, np.exp(np.minimum(epsilon, _LARGEST_EXPONENT)), largest)
        with np.errstate(over="ignore"):
            return (self.announced + self.silent * (1.0 + ratio)) * (1.0 + 1e-12)


def delta_after_overflow(delta: Array, overflow: Array) -> Array:
    """Return the delta that is left for a run without overflow, once the overflow of its padded batches is paid for.

    An upper bound on the ideal run's epsilon at this delta is one on the real run's epsilon at ``delta``.

    Formula: (delta - overflow) / (1 - overflow), rounded down.

    Args:
        delta: probability strictly between 0 and 1.
        overflow: probability in [0, 1), below delta, that some batch of the run does not fit.

    Returns:
        delta in (0, 1), of the broadcast shape; a lower bound, by some 1e-15 of delta and of overflow.

    Raises:
        ValueError: an argument outside its range, or an overflow that is not below delta.

    >>> print(f"{delta_after_overflow(1e-5, 1e-6):.6e}")
    9.000009e-06
    """
    if is_traced((delta, overflow)):
        raise ValueError("overflow is paid for outside compiled code: give delta and overflow as numbers")
    check("delta", delta, OPEN_UNIT)
    check("overflow", overflow, HALF_OPEN_UNIT)
    check_broadcast(delta=delta, overflow=overflow)
    remaining = _without(np.asarray(delta, np.float64), np.asarray(overflow, np.float64), _DOWN)
    if not np.all(remaining > 0):
        raise ValueError(f"delta must exceed the overflow probability {overflow}, got delta = {delta}")
    return remaining[()]


def _rounded(lost: Any, direction: float) -> Any:
    """Return a lost mass, moved up (`_UP`) or down (`_DOWN`) by what it may be rounded."""
    return lost * (1.0 + direction * _LOST_ERROR)


def _without(share: np.ndarray, lost: Any, direction: float) -> np.ndarray:
    """Return (share - lost) / (1 - lost), rounded up or down; 0 where everything is lost."""
    lost = _rounded(lost, -direction)
    kept_mass = 1.0 - np.minimum(lost, 1.0)
    divisor = np.where(kept_mass > 0, kept_mass, 1.0)
    remaining = (share - lost) / divisor * (1.0 + direction * _ULPS)
    return np.where(kept_mass > 0, remaining, 0.0)


def _without_any(share: np.ndarray, lost: Lost) -> np.ndarray:
    """Return what is left of a probability after overflow and failure, rounded down."""
    without_overflow = _without(share, lost.overflow, _DOWN)
    return _without(without_overflow, lost.failure, _DOWN)


def _at_inner_points(
    ideal: Ideal,
    end: int,
    points: np.ndarray,
    otherwise: float,
) -> np.ndarray:
    """Return one end of the ideal bracket at the points in (0, 1), and ``otherwise`` at all others."""
    is_inside = (points > 0) & (points < 1)
    bracket = ideal(np.where(is_inside, points, 0.5))
    return np.where(is_inside, bracket[end], otherwise)


def epsilon(ideal: Ideal, delta: np.ndarray, lost: Lost) -> Bounds:
    """Bracket epsilon at delta.

    Args:
        ideal: the bracket of the run that loses nothing, as a function of delta.
        delta: strictly between 0 and 1, float64 [...].
        lost: the probabilities of failure and overflow.
    """
    # From above: the ideal epsilon at what is left of delta.
    upper = _at_inner_points(ideal, _UPPER_END, _without_any(delta, lost), np.inf)

    # From below: the ideal epsilon at a larger delta, which pays for the overflow.
    larger_delta = delta
    if np.any(lost.overflow):
        larger_delta = delta + lost.from_below(upper)
    remaining = _without(larger_delta, lost.failure, _UP)
    lower = _at_inner_points(ideal, _LOWER_END, np.maximum(remaining, _SMALLEST_POSITIVE), 0.0)

    # Where delta covers all failures, epsilon is at most the largest loss.
    if not np.any(lost.overflow):
        failure = lost.failure if lost.exact else _rounded(lost.failure, _UP)
        is_covered = delta >= failure
        upper = np.where(is_covered, np.minimum(upper, lost.largest_loss), upper)
        lower = np.minimum(lower, upper)

    # Where the failures surely exceed delta, no epsilon holds.
    exceeds_delta = larger_delta < lost.failure if lost.exact else remaining < 0
    return Bounds(np.where(exceeds_delta, np.inf, lower)[()], upper[()])


def upper_epsilon(
    ideal: Callable[[np.ndarray], np.ndarray],
    delta: np.ndarray,
    lost: Lost,
) -> np.ndarray:
    """Return an upper bound on epsilon at delta, from one on that of the run that loses nothing."""
    remaining = _without_any(delta, lost)
    bound = ideal(np.where(remaining > 0, remaining, 0.5))
    return np.where(remaining > 0, bound, np.inf)[()]


def delta(ideal: Ideal, epsilon: np.ndarray, lost: Lost) -> Bounds:
    """Bracket delta at epsilon.

    Args:
        ideal: the bracket of the run that loses nothing, as a function of epsilon.
        epsilon: finite and >= 0, float64 [...].
        lost: the probabilities of failure and overflow.
    """
    ideal_lower, ideal_upper = ideal(epsilon)

    # Failures: d + (1 - d) delta_0.
    least_failure = _rounded(lost.failure, _DOWN)
    largest_failure = min(_rounded(lost.failure, _UP), 1.0)
    lower = least_failure + (1.0 - least_failure) * ideal_lower
    upper = largest_failure + (1.0 - largest_failure) * ideal_upper

    # Overflow, which is paid for on both sides.
    lower = lower - lost.from_below(epsilon)
    overflow = min(_rounded(lost.overflow, _UP), 1.0)
    upper = overflow + (1.0 - overflow) * upper

    lower = np.maximum(lower * (1.0 - _ULPS), 0.0)
    upper = np.minimum(upper * (1.0 + _ULPS), 1.0)
    return Bounds(lower[()], upper[()])


def _failing_tradeoff(
    ideal: Ideal,
    alpha: np.ndarray,
    failure: float,
    end: int,
    direction: float,
) -> np.ndarray:
    """Return one end of the curve (1 - d) f_0(alpha / (1 - d)) of a run whose guarantees fail, rounded up or down."""
    kept_mass = max(1.0 - _rounded(failure, -direction), _SMALLEST_POSITIVE)
    ideal_alpha = alpha / kept_mass * (1.0 - direction * _ULPS)
    bracket = ideal(np.clip(ideal_alpha, 0.0, 1.0))
    value = kept_mass * bracket[end] * (1.0 + direction * _ULPS)
    return np.where(ideal_alpha >= 1.0, 0.0, value)


def tradeoff(ideal: Ideal, alpha: np.ndarray, lost: Lost) -> Bounds:
    """Bracket the trade-off curve at alpha.

    Args:
        ideal: the bracket of the run that loses nothing, as a function of alpha.
        alpha: type I error in [0, 1], float64 [...].
        lost: the probabilities of failure and overflow.
    """
    # From below: (1 - tau) f(alpha / (1 - tau)).
    overflow = _rounded(lost.overflow, _UP)
    kept_mass = max(1.0 - overflow, _SMALLEST_POSITIVE)
    larger_alpha = alpha / kept_mass * (1.0 + _ULPS)
    lower = _failing_tradeoff(ideal, larger_alpha, lost.failure, _LOWER_END, _DOWN)
    lower = kept_mass * lower * (1.0 - _ULPS)

    # From above: f(alpha - s) + s + a, and never more than guessing, 1 - alpha.
    smaller_alpha = alpha
    silent = _rounded(lost.silent, _UP)
    if silent:
        smaller_alpha = (alpha - silent) * (1.0 - _ULPS) - _SMALLEST_POSITIVE
        smaller_alpha = np.maximum(smaller_alpha, 0.0)
    upper = _failing_tradeoff(ideal, smaller_alpha, lost.failure, _UPPER_END, _UP) + overflow
    upper = np.minimum(upper, complement(alpha).upper)
    return Bounds(np.minimum(lower, upper)[()], upper[()])


def mu(ideal: Ideal, failure: np.ndarray, lost: Lost) -> Bounds:
    """Bracket mu at a failure probability.

    Args:
        ideal: the bracket of the run that loses nothing, as a function of the failure probability.
        failure: strictly between 0 and 1, float64 [...].
        lost: the probabilities of failure and overflow.
    """
    upper = _at_inner_points(ideal, _UPPER_END, _without_any(failure, lost), np.inf)
    if lost.silent:
        return Bounds(np.zeros_like(upper)[()], upper[()])

    # From below: the ideal mu at q + a / (1 - delta_m(0)), where 1 - delta_m(0) = 2 Phi(-m/2) at the upper end m.
    larger_failure = failure
    if lost.announced:
        success = np.maximum(2.0 * scipy.special.ndtr(-0.5 * upper), _SMALLEST_POSITIVE)
        larger_failure = failure + lost.announced / success * (1.0 + 1e-9)
    remaining = _without(larger_failure, lost.failure, _UP)
    lower = np.minimum(_at_inner_points(ideal, _LOWER_END, remaining, 0.0), upper)

    # Where the failures surely exceed q, no mu holds.
    if not lost.announced:
        lower = np.where(remaining < 0, np.inf, lower)
    return Bounds(lower[()], upper[()])
