r"""A narrower bracket on mu than `CertifiedCurve.mu` gives, from many brackets on delta.

    mu = narrowed_mu(deltas, curve.mu(failure), failure, curve.epsilon(failure).upper)

The regret of reporting mu changes by about a seventh of what mu changes by, so a regret of a thousandth needs mu to
four digits. The statement f >= G_mu (x) f_{0, d} says delta(e) <= R_mu(e) := d + (1 - d) delta_mu(e) for all e >= 0.

*Lower end.* Every epsilon with its lower bound on delta forces mu to be at least the one whose curve passes there.

*Upper end.* Beyond the epsilon with delta <= d every mu is enough. Below it, each interval between two points has a
smallest mu that passes, by `gdpjax._core.dominating`; the largest of these is the upper end. Intervals that ask for
more than the lower end are divided again.
"""

from collections.abc import Callable

import numpy as np

from gdpjax._core.dominating import dominates
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Bounds
from gdpjax.tradeoff._regret import NUM_POINTS, Deltas, Points, gaussian_delta, merged

_WIDTHS = (1e-3, 3e-4, 1e-4)
_RELATIVE_WIDTH = 2e-4
_NUM_HALVINGS = 40


def narrowed_mu(deltas: Deltas, known: Bounds, failure: float, end: float) -> Bounds:
    """Return the intersection of ``known`` with a bracket on mu that follows from brackets on delta.

    Args:
        deltas: maps `NUM_POINTS` increasing epsilon and a relative width to certified bounds on delta.
        known: a certified bracket on mu, of two numbers.
        failure: the failure probability d, in (0, 1).
        end: an epsilon at which delta is at most d.

    Returns:
        ``Bounds`` inside ``known``; certified.
    """
    if not (0 < known.upper < np.inf and 0 < end < np.inf):
        return known
    low = 0.0
    high = float(end)
    points: Points = (np.empty(0), np.empty(0), np.empty(0))
    best = known
    for width in _WIDTHS:
        if best.upper <= best.lower * (1.0 + _RELATIVE_WIDTH):
            break

        # Ask for delta at more points, each time more precisely.
        new = np.linspace(low, high, NUM_POINTS)
        answer = deltas(new, width)
        epsilon, lower, upper = merged(points, (new, answer.lower, answer.upper))
        upper = np.where(epsilon >= end, np.minimum(upper, failure), upper)
        points = (epsilon, lower, upper)

        # Narrow the bracket.
        required = _required_mus(epsilon, lower, failure, best)
        best = Bounds(np.maximum(best.lower, np.max(required)), best.upper)
        sufficient = _sufficient_mus(epsilon, upper, failure, best)
        best = Bounds(best.lower, np.minimum(best.upper, np.max(sufficient)))

        # Divide the intervals that ask for more than the lower end.
        wide = np.flatnonzero(sufficient > best.lower * (1.0 + 0.5 * _RELATIVE_WIDTH))
        if wide.size:
            low = epsilon[wide[0]]
            high = epsilon[wide[-1] + 1]
    return Bounds(np.float64(best.lower), np.float64(max(best.lower, best.upper)))


def _bisected(
    condition: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], known: Bounds
) -> tuple[np.ndarray, np.ndarray]:
    """Return points where a condition holds and points where it does not; it begins to hold somewhere in ``known``."""
    holds = np.full(shape, known.upper)
    fails = np.full(shape, known.lower)
    return bisect_on_host(condition, holds, fails, num_iterations=_NUM_HALVINGS)


def _required_mus(epsilon: np.ndarray, lower: np.ndarray, failure: float, known: Bounds) -> np.ndarray:
    """Return a mu below which R_mu is certainly below the lower bound on delta, for every epsilon."""

    def reaches(mu: np.ndarray) -> np.ndarray:
        value, error = gaussian_delta(epsilon, mu)
        largest = failure + (1.0 - failure) * (value + error)
        return largest * (1.0 + 1e-15) >= lower

    _, too_small = _bisected(reaches, epsilon.shape, known)
    return too_small


def _sufficient_mus(epsilon: np.ndarray, upper: np.ndarray, failure: float, known: Bounds) -> np.ndarray:
    """Return a mu that is enough on each interval between two epsilon; ``known.upper`` is enough anyway."""

    def suffices(mu: np.ndarray) -> np.ndarray:
        return dominates(mu, epsilon, upper, failure)

    sufficient, _ = _bisected(suffices, epsilon[1:].shape, known)
    return sufficient
