"""What a small probability of arbitrary failure adds to the brackets of a run.

**Events that fail**, with probability d in all (`_ledgers`): the curve is exactly f (x) f_{0, d}, that is

    delta(e) = d + (1 - d) delta_0(e),   f(alpha) = (1 - d) f_0(alpha / (1 - d)), 0 above 1 - d.

**Overflow.** A run whose padded batches may overflow with probability tau (`Event.overflow`) is the ideal run except on
an event of probability at most tau that depends on the other examples alone. Condition on it: with probability 1 - tau
the run is ideal, otherwise anything may happen, and by joint convexity

    delta(e) <= tau + (1 - tau) delta_ideal(e),   f(alpha) >= (1 - tau) f_ideal(alpha / (1 - tau)).

Hence epsilon is at most the ideal one at (delta - tau) / (1 - tau), infinite where delta <= tau, and a mu statement
with failure probability q is the ideal one's with (q - tau) / (1 - tau).

**From below** it matters what happens then. Let S be the best test of the ideal run and P, Q the ideal distributions.

* *Silent* overflow, probability s: anything may be released in place of the ideal output. S has at least P(S) - s and
  at most Q(S) + s, so delta(e) >= delta_ideal(e) - s (1 + e^e) and f(alpha) <= f_ideal(alpha - s) + s.
* *Announced* overflow, probability a: the run stops and says so. The test "S, and nothing was announced" has at least
  P(S) - a and at most Q(S), so delta(e) >= delta_ideal(e) - a and f(alpha) <= f_ideal(alpha) + a.

Both together: delta(e) >= delta_ideal(e) - a - s (1 + e^e) and f(alpha) <= f_ideal(alpha - s) + s + a. Hence epsilon is
at least the ideal one at delta + a + s (1 + e^{upper}): e^{upper} is why only announced overflow leaves a bracket tight
where epsilon is large. For mu let only announced overflow occur, and mu be below both the certified upper end m and the
ideal lower end at failure probability q + a / (1 - delta_m(0)). For some e, with d = delta_mu(e) <= delta_m(0),

    delta(e) + a >= delta_ideal(e) > q + (1 - q) d + (1 - d) a / (1 - delta_m(0)) >= q + (1 - q) d + a:

so the statement (mu, q) fails. After silent overflow nothing is claimed (lower = 0).

Quotients are rounded to the safe side by 1e-15 of themselves. d and tau are rounded, too (log1p, a product, a sum and
expm1, each to an ulp or two), so every end is computed with what is 2e-15 of them on its own safe side: in particular
"d exceeds delta" is said only where it surely does. A single guarantee's delta is exact. Where all losses are bounded,
epsilon is at most their sum as soon as delta reaches d. Every function here is for NumPy arrays.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy

from gdpjax._core.arguments import check_callable, check_flag
from gdpjax._core.checks import HALF_OPEN_UNIT, OPEN_UNIT, check, check_broadcast, is_traced
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import complement

Ideal = Callable[[np.ndarray], Bounds]
_ULPS = 1e-15
_LOST_ERROR = 2e-15


class Lost(NamedTuple):
    """What is lost, in the words of the module docstring.

    Attributes:
      failure: d, the probability that a guarantee fails.
      silent: s, the probability of an overflow that is not announced.
      exact: whether ``failure`` is free of rounding.
      largest_loss: of the run if nothing is lost.
      announced: a, the probability of an overflow that is.
    """

    failure: float
    silent: Any
    exact: bool = True
    largest_loss: float = np.inf
    announced: Any = 0.0

    @property
    def overflow(self) -> Any:
        """tau, the probability of an overflow of either kind."""
        return np.minimum(self.silent + self.announced, 1.0)

    @property
    def is_nothing(self) -> bool:
        return not (self.failure or np.any(self.overflow))

    def from_below(self, epsilon: Any) -> Any:
        """a + s (1 + e^epsilon), rounded up: what may be missing from delta(epsilon)."""
        # Beyond 700 the largest number stands for e^epsilon: unlike inf it leaves 0 where nothing is silent.
        largest = np.finfo(np.float64).max
        ratio = np.where(np.asarray(epsilon) < 700.0, np.exp(np.minimum(epsilon, 700.0)), largest)
        with np.errstate(over="ignore"):
            return (self.announced + self.silent * (1.0 + ratio)) * (1.0 + 1e-12)


def delta_after_overflow(delta: Array, overflow: Array) -> Array:
    """The delta that is left for a run without overflow, once the overflow of its padded batches is paid for.

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
    _check_overflow(delta, overflow)
    left = _without(np.asarray(delta, np.float64), np.asarray(overflow, np.float64), -1.0)
    if not np.all(left > 0):
        raise ValueError(f"delta must exceed the overflow probability {overflow}, got delta = {delta}")
    return left[()]


