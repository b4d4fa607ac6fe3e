r"""One-sided answers of curves in closed form: epsilon, delta and errors, moved by more than their rounding.

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
* Gaussian delta: `gdpjax._core.dominating`.

RELATIVE = 1e-11 and ABSOLUTE = 1e-15 cover all that. The tests compare with fifty digits.

*Epsilon* is not taken from a formula: a point near it is moved outwards until the bound on delta proves it.
"""

import numpy as np

from gdpjax._core.dominating import gaussian_delta
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._closed_forms import ApproximateDP, Gaussian, Identity, Laplace
from gdpjax.tradeoff._duality import delta, epsilon

CLOSED = (Gaussian, Identity, Laplace, ApproximateDP)
RELATIVE = 1e-11
ABSOLUTE = 1e-15
_UNDERFLOW = 1e-290
"""Answers below this may have lost digits, or be 0."""
_LARGEST_EXPONENT = 700.0
_NUM_MOVES = 40


def error_of(curve: Curve, alpha: np.ndarray, side: float) -> np.ndarray:
    """Return a bound on f(alpha)."""
    value = np.asarray(curve(alpha))
    moved = value * (1.0 + side * RELATIVE)
    is_inside = _is_between(alpha, 0.0, 1.0)
    match curve:
        case Gaussian():
            is_positive = is_inside & _is_between(curve.mu, 0.0, np.inf)
            moved = _past_underflow(moved, is_positive, side)
        case Laplace():
            moved = _past_underflow(moved, is_inside, side)
        case ApproximateDP():
            moved = moved + side * ABSOLUTE
            if side < 0:
                # The curve's value does not use a larger e^epsilon than that of about this exponent.
                is_large = np.asarray(curve.epsilon) > _LARGEST_EXPONENT
                moved = np.where(is_large & (alpha > 0), 0.0, moved)
    return np.clip(moved, 0.0, 1.0)


def delta_of(curve: Curve, epsilon: np.ndarray, side: float) -> np.ndarray:
    """Return a bound on delta(epsilon)."""
    if isinstance(curve, Gaussian):
        bounds = gaussian_delta(epsilon, curve.mu)
        return bounds.upper if side > 0 else bounds.lower
    value = np.asarray(delta(curve, epsilon))
    return np.clip(value * (1.0 + side * RELATIVE), 0.0, 1.0)


def epsilon_of(curve: Curve, delta: np.ndarray, side: float) -> np.ndarray:
    """Return a bound on the smallest epsilon >= 0 with delta(epsilon) <= delta, which is in [0, 1)."""
    smallest, largest = _epsilon_range(curve, delta)
    start = np.minimum(np.asarray(epsilon(curve, delta)), largest)
    bound = np.array(largest if side > 0 else smallest)
    is_open = np.isfinite(start) & (smallest < largest)
    start = np.where(is_open, start, 0.0)

    # Move ever further outwards, until a bound on delta there proves that the point is beyond the epsilon.
    unit = 1e-14 * start + 1e-15
    for num_units in 4.0 ** np.arange(_NUM_MOVES):
        if not is_open.any():
            break
        point = np.maximum(start + side * num_units * unit, 0.0)
        delta_at_point = delta_of(curve, point, side)
        is_proved = delta_at_point <= delta if side > 0 else delta_at_point > delta
        inside = np.clip(point, smallest, largest)
        bound = np.where(is_open & is_proved, inside, bound)
        is_open = is_open & ~is_proved & (point > 0)
    return bound


def _epsilon_range(curve: Curve, delta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return two ends between which epsilon certainly is; they are equal where it is known exactly."""
    smallest = np.zeros_like(delta)
    largest = np.full_like(delta, np.inf)
    match curve:
        case Identity():
            largest = smallest
        case Laplace():
            shape = np.broadcast_shapes(delta.shape, np.shape(curve.epsilon))
            largest = np.broadcast_to(curve.epsilon, shape)
        case Gaussian():
            mu = np.asarray(curve.mu, np.float64)
            is_infinite = (mu == np.inf) | ((delta == 0) & (mu > 0))
            smallest = np.where(is_infinite, np.inf, smallest)
            largest = np.where(mu == 0, 0.0, largest)
        case ApproximateDP():
            largest_loss = np.asarray(curve.epsilon, np.float64)
            is_covered = delta >= np.asarray(curve.delta, np.float64)
            smallest = np.where(is_covered & (largest_loss < np.inf), smallest, np.inf)
            largest = np.where(is_covered, largest_loss, np.inf)
    shape = np.broadcast_shapes(smallest.shape, largest.shape)
    return np.broadcast_to(smallest, shape), np.broadcast_to(largest, shape)


def _is_between(value: Array, low: float, high: float) -> np.ndarray:
    value = np.asarray(value, np.float64)
    return (low < value) & (value < high)


def _past_underflow(value: np.ndarray, is_positive: np.ndarray, side: float) -> np.ndarray:
    """Return ``value`` with nothing claimed of a number that may have underflowed.

    ``is_positive`` says where the exact number is positive.
    """
    if side > 0:
        at_least = np.maximum(value, _UNDERFLOW)
        return np.where(is_positive, at_least, value)
    may_be_zero = is_positive & (value < _UNDERFLOW)
    return np.where(may_be_zero, 0.0, value)
