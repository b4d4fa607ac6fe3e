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
from gdpjax.tradeoff._regret import NUM_POINTS, Deltas, gaussian_delta, merged

_WIDTHS = (1e-3, 3e-4, 1e-4)
_RELATIVE_WIDTH = 2e-4
_NUM_HALVINGS = 40


def narrowed_mu(deltas: Deltas, known: Bounds, failure: float, end: float) -> Bounds:
    """The intersection of ``known`` with what brackets on delta say about mu.

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
    low, high = 0.0, float(end)
    epsilon = lower = upper = np.empty(0)
    best = known
    for width in _WIDTHS:
        if best.upper <= best.lower * (1.0 + _RELATIVE_WIDTH):
            break
        new = np.linspace(low, high, NUM_POINTS)
        answer = deltas(new, width)
        epsilon, lower, upper = merged((epsilon, lower, upper), (new, *answer))
        upper = np.where(epsilon >= end, np.minimum(upper, failure), upper)
        forced = np.max(_forced(epsilon, lower, failure, best))
        best = Bounds(np.maximum(best.lower, forced), best.upper)
        enough = _enough(epsilon, upper, failure, best)
        best = Bounds(best.lower, np.minimum(best.upper, np.max(enough)))
        wide = np.flatnonzero(enough > best.lower * (1.0 + 0.5 * _RELATIVE_WIDTH))
        if wide.size:
            low, high = epsilon[wide[0]], epsilon[wide[-1] + 1]
    return Bounds(np.float64(best.lower), np.float64(max(best.lower, best.upper)))


def _bisected(
    condition: Callable[[np.ndarray], np.ndarray], shape: tuple[int, ...], known: Bounds
) -> tuple[np.ndarray, np.ndarray]:
    """For a condition that begins to hold somewhere in ``known``: points where it does, and where it does not."""
    ends = np.full(shape, known.upper), np.full(shape, known.lower)
    return bisect_on_host(condition, *ends, num_iterations=_NUM_HALVINGS)


def _forced(epsilon: np.ndarray, lower: np.ndarray, failure: float, known: Bounds) -> np.ndarray:
    """A mu below which R_mu is certainly below the lower bound on delta, for every epsilon."""

    def reaches(mu: np.ndarray) -> np.ndarray:
        value, error = gaussian_delta(epsilon, mu)
        return (failure + (1.0 - failure) * (value + error)) * (1.0 + 1e-15) >= lower

    return _bisected(reaches, epsilon.shape, known)[1]


def _enough(epsilon: np.ndarray, upper: np.ndarray, failure: float, known: Bounds) -> np.ndarray:
    """A mu that is enough on each interval between two epsilon; all of ``known.upper`` is enough anyway."""
    shape = epsilon[1:].shape
    return _bisected(lambda mu: dominates(mu, epsilon, upper, failure), shape, known)[0]
