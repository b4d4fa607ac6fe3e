"""The best banded Toeplitz strategy for participations that are at least as far apart as it has bands."""

import numpy as np

from gdpjax._core.arguments import check_count
from gdpjax.correlated._banded_toeplitz import BandedToeplitz
from gdpjax.correlated._minimize import Loss, log_squared_error, minimize, through_reciprocal
from gdpjax.correlated._series import reciprocal
from gdpjax.correlated._strategy import check_error
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, check_workload


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
