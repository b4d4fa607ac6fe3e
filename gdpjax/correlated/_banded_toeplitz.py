"""A banded Toeplitz C: the noise of a step corrects that of the last few steps (BandMF)."""

from typing import Any

import numpy as np
from jaxtyping import Float, Real

from gdpjax._core.arguments import check_count
from gdpjax._core.types import Array, PyTree, Whole, pytree_dataclass
from gdpjax.correlated import _buffers
from gdpjax.correlated._minimize import Loss, log_squared_error, minimize, through_reciprocal
from gdpjax.correlated._series import CertifiedSeries, filled_up, reciprocal
from gdpjax.correlated._strategy import Draw, ToeplitzStrategy, check_error, checked_coefficients, length_of
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload


@pytree_dataclass
class BandedToeplitz(ToeplitzStrategy):
    """C is Toeplitz: c_0 on its diagonal, c_1, c_2, ... in num_bands - 1 bands below it, zeros beyond.

        w_t = (z_t - sum_{j = 1}^{num_bands - 1} c_j w_{t-j}) / c_0          (the solution of C w = z)

    The state is a ring buffer of the last num_bands - 1 outputs, which is secret.

    Args:
        coefficients: c_0 > 0, c_1, ..., shape [num_bands].

    Returns:
        A strategy. Its sensitivity is exact (to a relative 1e-9) if the coefficients do not increase and are not
        negative, or if participations are at least num_bands steps apart; otherwise it is an upper bound.

    Raises:
        ValueError: coefficients that are no list of finite numbers, or c_0 <= 0.

    Reference: Choquette-Choo et al., arXiv:2306.08153; Kalinin and Lampert, arXiv:2405.13763.

    >>> from gdpjax.correlated import MinSep
    >>> strategy = BandedToeplitz([0.8, 0.6])
    >>> print(f"{strategy.sensitivity(100, MinSep(4, 2)):.6f}", f"{strategy.error(100):.4f}")
    2.000000 26.8520
    """

    coefficients: Real[Array, " bands"]

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", checked_coefficients("coefficients", self.coefficients))

    @property
    def num_bands(self) -> int:
        """The number of diagonals of C that are not zero."""
        return length_of("coefficients", self.coefficients)

    def column(self, num_steps: int) -> CertifiedSeries:
        """Return the first column of C, which is exact."""
        column = filled_up(self.coefficients, num_steps)
        return CertifiedSeries(column, np.zeros(num_steps), num_nonzero=self.num_bands)

    def inverse_column(self, num_steps: int) -> Float[np.ndarray, " {num_steps}"]:
        """Return the first column of C^-1."""
        return reciprocal(self.coefficients, num_steps)

    def init(self, like: PyTree) -> PyTree:
        """Return the empty ring buffer, float32 zeros with a leading axis of num_bands - 1; () for one band."""
        return _buffers.zeros_like_each(like, self.num_bands - 1) if self.num_bands > 1 else ()

    def next(self, step: Whole, draw: Draw, state: PyTree) -> tuple[PyTree, PyTree]:
        """Return w_step, and the ring buffer with it in the slot of the oldest output."""
        coefficients: Any = self.coefficients
        drawn = _buffers.as_noise(draw(step))
        first = _buffers.split_high_and_low(1.0 / coefficients[0])
        if self.num_bands == 1:
            return _buffers.multiply(first, drawn), ()

        # Outputs before step 0 are the zeros that the buffer begins with.
        lags = _buffers.lag_of_each_slot(step - 1, self.num_bands - 1) + 1
        high_and_low = _buffers.split_high_and_low(coefficients)[:, lags]
        rest = _buffers.subtract(drawn, _buffers.sum_of_slots(high_and_low, state))
        noise = _buffers.multiply(first, rest)

        # Read back from the buffer, the output has one use and is computed once; the buffer would be copied otherwise.
        state = _buffers.write(state, step, noise)
        return _buffers.written(state, step), state


def optimize_banded_toeplitz(
    num_steps: int,
    num_bands: int,
    error: str = "mean",
    *,
    workload: AbstractWorkload = PREFIX_SUM,
) -> BandedToeplitz:
    """Return the banded Toeplitz strategy of least |c|^2 times error, scaled to |c| = 1.

    |c| is its sensitivity for a single participation. Choose num_bands at most the separation of participations: then
    the sensitivity for k of them is at most sqrt(k), whatever the schema, which is why there is no argument for it.

    Args:
        num_steps: n >= 1.
        num_bands: from 1 to n; at most the separation, as the number of steps in an epoch.
        error: "mean" or "max", the squared error that is made small.
        workload: what the run computes of the released sums.

    Returns:
        A `BandedToeplitz` with coefficients of norm 1. It is where L-BFGS ends from the square root of the workload;
        no certificate says that no other strategy is better.

    Raises:
        ValueError: a number outside its range, or an error that is not "mean" or "max".

    Reference: McKenna, arXiv:2405.15913.

    >>> strategy = optimize_banded_toeplitz(64, 4, "max")
    >>> f"{strategy.error(64, 'max'):.4f}"
    '18.9247'
    """
    num_steps = check_count("num_steps", num_steps)
    num_bands = check_count("num_bands", num_bands, most=num_steps)
    check_error(error)
    loss = _loss(num_steps, error, check_workload(workload))

    # Begin with the square root of the workload.
    start = _square_root(workload.coefficients(num_bands))
    best = minimize(loss, start[1:] / start[0])
    coefficients = np.concatenate([[1.0], best])
    return BandedToeplitz(coefficients / np.linalg.norm(coefficients))


def _loss(num_steps: int, error: str, workload: AbstractWorkload) -> Loss:
    """Return log |c|^2 + log error of c = (1, x)."""

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        coefficients = np.concatenate([[1.0], point])
        inverse_column = reciprocal(coefficients, num_steps)
        log_error, gradient_by_inverse = log_squared_error(inverse_column, error, workload)
        gradient = through_reciprocal(gradient_by_inverse, inverse_column, coefficients)

        squared_norm = coefficients @ coefficients
        gradient += 2.0 * coefficients / squared_norm
        return float(np.log(squared_norm)) + log_error, gradient[1:]

    return loss


def _square_root(series: np.ndarray) -> np.ndarray:
    """Return the power series r with r r = series, from 2 r_0 r_t = series_t - sum_{0 < s < t} r_s r_{t-s}."""
    root = np.zeros_like(series)
    root[0] = np.sqrt(series[0])
    for index in range(1, len(series)):
        inner = root[1:index] @ root[index - 1 : 0 : -1]
        root[index] = (series[index] - inner) / (2.0 * root[0])
    return root
