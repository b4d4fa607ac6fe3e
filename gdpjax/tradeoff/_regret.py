r"""How far a Gaussian curve is from a trade-off curve that is only known in brackets: its regret, certified.

    bracket = certified_regret(deltas, mu=1.57)     # deltas(epsilon, width) gives Bounds on delta_f(epsilon)

A mechanism with curve f is reported as mu-GDP. The *regret* of that report (Gomez, Kulynych et al., arXiv:2503.10945)
is how far f has to be moved towards the origin, along the diagonal, to lie nowhere above G_mu:

    regret = inf { k >= 0 : f(a + k) - k <= G_mu(a) for all a }.

**As a maximum over epsilon.** The convex function a -> f(a + k) - k has the conjugate k (1 + y) + D_f(y) - 1 at slope
-y, where D_f(y) = sup_a 1 - f(a) - y a is delta at epsilon = log y. One convex function is below another exactly when
its conjugate is above, so the condition on k says D_f(y) + k (1 + y) >= D_G(y) for every y > 0, and

    regret = max(0, sup_y (D_G(y) - D_f(y)) / (1 + y)).

For symmetric curves D(1/y) = 1 - (1 - D(y)) / y, under which the quotient does not change. So y >= 1, that is
epsilon >= 0, is enough:

    regret = max(0, sup_{epsilon >= 0} (delta_mu(epsilon) - delta_f(epsilon)) / (1 + e^epsilon)).

**Lower end.** Any epsilon, with an upper bound on delta_f there.

**Upper end.** Both D are convex in y. On an interval of a grid D_G lies below its chord, and D_f above the straight
lines that its values elsewhere force: for j < i the slope of D_f right of y_i is at least (D_i - D_j) / (y_i - y_j),
and for j > i its slope left of y_i is at most (D_j - D_i) / (y_j - y_i). Lower bounds on D_i and upper bounds on D_j
only lower these lines. The slope is -a for a point a of f, and symmetric curves have a <= 1/2 for y >= 1. So the
numerator is at most the smaller one of two linear functions, one from each end of the interval; divided by 1 + y each
is monotone, and the maximum is at an end or where the two cross. Beyond the last y the quotient is at most
D_G(y) / (1 + y), which falls.

Intervals that could still exceed the lower end are divided again, with narrower brackets on delta_f each time. The
error is of second order in the width of the intervals.
"""

from collections.abc import Callable

import numpy as np
from scipy.special import log_ndtr, ndtr

from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Bounds

Deltas = Callable[[np.ndarray, float], Bounds]

NUM_POINTS = 48
"""How many epsilon are asked for at a time, always, so that one compiled program answers."""
_WIDTHS = (4e-3, 2e-3, 1e-3, 3e-4, 1e-4, 1e-4)
_RELATIVE_WIDTH = 1e-2
_ABSOLUTE_WIDTH = 1e-6
_NEGLIGIBLE = 1e-5
_LARGEST_EPSILON = 600.0