def epsilon_with_overflow(ideal: Ideal, delta: Array, overflow: Array, *, announced: bool = False) -> Bounds:
    """The bracket on the epsilon of a run whose padded batches may overflow, from that of the run without overflow.

    Formula: upper is that of the ideal run at `delta_after_overflow`, inf where nothing is left; lower is the ideal
    one at delta + overflow (1 + e^upper), or at delta + overflow if announced. A `Ledger` with overflow in its events
    needs no such call.

    Args:
        ideal: a function of delta that gives the bracket of the run without overflow, as `epsilon_bounds` does.
        delta: probability strictly between 0 and 1.
        overflow: probability in [0, 1) that some batch of the run does not fit. Broadcasts with delta.
        announced: whether the run stops at such a batch and says so, as in `gdpjax.Event`.

    Returns:
        ``Bounds(lower, upper)``; certified if ``ideal`` is.

    Raises:
        ValueError: an argument outside its range.

    >>> from gdpjax.accounting import epsilon_bounds
    >>> bounds = epsilon_with_overflow(lambda delta: epsilon_bounds(1.0, 0.01, 1000, delta), 1e-5, 1e-8)
    >>> bool(bounds.upper > epsilon_bounds(1.0, 0.01, 1000, 1e-5).lower > bounds.lower)
    True
    """
    check_callable("ideal", ideal, "a function of delta that gives a bracket")
    _check_overflow(delta, overflow)
    columns = np.broadcast_arrays(np.asarray(delta, np.float64), np.asarray(overflow, np.float64))
    silent, loud = (0.0, columns[1]) if check_flag("announced", announced) else (columns[1], 0.0)
    return epsilon(ideal, columns[0], Lost(0.0, silent, announced=loud))


def _check_overflow(delta: Array, overflow: Array) -> None:
    if is_traced((delta, overflow)):
        raise ValueError("overflow is paid for outside compiled code: give delta and overflow as numbers")
    check("delta", delta, OPEN_UNIT)
    check("overflow", overflow, HALF_OPEN_UNIT)
    check_broadcast(delta=delta, overflow=overflow)


def _without(share: np.ndarray, lost: Any, side: float) -> np.ndarray:
    """(share - lost) / (1 - lost), moved to the given side; 0 where lost takes all."""
    lost = _moved(lost, -side)
    keep = 1.0 - np.minimum(lost, 1.0)
    left = (share - lost) / np.where(keep > 0, keep, 1.0) * (1.0 + side * _ULPS)
    return np.where(keep > 0, left, 0.0)


def _moved(lost: Any, side: float) -> Any:
    """A lost mass, moved to the given side by its rounding."""
    return lost * (1.0 + side * _LOST_ERROR)


def _where(ideal: Ideal, end: int, at: np.ndarray, otherwise: float) -> np.ndarray:
    """One end of the ideal bracket where ``at`` is in (0, 1)."""
    inside = (at > 0) & (at < 1)
    return np.where(inside, ideal(np.where(inside, at, 0.5))[end], otherwise)


