r"""What curves in closed form say about epsilon, delta and errors, moved to one side by more than their rounding.

    delta_of(Gaussian(1.0), epsilon, side=1.0)      # at least the delta of the curve

`CurveBounds` asks for the answers here where one of its two curves is a `Gaussian`, an `Identity`, a `Laplace` or an
`ApproximateDP` curve (`CLOSED`), with ``side`` 1 for an upper bound and -1 for a lower one.

*Errors and delta.* The formulas of these curves are sums and products of positive numbers, exp, expm1, Phi and its
inverse, and differences of numbers that are exact. Each is right to a few units in the last place, u, of itself:

* Laplace, and ApproximateDP's delta: products of such terms, a relative 10 u.
* ApproximateDP's error is the larger one of 1 - d - e^epsilon alpha and e^-epsilon (1 - d - alpha): differences of
  terms below 1, an absolute 5 u.
* Gaussian errors: Phi(-y) with y = x + mu, x = Phi^-1(1 - alpha), changes by a relative (|y| + 1) dy, and y is off by a
  few u of |x| + mu. Where Phi(-y) does not underflow |y| < 39, |x| < 39 and mu < 78: a relative 1e-12.
* Gaussian delta: likewise log delta feels |x| + 1 times the rounding of x = epsilon / mu - mu / 2, the difference of
  two terms that are right to 8 u each. Here mu may be large.

All that is covered by RELATIVE = 1e-11 and ABSOLUTE = 1e-15, and by the last term of its own. The tests compare with
fifty digits.

*Epsilon* is not taken from a formula: a point near it is moved outwards until the bound on delta proves it.
"""

import numpy as np

from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._approximate_dp import ApproximateDP
from gdpjax.tradeoff._duality import delta, epsilon
from gdpjax.tradeoff._gaussian import Gaussian, Identity
from gdpjax.tradeoff._laplace import Laplace

CLOSED = (Gaussian, Identity, Laplace, ApproximateDP)
RELATIVE = 1e-11
ABSOLUTE = 1e-15
_UNIT_ROUNDOFF = 2.0**-53
_UNDERFLOW = 1e-290  # answers below this may have lost digits, or be 0
_LARGEST_EXPONENT = 700.0
_NUM_MOVES = 40


def error_of(curve: Curve, alpha: np.ndarray, side: float) -> np.ndarray:
    """A bound on f(alpha)."""
    value = np.asarray(curve(alpha))
    moved = value * (1.0 + side * RELATIVE)
    is_inside = _is_between(alpha, 0.0, 1.0)
    match curve:
        case Gaussian():
            moved = _past_underflow(moved, is_inside & _is_between(curve.mu, 0.0, np.inf), side)
        case Laplace():
            moved = _past_underflow(moved, is_inside, side)
        case ApproximateDP():
            moved = moved + side * ABSOLUTE
            if side < 0:
                # There e^epsilon is cut off.
                cut_off = (np.asarray(curve.epsilon) > _LARGEST_EXPONENT) & (alpha > 0)
                moved = np.where(cut_off, 0.0, moved)
    return np.clip(moved, 0.0, 1.0)


def delta_of(curve: Curve, epsilon: np.ndarray, side: float) -> np.ndarray:
    """A bound on delta(epsilon)."""
    value = np.asarray(delta(curve, epsilon))
    if not isinstance(curve, Gaussian):
        return np.clip(value * (1.0 + side * RELATIVE), 0.0, 1.0)
    mu = np.asarray(curve.mu, np.float64)
    moderate = np.clip(mu, 1e-300, 1e150)
    with np.errstate(over="ignore"):
        x = epsilon / moderate - 0.5 * moderate
        rounding = 16.0 * _UNIT_ROUNDOFF * (np.abs(x) + 1.0) * (epsilon / moderate + moderate)
    # Where mu is 0 or inf delta is 0 or 1, exactly.
    is_smooth = _is_between(mu, 0.0, np.inf)
    rounding = np.where(is_smooth, RELATIVE + rounding, 0.0)
    moved = value * np.exp(side * np.minimum(rounding, _LARGEST_EXPONENT))
    return np.clip(_past_underflow(moved, is_smooth, side), 0.0, 1.0)


def epsilon_of(curve: Curve, delta: np.ndarray, side: float) -> np.ndarray:
    """A bound on the smallest epsilon >= 0 with delta(epsilon) <= delta, which is in [0, 1)."""
    least, most = _epsilon_range(curve, delta)
    start = np.minimum(np.asarray(epsilon(curve, delta)), most)
    bound = np.array(most if side > 0 else least)
    is_open = np.isfinite(start) & (least < most)
    start = np.where(is_open, start, 0.0)
    # Ever further outwards, until delta there is proved to be on the right side of the one that is asked for.
    for move in 4.0 ** np.arange(_NUM_MOVES):
        if not is_open.any():
            break
        point = np.maximum(start + side * move * (1e-14 * start + 1e-15), 0.0)
        proved = delta_of(curve, point, 1.0) <= delta if side > 0 else delta_of(curve, point, -1.0) > delta
        bound = np.where(is_open & proved, np.clip(point, least, most), bound)
        is_open = is_open & ~proved & (point > 0)
    return bound


def _epsilon_range(curve: Curve, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where epsilon is for certain; equal ends where it is known exactly."""
    least, most = np.zeros_like(delta), np.full_like(delta, np.inf)
    match curve:
        case Identity():
            most = least
        case Laplace():
            most = np.broadcast_to(curve.epsilon, np.broadcast_shapes(delta.shape, np.shape(curve.epsilon)))
        case Gaussian():
            mu = np.asarray(curve.mu, np.float64)
            least = np.where((mu == np.inf) | ((delta == 0) & (mu > 0)), np.inf, least)
            most = np.where(mu == 0, 0.0, most)
        case ApproximateDP():
            largest = np.asarray(curve.epsilon, np.float64)
            is_covered = delta >= np.asarray(curve.delta, np.float64)
            least = np.where(is_covered & (largest < np.inf), least, np.inf)
            most = np.where(is_covered, largest, np.inf)
    shape = np.broadcast_shapes(least.shape, most.shape)
    return np.broadcast_to(least, shape), np.broadcast_to(most, shape)


def _is_between(value: Array, low: float, high: float) -> np.ndarray:
    value = np.asarray(value, np.float64)
    return (low < value) & (value < high)


def _past_underflow(value: np.ndarray, is_positive: np.ndarray, side: float) -> np.ndarray:
    """``value``, which is positive where said, with nothing claimed of a number that may have underflowed."""
    if side > 0:
        return np.where(is_positive, np.maximum(value, _UNDERFLOW), value)
    return np.where(is_positive & (value < _UNDERFLOW), 0.0, value)
