"""The best banded inverse strategy for a participation schema."""

import math

import numpy as np

from gdpjax._core.arguments import check_count
from gdpjax.correlated._banded_inverse import BandedInverse, bisr
from gdpjax.correlated._minimize import (
    Loss,
    log_squared_error,
    log_squared_sensitivity,
    minimize,
    through_reciprocal,
)
from gdpjax.correlated._participation import AbstractParticipation, check_participation
from gdpjax.correlated._series import reciprocal
from gdpjax.correlated._strategy import check_error
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, MomentumSGD, check_workload

_SHRINK_FACTORS = (1.0, 0.99, 0.95, 0.9)
"""A first guess multiplies d_j of `bisr` by the j-th power of one of these."""
_PENALTIES = (1e2, 1e4, 1e6)
"""Weights of the squared increases of c, one after another."""
_LOSS_TOLERANCE = 1e-6
"""How far the certified loss may be above the smooth one before another pattern is suspected to be worse."""
_MOST_ITERATIONS = 300
_MOST_ITERATIONS_OF_LONG_RUNS = 60
_LONG_RUN = 4096
"""Steps from which fewer iterations are made; what they leave is about 1e-4 of the loss for 10^5 steps."""


def optimize_banded_inverse(
    num_steps: int,
    num_bands: int,
    participation: AbstractParticipation,
    error: str = "mean",
    *,
    workload: AbstractWorkload = PREFIX_SUM,
) -> BandedInverse:
    """Return the banded inverse strategy of least certified sensitivity^2 times error that L-BFGS finds.

    Args:
        num_steps: n >= 1.
        num_bands: p from 1 to n, the number of draws in the noise of a step, such as 4 or 8.
        participation: in which steps an example may take part.
        error: "mean" or "max", the squared error that is made small.
        workload: what the run computes of the released sums.

    Returns:
        A `BandedInverse` with d_0 = 1, never worse than `bisr(num_bands)` of the workload. No certificate says that
        no other strategy is better.

    Raises:
        ValueError: a number outside its range, or an error that is not "mean" or "max".

    Reference: Kalinin, McKenna, Upadhyay and Lampert, arXiv:2505.12128.

    >>> from gdpjax.correlated import MinSep
    >>> participation = MinSep(max_participations=4, min_separation=16)
    >>> strategy = optimize_banded_inverse(64, 2, participation)
    >>> f"{strategy.sensitivity(64, participation)**2 * strategy.error(64):.4f}"
    '26.1565'
    """
    num_steps = check_count("num_steps", num_steps)
    num_bands = check_count("num_bands", num_bands, most=num_steps)
    count, separation = check_participation(participation).limits(num_steps)
    check_error(error)
    check_workload(workload)

    def loss(penalty: float) -> Loss:
        return _loss(num_steps, num_bands, count, separation, error, workload, penalty)

    def certified_loss(point: np.ndarray) -> float:
        strategy = BandedInverse(np.concatenate([[1.0], point]))
        try:
            sensitivity = strategy.sensitivity(num_steps, participation)
        except ValueError:  # the coefficients of C grow too fast
            return math.inf
        squared_error = strategy.error(num_steps, error, workload=workload)
        return float(2.0 * np.log(sensitivity) + np.log(squared_error))

    # Begin with the best of a few square roots.
    smooth = loss(0.0)
    starts = _starts(num_bands, workload)
    values = [smooth(start)[0] for start in starts]
    start = starts[int(np.argmin(values))]
    most = _MOST_ITERATIONS if num_steps < _LONG_RUN else _MOST_ITERATIONS_OF_LONG_RUNS
    best = minimize(smooth, start, max_iterations=most)

    # The loss assumes that the pattern 0, b, 2 b, ... is the worst. If the certified loss is larger, another may be.
    # Then penalise increases of c, more each time, and keep the candidate of least certified loss.
    candidates = [starts[0], start, best]
    if certified_loss(best) > smooth(best)[0] + _LOSS_TOLERANCE:
        for penalty in _PENALTIES:
            best = minimize(loss(penalty), best, max_iterations=most)
            candidates.append(best)
    losses = [certified_loss(candidate) for candidate in candidates]
    best = candidates[int(np.argmin(losses))]
    return BandedInverse(np.concatenate([[1.0], best]))


def _starts(num_bands: int, workload: AbstractWorkload) -> list[np.ndarray]:
    """Return the coefficients of the square root of the inverse workload after the first, and shrunk ones."""
    roots = bisr(num_bands)
    if isinstance(workload, MomentumSGD):
        roots = bisr(num_bands, workload.momentum, workload.weight_decay)
    coefficients = np.asarray(roots.noising_coefficients)[1:]
    powers = np.arange(1, num_bands)
    return [coefficients * factor**powers for factor in _SHRINK_FACTORS]


def _loss(
    num_steps: int,
    num_bands: int,
    count: int,
    separation: int,
    error: str,
    workload: AbstractWorkload,
    penalty: float,
) -> Loss:
    """Return log |v|^2 + log error, where v is the sum of the columns 0, b, 2 b, ... of C.

    The noising coefficients are d = (1, x), and c = 1 / d as power series. Every increase of c costs ``penalty`` times
    its square.
    """

    def loss(point: np.ndarray) -> tuple[float, np.ndarray]:
        noising = np.concatenate([[1.0], point])
        column = reciprocal(noising, num_steps)
        log_sensitivity, gradient_by_column = log_squared_sensitivity(column, count, separation)

        # Increases of c, where c is 0 after its end.
        increase = np.maximum(np.diff(column, append=0.0), 0.0)
        gradient_by_column -= 2.0 * penalty * increase
        gradient_by_column[1:] += 2.0 * penalty * increase[:-1]

        # The error is that of the noising coefficients, followed by zeros.
        log_error, gradient_by_noising = log_squared_error(
            np.pad(noising, (0, num_steps - num_bands)), error, workload
        )
        gradient = through_reciprocal(gradient_by_column, column, noising) + gradient_by_noising[:num_bands]
        return log_sensitivity + log_error + penalty * float(increase @ increase), gradient[1:]

    return loss