def epsilon(ideal: Ideal, delta: np.ndarray, lost: Lost) -> Bounds:
    """The bracket on epsilon at delta."""
    room = _without(_without(delta, lost.overflow, -1.0), lost.failure, -1.0)
    upper = _where(ideal, 1, room, np.inf)
    worse = delta
    if np.any(lost.overflow):
        worse = delta + lost.from_below(upper)
    room = _without(worse, lost.failure, 1.0)
    lower = _where(ideal, 0, np.maximum(room, 1e-300), 0.0)
    if not np.any(lost.overflow):
        covered = delta >= (lost.failure if lost.exact else _moved(lost.failure, 1.0))
        upper = np.where(covered, np.minimum(upper, lost.largest_loss), upper)
        lower = np.minimum(lower, upper)
    certain = worse < lost.failure if lost.exact else room < 0
    return Bounds(np.where(certain, np.inf, lower)[()], upper[()])


def epsilon_estimate(ideal: Callable[[np.ndarray], np.ndarray], delta: np.ndarray, lost: Lost) -> np.ndarray:
    """An estimate of the upper end of `epsilon`."""
    room = _without(_without(delta, lost.overflow, -1.0), lost.failure, -1.0)
    return np.where(room > 0, ideal(np.where(room > 0, room, 0.5)), np.inf)[()]


def delta(ideal: Ideal, epsilon: np.ndarray, lost: Lost) -> Bounds:
    """The bracket on delta at epsilon."""
    failures = _moved(lost.failure, -1.0), min(_moved(lost.failure, 1.0), 1.0)
    lower, upper = (failure + (1.0 - failure) * end for failure, end in zip(failures, ideal(epsilon), strict=True))
    lower = lower - lost.from_below(epsilon)
    overflow = min(_moved(lost.overflow, 1.0), 1.0)
    upper = overflow + (1.0 - overflow) * upper
    return Bounds(np.maximum(lower * (1.0 - _ULPS), 0.0)[()], np.minimum(upper * (1.0 + _ULPS), 1.0)[()])


def tradeoff(ideal: Ideal, alpha: np.ndarray, lost: Lost) -> Bounds:
    """The bracket on the trade-off curve at alpha."""

    def failing(alpha: np.ndarray, end: int, side: float) -> np.ndarray:
        keep = max(1.0 - _moved(lost.failure, -side), 1e-300)
        at = alpha / keep * (1.0 - side * _ULPS)
        value = keep * ideal(np.clip(at, 0.0, 1.0))[end] * (1.0 + side * _ULPS)
        return np.where(at >= 1.0, 0.0, value)

    overflow = _moved(lost.overflow, 1.0)
    keep = max(1.0 - overflow, 1e-300)
    lower = keep * failing(alpha / keep * (1.0 + _ULPS), 0, -1.0) * (1.0 - _ULPS)
    silent = _moved(lost.silent, 1.0)
    smaller = np.maximum((alpha - silent) * (1.0 - _ULPS) - 1e-300, 0.0) if silent else alpha
    upper = np.minimum(failing(smaller, 1, 1.0) + overflow, complement(alpha).upper)
    return Bounds(np.minimum(lower, upper)[()], upper[()])


def mu(ideal: Ideal, failure: np.ndarray, lost: Lost) -> Bounds:
    """The bracket on mu at a failure probability."""
    room = _without(_without(failure, lost.overflow, -1.0), lost.failure, -1.0)
    upper = _where(ideal, 1, room, np.inf)
    if lost.silent:
        return Bounds(np.zeros_like(upper)[()], upper[()])
    more = failure
    if lost.announced:
        more = failure + lost.announced / np.maximum(2.0 * scipy.special.ndtr(-0.5 * upper), 1e-300) * (1.0 + 1e-9)
    room = _without(more, lost.failure, 1.0)
    lower = _where(ideal, 0, room, 0.0)
    certain = (room < 0) if not lost.announced else False
    return Bounds(np.where(certain, np.inf, np.minimum(lower, upper))[()], upper[()])
