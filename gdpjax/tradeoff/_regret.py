r"""The regret of reporting one mu for a trade-off curve that is only known in brackets, certified.

    bracket = certified_regret(deltas, mu=1.57)     # deltas(epsilon, width) gives Bounds on delta_f(epsilon)

A mechanism with curve f is reported as mu-GDP. The *regret* of that report (Gomez, Kulynych et al., arXiv:2503.10945)
is how far f has to be moved towards the origin, along the diagonal, to lie nowhere above G_mu. In terms of delta it is

    regret = max(0, sup_{epsilon >= 0} (delta_mu(epsilon) - delta_f(epsilon)) / (1 + e^epsilon)).

Any epsilon gives a lower bound on it. For the upper bound, delta is convex in y = e^epsilon: between two points of a
grid delta_mu lies below its chord, and delta_f above the lines that its values elsewhere force. Intervals that could
exceed the lower bound are divided again. The derivation is docs/theory/regret.md.
"""

from collections.abc import Callable

import numpy as np

from gdpjax._core.dominating import gaussian_delta, mu_from_deltas
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Bounds

Deltas = Callable[[np.ndarray, float], Bounds]
"""Maps epsilon, increasing, and a relative width to certified bounds on delta."""
Points = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Epsilon, increasing, with the lower and the upper bounds on delta there."""

NUM_POINTS = 48
"""Each question has this many epsilon, so that one compiled program answers them all."""
_WIDTHS = (4e-3, 2e-3, 1e-3, 3e-4, 1e-4, 1e-4)
_WIDTHS_OF_MU = (1e-3, 3e-4, 1e-4)
_RELATIVE_WIDTH = 1e-2
_RELATIVE_WIDTH_OF_MU = 2e-4
_ABSOLUTE_WIDTH = 1e-6
_NEGLIGIBLE = 1e-5
_LARGEST_EPSILON = 600.0


def certified_regret(deltas: Deltas, mu: float) -> Bounds:
    """Return the bracket on the regret of reporting ``mu`` for a symmetric curve.

    Args:
        deltas: maps an array of `NUM_POINTS` increasing epsilon >= 0 and a relative width to certified bounds on delta
            there. It should come near that width, but need not.
        mu: the number that is reported, >= 0, inf allowed.

    Returns:
        ``Bounds`` of two numbers in [0, 1/2]; certified.
    """
    if mu == 0:
        return Bounds(np.float64(0.0), np.float64(0.0))
    if mu == np.inf:
        return _regret_of_infinity(deltas)

    high = _where_negligible(mu)
    beyond = _quotient_of_gaussian(high, mu)

    def narrow(points: Points, best: Bounds) -> tuple[Bounds, np.ndarray]:
        at_points, of_intervals = _quotients(points, mu)
        lower = max(float(np.max(at_points)), 0.0)
        upper = max(float(np.max(of_intervals)), beyond, 0.0)
        best = Bounds(max(best.lower, lower), min(best.upper, upper))
        is_done = best.upper <= _slightly_above(lower, 1.0)
        return best, (not is_done) & (of_intervals > _slightly_above(lower, 0.5))

    best = Bounds(np.float64(0.0), np.float64(0.5))
    # Closer together near 0, where the maximum usually is.
    spacing = np.linspace(0.0, 1.0, NUM_POINTS) ** 2
    return _outward(*_narrowed(deltas, high * spacing, best, _WIDTHS, narrow))


def narrowed_mu(deltas: Deltas, known: Bounds, failure: float, end: float) -> Bounds:
    """Return the intersection of a certified bracket on mu with one that follows from brackets on delta.

    The regret of reporting mu changes by about a seventh of what mu changes by, so a regret of a thousandth needs mu to
    four digits.

    Args:
        deltas: as in `certified_regret`.
        known: the bracket on mu, of two numbers.
        failure: the failure probability, in (0, 1).
        end: an epsilon at which delta is at most that.
    """
    if not (0 < known.upper < np.inf and 0 < end < np.inf):
        return known

    def narrow(points: Points, best: Bounds) -> tuple[Bounds, np.ndarray]:
        epsilon, lower, upper = points
        best, sufficient = mu_from_deltas(epsilon, Bounds(lower, upper), failure, best)
        is_done = best.upper <= best.lower * (1.0 + _RELATIVE_WIDTH_OF_MU)
        return best, (not is_done) & (sufficient > best.lower * (1.0 + 0.5 * _RELATIVE_WIDTH_OF_MU))

    return _narrowed(deltas, np.linspace(0.0, end, NUM_POINTS), known, _WIDTHS_OF_MU, narrow)


def _narrowed(
    deltas: Deltas,
    epsilon: np.ndarray,
    best: Bounds,
    widths: tuple[float, ...],
    narrow: Callable[[Points, Bounds], tuple[Bounds, np.ndarray]],
) -> Bounds:
    """Return a bracket, narrowed by delta at ever more points.

    Args:
        deltas: as in `certified_regret`.
        epsilon: the first points.
        best: what is known.
        widths: the relative width to ask for, each time.
        narrow: maps all points and the best bracket to a better one, and to the intervals between points that are to be
            divided, none if the bracket is narrow enough.
    """
    points: Points = (np.empty(0), np.empty(0), np.empty(0))
    for width in widths:
        answer = deltas(epsilon, width)
        points = _merged(points, (epsilon, answer.lower, answer.upper))
        best, is_wide = narrow(points, best)
        wide = np.flatnonzero(is_wide)
        if not wide.size:
            break
        known, _, _ = points
        epsilon = np.linspace(known[wide[0]], known[wide[-1] + 1], NUM_POINTS)
    return best


def _regret_of_infinity(deltas: Deltas) -> Bounds:
    """Return the regret of reporting mu = inf: f is moved until its fixed point (1 - delta(0)) / 2 is at the origin."""
    answer = deltas(np.linspace(0.0, 1.0, NUM_POINTS), _WIDTHS[-1])
    lower = 0.5 * (1.0 - np.asarray(answer.upper)[0])
    upper = 0.5 * (1.0 - np.asarray(answer.lower)[0])
    return _outward(lower, upper)


def _slightly_above(regret: float, share: float) -> float:
    """Return the upper end of a bracket from ``regret`` on, whose width is a share of the width that is aimed at."""
    by_relative_width = regret * (1.0 + share * _RELATIVE_WIDTH)
    by_absolute_width = regret + share * _ABSOLUTE_WIDTH
    return max(by_relative_width, by_absolute_width)


def _outward(lower: float, upper: float) -> Bounds:
    """Return the bracket moved outwards by rounding, in [0, 1/2]."""
    below = np.float64(lower) * (1.0 - 1e-15)
    above = np.float64(upper) * (1.0 + 1e-15)
    return Bounds(np.clip(below, 0.0, 0.5), np.clip(above, 0.0, 0.5))


def _quotient_of_gaussian(epsilon: float, mu: float) -> float:
    """Return an upper bound on the quotient at every larger epsilon."""
    quotient = gaussian_delta(epsilon, mu).upper / (1.0 + np.exp(epsilon))
    return float(quotient * (1.0 + 1e-15))


def _where_negligible(mu: float) -> float:
    """Return an epsilon beyond which the quotient is a small share of its value at 0 for the identity."""
    goal = _NEGLIGIBLE * _quotient_of_gaussian(0.0, mu)

    def is_negligible(epsilon: float) -> bool:
        return _quotient_of_gaussian(epsilon, mu) <= goal

    negligible, _ = bisect_on_host(is_negligible, _LARGEST_EPSILON, 0.0, num_iterations=60)
    return float(negligible)


def _merged(old: Points, new: Points) -> Points:
    """Return all points in order, each once, with the best of its bounds."""
    old_epsilon, old_lower, old_upper = old
    new_epsilon, new_lower, new_upper = new
    epsilon = np.append(old_epsilon, new_epsilon)
    points, index = np.unique(epsilon, return_inverse=True)

    # The largest lower bound of each point, and the smallest upper one.
    lower = np.zeros_like(points)
    upper = np.ones_like(points)
    np.maximum.at(lower, index, np.append(old_lower, new_lower))
    np.minimum.at(upper, index, np.append(old_upper, new_upper))

    # delta falls with epsilon, so each bound holds on one side of its point, too.
    lower = np.maximum.accumulate(lower[::-1])[::-1]
    upper = np.minimum.accumulate(upper)
    return points, lower, upper


def _quotients(points: Points, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Return lower bounds on the quotient at every point, and upper bounds on it over every interval between two."""
    epsilon, lower, upper = points
    gaussian = gaussian_delta(epsilon, mu)
    # y - 1, whose differences keep their digits near epsilon = 0.
    shifted = np.expm1(epsilon)
    at_points = (gaussian.lower - upper) / (2.0 + shifted)

    # Points that were asked for with a large width profit from the lines of the others.
    right, left = _slopes(shifted, lower, upper)
    run = shifted[:, None] - shifted[None, :]
    slopes = np.where(run > 0, right[None, :], left[None, :])
    lines = lower[None, :] + slopes * run
    highest_lines = np.max(lines, axis=1) * (1.0 - 1e-12) - 1e-15
    lower = np.maximum(lower, highest_lines)
    right, left = _slopes(shifted, lower, upper)

    # Two linear functions that are above the numerator on an interval, each by its values at the two ends.
    above = gaussian.upper
    length = np.diff(shifted)
    first_at_start = above[:-1] - lower[:-1]
    first_at_end = above[1:] - (lower[:-1] + right[:-1] * length)
    second_at_start = above[:-1] - (lower[1:] - left[1:] * length)
    second_at_end = above[1:] - lower[1:]

    # The quotient at the two ends.
    at_start = np.minimum(first_at_start, second_at_start) / (2.0 + shifted[:-1])
    at_end = np.minimum(first_at_end, second_at_end) / (2.0 + shifted[1:])

    # The quotient where the two functions cross, if they do.
    gap_at_start = second_at_start - first_at_start
    gap_at_end = first_at_end - second_at_end
    crosses = (gap_at_start > 0) & (gap_at_end > 0)
    gaps = np.where(crosses, gap_at_start + gap_at_end, 1.0)
    share = np.where(crosses, gap_at_start / gaps, 0.0)
    numerator = first_at_start + share * (first_at_end - first_at_start)
    denominator = 2.0 + shifted[:-1] + share * length
    at_crossing = np.where(crosses, numerator / denominator, -np.inf)

    at_ends = np.maximum(at_start, at_end)
    of_intervals = np.maximum(at_ends, at_crossing)
    slack = 1e-12 * np.abs(of_intervals) + 1e-15
    return at_points - 1e-15, of_intervals + slack


def _slopes(shifted: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a lower bound on the slope of D_f to the right of every point, and an upper bound on that to its left."""
    run = shifted[:, None] - shifted[None, :]
    rise = lower[:, None] - upper[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = rise / run
        sizes = shifted[:, None] + shifted[None, :]
        rounding = 1e-12 + 1e-15 * sizes / np.abs(run)
        steeper = slopes * (1.0 + rounding)
        flatter = slopes * (1.0 - np.minimum(rounding, 1.0))
    # A symmetric curve has no slope below -1/2 here.
    right = np.max(np.where(run > 0, steeper, -0.5), axis=1)
    left = np.min(np.where(run < 0, flatter, 0.0), axis=1)
    return np.clip(right, -0.5, 0.0), np.minimum(left, 0.0)