def gaussian_delta(epsilon: np.ndarray, mu: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """delta of mu-GDP at ``epsilon``, for 0 < mu < inf, and a bound on its rounding error."""
    x = epsilon / mu
    first = ndtr(0.5 * mu - x)
    log_tail = log_ndtr(-0.5 * mu - x)
    second = np.exp(np.minimum(epsilon + log_tail, 0.0))
    # Both terms have the derivative phi(mu / 2 - x) in their arguments, which are rounded relative to mu and x. The
    # exponential multiplies the relative rounding of its argument by the size of the summands.
    with np.errstate(over="ignore"):
        density = np.exp(-0.5 * (0.5 * mu - x) ** 2)
    sizes = np.where(second > 0, epsilon - log_tail, 0.0)
    error = 1e-15 * (first + density * np.minimum(mu + x, 1e300) + second * (4.0 + sizes))
    return np.maximum(first - second, 0.0), error


def certified_regret(deltas: Deltas, mu: float) -> Bounds:
    """The bracket on the regret of reporting ``mu`` for a symmetric curve.

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
        # G_inf is zero: f is moved until its fixed point (1 - delta(0)) / 2 is at the origin.
        advantage = deltas(np.linspace(0.0, 1.0, NUM_POINTS), _WIDTHS[-1])
        ends = (0.5 * (1.0 - np.asarray(end)[0]) for end in (advantage.upper, advantage.lower))
        return _outward(*ends)
    low, high = 0.0, _where_negligible(mu)
    last = high
    spacing = np.linspace(0.0, 1.0, NUM_POINTS) ** 2  # closer together near 0, where the maximum usually is
    epsilon = lower = upper = np.empty(0)
    best = Bounds(np.float64(0.0), np.float64(0.5))
    for width in _WIDTHS:
        new = low + (high - low) * spacing
        answer = deltas(new, width)
        epsilon, lower, upper = merged((epsilon, lower, upper), (new, *answer))
        quotient, of_intervals = _quotients(epsilon, lower, upper, mu)
        tail = _quotient_of_gaussian(last, mu)
        found = max(float(np.max(quotient)), 0.0)
        best = Bounds(max(best.lower, found), min(best.upper, max(float(np.max(of_intervals)), tail, 0.0)))
        goal = max(found * (1.0 + 0.5 * _RELATIVE_WIDTH), found + 0.5 * _ABSOLUTE_WIDTH)
        if best.upper <= max(found * (1.0 + _RELATIVE_WIDTH), found + _ABSOLUTE_WIDTH):
            break
        # Divide the intervals that may hold more than was found.
        wide = np.flatnonzero(of_intervals > goal)
        if wide.size:
            low, high = epsilon[wide[0]], epsilon[wide[-1] + 1]
        spacing = np.linspace(0.0, 1.0, NUM_POINTS)
    return _outward(*best)


def _outward(lower: float, upper: float) -> Bounds:
    lower, upper = np.float64(lower) * (1.0 - 1e-15), np.float64(upper) * (1.0 + 1e-15)
    return Bounds(np.clip(lower, 0.0, 0.5), np.clip(upper, 0.0, 0.5))


def _quotient_of_gaussian(epsilon: float, mu: float) -> float:
    """An upper bound on the quotient at every larger epsilon."""
    value, error = gaussian_delta(np.asarray(epsilon), mu)
    return float((value + error) / (1.0 + np.exp(epsilon)) * (1.0 + 1e-15))


def _where_negligible(mu: float) -> float:
    """An epsilon beyond which the quotient is a small share of what it is at 0 for the identity."""
    goal = _NEGLIGIBLE * _quotient_of_gaussian(0.0, mu)
    negligible, _ = bisect_on_host(
        lambda epsilon: _quotient_of_gaussian(epsilon, mu) <= goal, _LARGEST_EPSILON, 0.0, num_iterations=60
    )
    return float(negligible)


Points = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Epsilon, increasing, with the lower and the upper bounds on delta there."""


def merged(old: Points, new: Points) -> Points:
    """All points in order, each once, with the best of its bounds."""
    epsilon, lower, upper = (np.append(*parts) for parts in zip(old, new, strict=True))
    points, index = np.unique(epsilon, return_inverse=True)
    low, high = np.zeros_like(points), np.ones_like(points)
    np.maximum.at(low, index, lower)
    np.minimum.at(high, index, upper)
    # delta falls with epsilon, so each bound holds on one side of its point, too.
    return points, np.maximum.accumulate(low[::-1])[::-1], np.minimum.accumulate(high)


def _quotients(epsilon: np.ndarray, lower: np.ndarray, upper: np.ndarray, mu: float) -> tuple[np.ndarray, np.ndarray]:
    """Lower bounds on the quotient at every point, and upper bounds on it over every interval between two of them."""
    gaussian, error = gaussian_delta(epsilon, mu)
    shifted = np.expm1(epsilon)  # y - 1, whose differences keep their digits near epsilon = 0
    at_points = (gaussian - error - upper) / (2.0 + shifted)

    # Points that were asked for with a large width profit from the lines of the others.
    right, left = _slopes(shifted, lower, upper)
    run = shifted[:, None] - shifted[None, :]
    lines = lower[None, :] + np.where(run > 0, right[None, :], left[None, :]) * run
    lower = np.maximum(lower, np.max(lines, axis=1) * (1.0 - 1e-12) - 1e-15)
    right, left = _slopes(shifted, lower, upper)
    length = np.diff(shifted)

    # The numerator on an interval is below both of these linear functions, given by their values at its two ends.
    above = gaussian + error
    from_left = above[:-1] - lower[:-1], above[1:] - (lower[:-1] + right[:-1] * length)
    from_right = above[:-1] - (lower[1:] - left[1:] * length), above[1:] - lower[1:]
    start = np.minimum(from_left[0], from_right[0]) / (2.0 + shifted[:-1])
    end = np.minimum(from_left[1], from_right[1]) / (2.0 + shifted[1:])
    gaps = from_right[0] - from_left[0], from_left[1] - from_right[1]
    crosses = (gaps[0] > 0) & (gaps[1] > 0)
    share = np.where(crosses, gaps[0] / np.where(crosses, gaps[0] + gaps[1], 1.0), 0.0)
    numerator = from_left[0] + share * (from_left[1] - from_left[0])
    middle = np.where(crosses, numerator / (2.0 + shifted[:-1] + share * length), -np.inf)
    of_intervals = np.maximum(np.maximum(start, end), middle)
    slack = 1e-12 * np.abs(of_intervals) + 1e-15
    return at_points - 1e-15, of_intervals + slack


def _slopes(shifted: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A lower bound on the slope of D_f to the right of every point, and an upper bound on that to its left."""
    run = shifted[:, None] - shifted[None, :]
    rise = lower[:, None] - upper[None, :]
    with np.errstate(divide="ignore", invalid="ignore"):
        slopes = rise / run
        rounding = 1e-12 + 1e-15 * (shifted[:, None] + shifted[None, :]) / np.abs(run)
        steeper, flatter = slopes * (1.0 + rounding), slopes * (1.0 - np.minimum(rounding, 1.0))
    right = np.max(np.where(run > 0, steeper, -0.5), axis=1)
    left = np.min(np.where(run < 0, flatter, 0.0), axis=1)
    return np.clip(right, -0.5, 0.0), np.minimum(left, 0.0)
