"""Check that mu-GDP with a failure probability d covers a curve, given upper bounds on its delta.

    f >= G_mu (x) f_{0, d}   says   delta(e) <= R_mu(e) := d + (1 - d) delta_mu(e)   for all e >= 0.

In y = e^e both sides are convex, as suprema of linear functions of y. Between two points the left side is therefore
below the chord through its upper bounds, and R_mu above its tangent at a point y_m in between,

    R_mu(y_m) - (1 - d) Phi(-e_m / mu - mu / 2) (y - y_m).

Two linear functions need comparing at the two ends only. Rounding of the closed forms, 1e-12 of themselves, is covered
by comparing with 1e-9 to spare.
"""

import numpy as np
import scipy

from gdpjax._core.gdp import delta_kernel

_SLACK = 1e-9
"""Of the tangent, for rounding."""


def dominates(mu: float | np.ndarray, epsilon: np.ndarray, bound: np.ndarray, failure: float) -> np.ndarray:
    """Return where the tangents of R_mu are above the chords of the upper bounds.

    Args:
        mu: > 0, one number or one for each interval.
        epsilon: increasing points >= 0 [n].
        bound: upper bounds on delta at each [n].
        failure: d, in [0, 1).

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
        """Return the tangent of R_mu at y = e^epsilon, lowered by more than its rounding."""
        fall = slope * np.expm1(epsilon - middle)
        slack = _SLACK * (level + np.abs(fall))
        return failure + (1.0 - failure) * (level - fall - slack)

    is_above_at_left = tangent(left) >= bound[:-1]
    is_above_at_right = tangent(right) >= bound[1:]
    return is_above_at_left & is_above_at_right
