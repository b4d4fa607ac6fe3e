"""Minimisation by L-BFGS, and what the losses of the strategies share.

A loss is the logarithm of sensitivity^2 times error, with its gradient. It is a smooth function of a few numbers, and
one evaluation costs a few recurrences over the steps. So optimisation takes milliseconds, without a compiler.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Gives a number and its gradient."""

_LONGEST_DIRECT = 4096
"""Steps up to which a correlation is summed directly."""
_OUTSIDE = 1e10
"""The loss where the numbers overflow, so that the line search turns back."""
_MOST_PAIRS = 20
"""Steps and changes of the gradient that are kept of the past."""
_SMALLEST_GRADIENT = 1e-7
_MOST_TRIALS = 40
_DECREASE = 1e-4
"""The part of the decrease that the slope promises which a step must have (Armijo)."""
_FLATTENING = 0.9
"""The part of the slope that may be left after a step (Wolfe)."""


@dataclasses.dataclass(frozen=True)
class _Place:
    """A point with its loss and gradient."""

    point: np.ndarray
    value: float
    gradient: np.ndarray


def minimize(
    loss: Loss,
    start: np.ndarray,
    *,
    max_iterations: int = 300,
    tolerance: float = 1e-11,
) -> np.ndarray:
    """Return where L-BFGS from ``start`` ends: when an iteration gains less than ``tolerance``, or at the limit.

    It is written out here since SciPy's calls a threaded LAPACK for a few numbers, which can cost more than the loss.
    """

    def place_of(point: np.ndarray) -> _Place:
        with np.errstate(all="ignore"):
            value, gradient = loss(point)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            return _Place(point, value, gradient)
        return _Place(point, _OUTSIDE, np.zeros_like(point))

    here = place_of(start)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(max_iterations):
        if np.max(np.abs(here.gradient), initial=0.0) < _SMALLEST_GRADIENT:
            break
        direction = -_times_inverse_hessian(here.gradient, pairs)
        there = _search(place_of, here, direction, is_first=not pairs)
        if there is None:
            break

        # A pair with positive curvature keeps the approximate Hessian positive definite.
        step = there.point - here.point
        change = there.gradient - here.gradient
        if step @ change > 0:
            pairs = [*pairs[1 - _MOST_PAIRS :], (step, change)]
        gain = here.value - there.value
        here = there
        if gain <= tolerance * max(abs(here.value), 1.0):
            break
    return here.point


def _times_inverse_hessian(gradient: np.ndarray, pairs: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the approximate inverse Hessian times the gradient, by the two loops of L-BFGS."""
    result = gradient.copy()
    weights = []
    for step, change in reversed(pairs):
        weight = (step @ result) / (step @ change)
        result -= weight * change
        weights.append(weight)

    # The scale of the last pair stands for all directions that were not seen.
    if pairs:
        step, change = pairs[-1]
        result *= (step @ change) / (change @ change)

    for (step, change), weight in zip(pairs, reversed(weights), strict=True):
        correction = (change @ result) / (step @ change)
        result += (weight - correction) * step
    return result


def _search(
    place_of: Callable[[np.ndarray], _Place],
    here: _Place,
    direction: np.ndarray,
    *,
    is_first: bool,
) -> _Place | None:
    """Return a place along the direction that is lower and flatter, by bisection; None if there is none."""
    slope = float(here.gradient @ direction)
    length = min(1.0, 1.0 / float(np.linalg.norm(direction))) if is_first else 1.0
    shortest, longest = 0.0, math.inf
    lower = None
    for _ in range(_MOST_TRIALS):
        there = place_of(here.point + length * direction)
        if there.value > here.value + _DECREASE * length * slope:
            longest = length
        elif there.gradient @ direction < _FLATTENING * slope:
            shortest, lower = length, there
        else:
            return there
        length = (shortest + longest) / 2.0 if longest < math.inf else 2.0 * shortest
    return lower


def weights_of_error(num_steps: int, error: str) -> np.ndarray:
    """Return the weights of b_0^2, b_1^2, ... in the mean or the largest squared error of a Toeplitz workload."""
    if error == "max":
        return np.ones(num_steps)
    return np.arange(num_steps, 0, -1) / num_steps


def correlate(left: np.ndarray, right: np.ndarray, num_lags: int) -> np.ndarray:
    """Return sum_t left_t right_{t-j} for each lag j from 0 to num_lags - 1, of arrays of one length."""
    if len(left) <= _LONGEST_DIRECT:
        padded = np.concatenate([left, np.zeros(num_lags - 1)])
        return np.correlate(padded, right, mode="valid")

    # By FFT, long enough that no lag wraps around to another one.
    length = scipy.fft.next_fast_len(len(left) + num_lags, real=True)
    of_left = np.fft.rfft(left, length)
    of_right = np.fft.rfft(right, length)
    correlation = np.fft.irfft(of_left * np.conj(of_right), length)
    return correlation[:num_lags]


def adjoint(operation: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> np.ndarray:
    """Return the transpose of a lower-triangular Toeplitz operation applied to an array: the same one, backwards."""
    backwards = operation(array[::-1])
    return backwards[::-1]
