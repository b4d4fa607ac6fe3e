"""Power series in float64: reciprocals, geometric sums, and bounds on their rounding errors."""

import dataclasses
from typing import Any

import numpy as np
import scipy
from jaxtyping import Float

UNIT_ROUNDOFF = 2.0**-53
"""The largest relative error of one rounded operation."""
_UNDERFLOW = 1e-290
"""An upper bound on the total error from underflow."""


@dataclasses.dataclass(frozen=True)
class CertifiedSeries:
    """Coefficients of a power series, each within ``errors`` of the true one."""

    values: Float[np.ndarray, " steps"]
    errors: Float[np.ndarray, " steps"]
    num_nonzero: int
    """All coefficients from this one on are exactly zero."""

    def magnitudes(self) -> Float[np.ndarray, " steps"]:
        """Return upper bounds on the absolute values of the coefficients."""
        return (np.abs(self.values) + self.errors) * (1.0 + 2.0 * UNIT_ROUNDOFF)


def filled_up(coefficients: Any, num_steps: int) -> np.ndarray:
    """Return the first coefficients of a series that ends with those given."""
    series = np.zeros(num_steps)
    used = min(num_steps, len(coefficients))
    series[:used] = coefficients[:used]
    return series


def reciprocal(coefficients: np.ndarray, num_steps: int) -> np.ndarray:
    """Return the first coefficients of 1 / (c_0 + c_1 x + ...), by c_0 y_t = [t = 0] - sum_j c_j y_{t-j}."""
    with np.errstate(all="ignore"):
        return divide(filled_up([1.0], num_steps), coefficients[:num_steps])


def divide(series: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Return the first coefficients of a power series divided by c_0 + c_1 x + ..., as many as are given."""
    return np.asarray(scipy.signal.lfilter([1.0], coefficients, series))


def certified_reciprocal(coefficients: np.ndarray, num_steps: int) -> CertifiedSeries:
    """Return `reciprocal` with a bound on the error of each coefficient.

    The coefficients are d_0 > 0, d_1, ..., d_{p-1}, and a_j = d_j / d_0. Write (*) for convolution, y* for the true
    series of 1 / d, and gamma = 2 (p + 8) 2^-53. The computed y fulfils a (*) y = impulse / d_0 but for a residual of
    at most gamma |a| (*) |y|. The series of 1 / a is d_0 y*, so with q = d_0 gamma |a| (*) |y|

        |y - y*|  <=  |y*| (*) q  <=  |y| (*) q + |y - y*| (*) q,
        |y - y*|_t  <=  max_{u <= t} (|y| (*) q)_u / (1 - sum q).

    Raises:
        ValueError: the series grows so fast that nothing can be said.
    """
    first = abs(float(coefficients[0]))
    values = reciprocal(coefficients, num_steps)
    magnitudes = np.abs(values)

    # q, the bound on the residual of the recurrence, times d_0.
    relative_coefficients = np.abs(coefficients[:num_steps]) / first
    gamma = 2.0 * (len(relative_coefficients) + 8) * UNIT_ROUNDOFF
    residual_sums = np.asarray(scipy.signal.lfilter(relative_coefficients, [1.0], magnitudes))
    residual = first * gamma * residual_sums + _UNDERFLOW
    residual_total = float(residual.sum()) * (1.0 + 1e-6)
    if not residual_total < 0.5:
        raise ValueError(
            f"the noising coefficients have a reciprocal series that grows too fast to be summed over {num_steps} "
            "steps: its sensitivity is beyond any use. Choose coefficients with |d_1| + ... + |d_{p-1}| <= d_0"
        )

    # The convolution by FFT, whose error is relative to the norms.
    convolved = np.abs(scipy.signal.fftconvolve(magnitudes, residual)[:num_steps])
    convolved += 1e-13 * np.linalg.norm(magnitudes) * np.linalg.norm(residual)
    errors = np.maximum.accumulate(convolved) / (1.0 - residual_total)
    num_nonzero = num_steps if len(relative_coefficients) > 1 else 1
    return CertifiedSeries(values, errors, num_nonzero)


def geometric_sums(decay: np.ndarray, scale: np.ndarray, num_steps: int) -> CertifiedSeries:
    """Return 1, and sum_i scale_i decay_i^(t-1) for t >= 1, with a bound on the error of each.

    Powers are right to 4 units in the last place, so the sum of d terms is within (d + 8) 2^-52 of the sum of sizes.
    """
    exponents = np.arange(num_steps - 1)
    powers = np.power(np.asarray(decay)[:, None], exponents)
    values = np.concatenate([[1.0], scale @ powers])

    relative_error = (len(scale) + 8) * 2.0 * UNIT_ROUNDOFF
    sizes = np.abs(scale) @ np.abs(powers)
    errors = np.concatenate([[0.0], relative_error * sizes + _UNDERFLOW])
    return CertifiedSeries(values, errors, num_nonzero=num_steps if len(scale) else 1)


def buffered_inverse(decay: np.ndarray, scale: np.ndarray, num_steps: int) -> np.ndarray:
    """Return the first coefficients of the reciprocal of the series of `geometric_sums`.

    The series is prod_i (1 - zero_i x) / (1 - decay_i x), where the zeros are the eigenvalues of
    diag(decay) - 1 scale^T, the matrix that multiplies the buffers in a step without a draw. Its reciprocal has the two
    exchanged. One factor at a time is a recurrence of first order, which is stable.
    """
    without_draw = np.diag(decay) - np.asarray(scale)[None, :]
    zeros = np.linalg.eigvals(without_draw) if len(scale) else []
    column = filled_up([1.0], num_steps)
    for decay_i, zero in zip(decay, zeros, strict=True):
        column = scipy.signal.lfilter([1.0, -decay_i], [1.0, -zero], column)
    return np.asarray(np.real(column))
