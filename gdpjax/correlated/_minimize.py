"""Minimisation by L-BFGS, and what the losses of the strategies share.

A loss is the logarithm of sensitivity^2 times error, with its gradient. It is a smooth function of a few numbers, and
one evaluation costs a few recurrences over the steps. So optimisation takes milliseconds, without a compiler.
"""

from collections.abc import Callable

import numpy as np
import scipy

Loss = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Gives a number and its gradient."""

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

    def guarded(point: np.ndarray) -> tuple[float, np.ndarray]:
        with np.errstate(all="ignore"):
            value, gradient = loss(point)
        if np.isfinite(value) and np.all(np.isfinite(gradient)):
            return value, gradient
        return _OUTSIDE, np.zeros_like(point)

    if len(start) == 0:
        return start
    options = {
        "maxiter": max_iterations,
        "maxcor": 20,
        "ftol": tolerance,
        "gtol": 1e-7,
    }
    result = scipy.optimize.minimize(
        guarded,
        start,
        jac=True,
        method="L-BFGS-B",
        options=options,
    )
    return np.asarray(result.x)


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
