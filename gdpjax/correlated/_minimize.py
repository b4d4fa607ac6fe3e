"""Minimisation by L-BFGS, and what the losses of the strategies share.

A loss is the logarithm of sensitivity^2 times error. It is a smooth function of a few numbers, and one evaluation with
its gradient costs a few recurrences over the steps. So optimisation takes milliseconds, without a compiler.
"""

from collections.abc import Callable

import numpy as np
import scipy

from gdpjax.correlated._sensitivity import sum_of_columns
from gdpjax.correlated._series import divide
from gdpjax.correlated._workloads import AbstractWorkload

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Maps a point to the loss and its gradient."""

_LONGEST_DIRECT = 4096
"""Steps up to which a correlation is summed directly."""
_OUTSIDE = 1e10
"""The loss where the numbers overflow, so that the line search turns back."""


def minimize(
    loss: Loss,
    start: np.ndarray,
    *,
    max_iterations: int = 300,
    tolerance: float = 1e-11,
) -> np.ndarray:
    """Return where L-BFGS from ``start`` ends: when an iteration gains less than ``tolerance``, or at the limit."""
    if not len(start):
        return start

    def evaluate(point: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            value, gradient = loss(point)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            return value, gradient
        return _OUTSIDE, np.zeros_like(point)

    options = {"maxiter": max_iterations, "maxcor": 20, "ftol": tolerance, "gtol": 1e-7}
    return scipy.optimize.minimize(evaluate, start, jac=True, method="L-BFGS-B", options=options).x


def log_squared_sensitivity(column: np.ndarray, count: int, separation: int) -> tuple[float, np.ndarray]:
    """Return log |v|^2, where v is the sum of the columns 0, b, 2 b, ... of C, and its gradient by the first column."""

    def sum_of_pattern(column: np.ndarray) -> np.ndarray:
        return sum_of_columns(column, count, separation)

    pattern = sum_of_pattern(column)
    squared = pattern @ pattern
    return float(np.log(squared)), 2.0 * adjoint(sum_of_pattern, pattern) / squared


def log_squared_error(
    inverse_column: np.ndarray,
    error: str,
    workload: AbstractWorkload,
) -> tuple[float, np.ndarray]:
    """Return the logarithm of the mean or largest squared error, and its gradient by the first column of C^-1.

    Squares of the first column of A C^-1 count in all later outputs.
    """
    num_steps = len(inverse_column)
    weights = np.ones(num_steps) if error == "max" else np.arange(num_steps, 0, -1) / num_steps
    outputs = workload.apply(inverse_column)
    weighted = weights * outputs
    squared = weighted @ outputs
    return float(np.log(squared)), 2.0 * adjoint(workload.apply, weighted) / squared


def through_reciprocal(gradient: np.ndarray, series: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return the gradient by the coefficients of c(x), from the one by ``series``, which is 1 / c(x).

    A change of c by e changes 1 / c by -e / c^2: divide by c backwards, and then correlate with 1 / c.
    """
    divided = adjoint(lambda array: divide(array, coefficients), gradient)
    return -_correlate(divided, series, len(coefficients))


def adjoint(operation: Callable[[np.ndarray], np.ndarray], array: np.ndarray) -> np.ndarray:
    """Return the transpose of a lower-triangular Toeplitz operation applied to an array: the same one, backwards."""
    backwards = operation(array[::-1])
    return backwards[::-1]


def _correlate(left: np.ndarray, right: np.ndarray, num_lags: int) -> np.ndarray:
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
