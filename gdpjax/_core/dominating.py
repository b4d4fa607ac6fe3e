"""What brackets on delta say about mu: mu-GDP with a failure probability d covers a curve.

    f >= G_mu (x) f_{0, d}   says   delta(e) <= R_mu(e) := d + (1 - d) delta_mu(e)   for all e >= 0.

*Lower end.* Each e with its lower bound on delta forces mu to be at least the one whose R_mu passes there.

*Upper end.* In y = e^e both sides are convex, as suprema of linear functions of y. Between two points the left side is
therefore below the chord through its upper bounds, and delta_mu above its tangent at a point y_m in between,

    delta_mu(y_m) - Phi(-e_m / mu - mu / 2) (y - y_m).

Two linear functions need comparing at the two ends only (`dominates`). So every interval has a smallest mu that passes,
found by bisection. Where the last point has a delta of at most d nothing is asked beyond it, and the largest of these
mu is enough, as R_mu increases with mu.

Rounding of the closed forms, 1e-12 of themselves, is covered by comparing with 1e-9 to spare.
"""

import numpy as np
import scipy

from gdpjax._core.gdp import delta_kernel, mu_kernel
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Bounds

_SLACK = 1e-9
"""Of the tangent and of a mu that is forced, for rounding."""
_KERNEL_ERROR = 1e-11
"""More than the relative error of `delta_kernel`, up to a mu of 1e6."""
_UNIT_ROUNDOFF = 2.0**-53
_LARGEST_EXPONENT = 700.0
_TINY = 2.3e-308  # what underflows to zero is positive
_LEAST_MU = 1e-6
"""Where nothing else is known the search for a mu that is enough begins here."""
_NUM_DOUBLINGS = 40
_NUM_HALVINGS = 40
_WIDEST = 1e12
"""The largest ratio of the two ends of a search."""


def gaussian_delta(epsilon: float | np.ndarray, mu: float | np.ndarray) -> Bounds:
    """Bracket delta at epsilon of mu-GDP, 0 <= mu <= inf, where both are right to eight roundings of their own size."""
    epsilon = np.asarray(epsilon, np.float64)
    mu = np.asarray(mu, np.float64)
    with np.errstate(all="ignore"):
        value = delta_kernel(np, epsilon, mu)

        # x = epsilon / mu - mu / 2 is off by as much of the sum of its terms, and log delta feels |x| + 1 times that.
        safe_mu = np.clip(mu, 1e-300, 1e150)
        quotient = epsilon / safe_mu
        size_of_x = np.abs(quotient - 0.5 * safe_mu)
        moved = _KERNEL_ERROR + 16.0 * _UNIT_ROUNDOFF * (size_of_x + 1.0) * (quotient + safe_mu)

    # Where mu is 0 or inf, delta is 0 or 1 exactly.
    is_smooth = (mu > 0) & (mu < np.inf)
    factor = np.exp(np.where(is_smooth, np.minimum(moved, _LARGEST_EXPONENT), 0.0))
    underflow = np.where(is_smooth, _TINY, 0.0)
    return Bounds(np.maximum(value / factor - underflow, 0.0), np.minimum(value * factor + underflow, 1.0))


def mu_from_deltas(epsilon: np.ndarray, delta: Bounds, failure: float, known: Bounds) -> tuple[Bounds, np.ndarray]:
    """Return what brackets on delta leave of a bracket on mu, and a mu that is enough on each interval.

    Args:
        epsilon: increasing points >= 0 [n]; at the last one delta is at most ``failure``.
        delta: certified bounds on delta at each [n].
        failure: d, in [0, 1).
        known: a certified bracket on mu; (0, inf) is one.

    Returns:
        ``Bounds`` of two numbers inside the known ones, certified; and [n - 1].
    """
    # A point asks for this much of delta_mu: (delta - d) / (1 - d).
    least = (np.asarray(delta.lower) - failure) / (1.0 - failure)
    most = (np.asarray(delta.upper) - failure) / (1.0 - failure)
    least = least - 1e-15 * np.abs(least)
    most = most + 1e-15 * np.abs(most)
    most[-1] = min(most[-1], 0.0)

    with np.errstate(all="ignore"):
        forced = mu_kernel(np, epsilon, np.clip(least, 1e-300, 1.0 - 1e-16))
    forced = np.nan_to_num(np.where(least > 1e-300, forced, 0.0), nan=0.0) * (1.0 - _SLACK)
    lower = min(max(known.lower, np.max(forced)), known.upper)

    # An end that is enough, which any mu is where nothing is asked; a bound that is NaN may ask for anything.
    upper = lower if (most <= 0).all() else known.upper
    for num_doublings in range(_NUM_DOUBLINGS):
        if upper < np.inf:
            break
        mu = max(lower, _LEAST_MU) * 2.0**num_doublings
        if dominates(mu, epsilon, most).all():
            upper = mu
    if upper == np.inf or upper == 0:
        return Bounds(np.float64(lower), np.float64(upper)), np.full(epsilon.size - 1, upper)

    def suffices(log_mu: np.ndarray) -> np.ndarray:
        return dominates(np.exp(log_mu), epsilon, most)

    holds = np.full(epsilon.size - 1, np.log(upper))
    fails = np.full(epsilon.size - 1, np.log(max(lower, upper / _WIDEST)))
    log_mu, _ = bisect_on_host(suffices, holds, fails, num_iterations=_NUM_HALVINGS)
    sufficient = np.where(log_mu < holds, np.exp(log_mu), upper)
    upper = max(np.max(sufficient), lower)
    return Bounds(np.float64(lower), np.float64(upper)), sufficient


def dominates(mu: float | np.ndarray, epsilon: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """Return where the tangents of delta_mu are above the chords of what is needed of it.

    Args:
        mu: > 0, one number or one for each interval.
        epsilon: increasing points >= 0 [n].
        needed: upper bounds on (delta - d) / (1 - d) at each [n].

    Returns:
        Whether delta is certainly at most R_mu on each interval [n - 1].
    """
    left = epsilon[:-1]
    right = epsilon[1:]
    middle = 0.5 * (left + right)

    # delta_mu at the middle, and minus its slope there with regard to y, times y_m.
    level = delta_kernel(np, middle, np.asarray(mu))
    log_slope = middle + scipy.special.log_ndtr(-middle / mu - 0.5 * mu)
    slope = np.exp(np.minimum(log_slope, 0.0))

    def tangent(epsilon: np.ndarray) -> np.ndarray:
        """Return the tangent of delta_mu at y = e^epsilon, lowered by more than its rounding."""
        # Beyond all floats the tangent is too low, or NaN, and shows nothing.
        with np.errstate(over="ignore", invalid="ignore"):
            fall = slope * np.expm1(epsilon - middle)
            return level - fall - _SLACK * (level + np.abs(fall))

    return (tangent(left) >= needed[:-1]) & (tangent(right) >= needed[1:])
