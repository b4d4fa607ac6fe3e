"""Minimisation by L-BFGS, and what the losses of the strategies share.

A loss is the logarithm of sensitivity^2 times error. It is a smooth function of a few numbers, and one evaluation with
its gradient costs a few recurrences over the steps. So optimisation takes milliseconds, without a compiler.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
import scipy

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Maps a point to the loss and its gradient."""

_LONGEST_DIRECT = 4096
"""Steps up to which a correlation is summed directly."""
_OUTSIDE = 1e10
"""The loss where the numbers overflow, so that the line search turns back."""
_MOST_PAIRS = 20
"""How many pairs of a past step and its change of the gradient are kept."""
_SMALLEST_GRADIENT = 1e-7
_MOST_TRIALS = 40
_ARMIJO = 1e-4
"""A step must lower the loss by at least this part of length times slope (Armijo)."""
_WOLFE = 0.9
"""After the step the slope must be at most this part of what it was (Wolfe)."""


@dataclasses.dataclass(frozen=True)
class _Evaluation:
    """A point, and the loss and its gradient there."""

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

    def evaluate(point: np.ndarray) -> _Evaluation:
        with np.errstate(all="ignore"):
            value, gradient = loss(point)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            return _Evaluation(point, value, gradient)
        return _Evaluation(point, _OUTSIDE, np.zeros_like(point))

    current = evaluate(start)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for _ in range(max_iterations):
        if np.max(np.abs(current.gradient), initial=0.0) < _SMALLEST_GRADIENT:
            break
        direction = -_times_inverse_hessian(current.gradient, pairs)
        candidate = _search(evaluate, current, direction, is_first=not pairs)
        if candidate is None:
            break

        # A pair with positive curvature keeps the approximate Hessian positive definite.
        step = candidate.point - current.point
        change = candidate.gradient - current.gradient
        if step @ change > 0:
            pairs = [*pairs[1 - _MOST_PAIRS :], (step, change)]
        gain = current.value - candidate.value
        current = candidate
        if gain <= tolerance * max(abs(current.value), 1.0):
            break
    return current.point


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
    evaluate: Callable[[np.ndarray], _Evaluation],
    current: _Evaluation,
    direction: np.ndarray,
    *,
    is_first: bool,
) -> _Evaluation | None:
    """Return a point along the direction that is lower and flatter, or the last that is lower; None if none is found.

    Too long where the loss has not fallen enough; too short where it still falls steeply. Double the length until one
    is too long, then bisect.
    """
    slope = float(current.gradient @ direction)
    length = min(1.0, 1.0 / float(np.linalg.norm(direction))) if is_first else 1.0
    shortest, longest = 0.0, math.inf
    best_so_far = None
    for _ in range(_MOST_TRIALS):
        candidate = evaluate(current.point + length * direction)
        if candidate.value > current.value + _ARMIJO * length * slope:
            longest = length
        elif candidate.gradient @ direction < _WOLFE * slope:
            shortest, best_so_far = length, candidate
        else:
            return candidate
        length = (shortest + longest) / 2.0 if longest < math.inf else 2.0 * shortest
    return best_so_far


def weights_of_error(num_steps: int, error: str) -> np.ndarray:
    """Return the weights of h_0^2, h_1^2, ... in the mean or largest squared error; h is the first column of A C^-1."""
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
    left_spectrum = np.fft.rfft(left, length)
    right_spectrum = np.fft.rfft(right, length)
    correlation = np.fft.irfft(left_spectrum * np.conj(right_spectrum), length)
    return correlation[:num_lags]


def adjoint(operation: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> np.ndarray:
    """Return the transpose of a lower-triangular Toeplitz operation applied to an array: the same one, backwards."""
    backwards = operation(array[::-1])
    return backwards[::-1]
