"""A banded C^-1: the noise of a step is a short sum of draws, which can be made again from their keys."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Real

from gdpjax._core.arguments import check_choice, check_count
from gdpjax._core.checks import UNIT, check_scalar, is_traced
from gdpjax._core.types import Array, PyTree, Whole, pytree_dataclass
from gdpjax.correlated import _buffers
from gdpjax.correlated._minimize import (
    Loss,
    log_squared_error,
    log_squared_sensitivity,
    minimize,
    through_reciprocal,
)
from gdpjax.correlated._participation import AbstractParticipation, check_participation
from gdpjax.correlated._series import CertifiedSeries, certified_reciprocal, filled_up, reciprocal
from gdpjax.correlated._strategy import Draw, ToeplitzStrategy, check_error, checked_coefficients, length_of
from gdpjax.correlated._workloads import PREFIX_SUM, AbstractWorkload, MomentumSGD, check_workload

MEMORY = ("regenerate", "buffer", "auto")
_LARGEST_AUTOMATIC_BUFFER = 2**28
"""Bytes of past draws that "auto" keeps rather than drawing them again."""


@pytree_dataclass
class BandedInverse(ToeplitzStrategy):
    """C^-1 is Toeplitz: d_0 on its diagonal, d_1, ..., d_{p-1} below it, zeros beyond.

        w_t = sum_{j = 0}^{p - 1} d_j z_{t-j},          z_s = 0 for s < 0

    With memory="regenerate" the p draws are made at each step from their keys, and there is no state. With "buffer"
    the last p draws are kept in a ring buffer, which is secret. Both give the same noise, but for rounding.

    Args:
        noising_coefficients: d_0 > 0, d_1, ..., d_{p-1}, shape [p].
        memory: "regenerate", "buffer", or "auto": a buffer where it has at most 256 MiB and p > 2. To change it, as for
            a strategy from `bisr`, use ``dataclasses.replace(strategy, memory=...)``.

    Returns:
        A strategy. Its sensitivity is exact (to a relative 1e-9) if the power series 1 / (d_0 + d_1 x + ...) has
        coefficients that do not increase and are not negative; otherwise it is an upper bound.

    Raises:
        ValueError: coefficients that are no list of finite numbers, d_0 <= 0, or an unknown memory.

    Reference: Kalinin, McKenna, Upadhyay and Lampert, arXiv:2505.12128.

    >>> from gdpjax.correlated import MinSep
    >>> strategy = BandedInverse([1.0, -0.5])
    >>> print(f"{strategy.sensitivity(64, MinSep(4, 16))**2:.6f}", strategy.error(64))
    5.333455 8.875
    """

    noising_coefficients: Real[Array, " bands"]
    memory: str = dataclasses.field(default="auto", metadata={"static": True})

    def __post_init__(self) -> None:
        coefficients = checked_coefficients("noising_coefficients", self.noising_coefficients)
        object.__setattr__(self, "noising_coefficients", coefficients)
        check_choice("memory", self.memory, MEMORY)

    @property
    def num_bands(self) -> int:
        """The number of diagonals of C^-1 that are not zero, p."""
        return length_of("noising_coefficients", self.noising_coefficients)

    def column(self, num_steps: int) -> CertifiedSeries:
        """Return the first column of C, the power series of the reciprocal."""
        return certified_reciprocal(self.noising_coefficients, num_steps)

    def inverse_column(self, num_steps: int) -> Float[np.ndarray, " {num_steps}"]:
        """Return the first column of C^-1."""
        return filled_up(self.noising_coefficients, num_steps)

    def init(self, like: PyTree) -> PyTree:
        """Return (), or the empty ring buffer, float32 zeros with a leading axis of p."""
        if self._draws_again(like):
            return ()
        return _buffers.zeros_like_each(like, self.num_bands)

    def _draws_again(self, like: PyTree) -> bool:
        """Whether past draws are made again for noise of these shapes."""
        if self.memory == "regenerate" or self.num_bands == 1:
            return True
        if self.memory == "buffer":
            return False
        num_coordinates = sum(math.prod(np.shape(leaf)) for leaf in jax.tree.leaves(like))
        num_bytes = 4 * self.num_bands * num_coordinates
        return self.num_bands == 2 or num_bytes > _LARGEST_AUTOMATIC_BUFFER

    def next(self, step: Whole, draw: Draw, state: PyTree) -> tuple[PyTree, PyTree]:
        """Return w_step, and the ring buffer, if there is one, with z_step in the slot of the oldest draw."""
        num_bands = self.num_bands
        high_and_low = _buffers.split_high_and_low(self.noising_coefficients)
        if isinstance(state, tuple) and not state:
            return _sum_of_draws(high_and_low, step, draw), ()

        # The draw of this step is written first and read with the others, so that the buffer is never copied.
        state = _buffers.write(state, step, _buffers.as_noise(draw(step)))
        lags = _buffers.lag_of_each_slot(step, num_bands)
        return _buffers.sum_of_slots(high_and_low[:, lags], state), state


def _sum_of_draws(high_and_low: Array, step: Whole, draw: Draw) -> PyTree:
    """Return sum_j d_j z_{step-j}; more than two draws are made in a loop, whose size does not grow with p."""
    step = jnp.asarray(step)

    def one_draw(lag: Array) -> PyTree:
        past = step - lag
        # Before step 0 there is no draw: any other one, times 0.
        coefficient = jnp.where(past >= 0, high_and_low[:, lag], 0.0)
        drawn = _buffers.as_noise(draw(jnp.maximum(past, 0)))
        return _buffers.multiply(coefficient, drawn)

    def add_draw(lag: Array, total: PyTree) -> PyTree:
        return _buffers.add(total, one_draw(lag))

    # A sum of two is one pass over the memory, where a loop takes one for each.
    if high_and_low.shape[1] == 2:
        return _buffers.add(one_draw(jnp.asarray(0)), one_draw(jnp.asarray(1)))
    nothing = _buffers.zeros_like_each(jax.eval_shape(draw, step))
    return jax.lax.fori_loop(0, high_and_low.shape[1], add_draw, nothing)


def lambda_cgd(lam: Any) -> BandedInverse:
    """Return the strategy of DP-lambda-CGD, w_t = z_t - lam z_{t-1}.

    Its C has the coefficients lam^t. One more draw a step is all that it costs.

    Args:
        lam: the part of the noise that the next step takes back, in [0, 1], a number or traced; 0 is independent noise.

    Returns:
        BandedInverse([1, -lam]), whose sensitivity is exact to a relative 1e-9.

    Raises:
        ValueError: lam outside [0, 1]; a traced one becomes NaN.

    Reference: DP-lambda-CGD, arXiv:2601.22334.

    >>> lambda_cgd(0.75).noising_coefficients
    array([ 1.  , -0.75])
    """
    check_scalar("lam", lam, UNIT)
    if is_traced(lam):
        coefficients = jnp.stack([jnp.ones_like(lam), -lam])
        is_allowed = UNIT.contains(lam)
        return BandedInverse(jnp.where(is_allowed, coefficients, jnp.nan))
    return BandedInverse(np.array([1.0, -float(lam)]))


def bisr(num_bands: int, momentum: float = 0.0, weight_decay: float = 0.0) -> BandedInverse:
    """Return the banded inverse square root: the first coefficients of the square root of the workload's inverse.

        ((1 - (1 - weight_decay) x) (1 - momentum x))^(1/2)  =  d_0 + d_1 x + ... + d_{p-1} x^{p-1} + ...

    It needs no optimisation. Its error depends on p: compare sensitivity**2 * error for p = 4, 8, 16, ...; it is poor
    at small p, where `optimize_banded_inverse` is much better.

    Args:
        num_bands: p >= 1.
        momentum: of the workload `MomentumSGD`, in [0, 1).
        weight_decay: of the workload, in [0, 1).

    Returns:
        A `BandedInverse` with p coefficients.

    Raises:
        ValueError: a number outside its range.

    Reference: Kalinin, McKenna, Upadhyay and Lampert, arXiv:2505.12128.

    >>> bisr(4).noising_coefficients
    array([ 1.    , -0.5   , -0.125 , -0.0625])
    """
    num_bands = check_count("num_bands", num_bands)
    workload = MomentumSGD(momentum, weight_decay)

    # (1 - x)^(1/2) has the coefficients r_0 = 1, r_j = r_{j-1} (2 j - 3) / (2 j).
    index = np.arange(1, num_bands)
    ratios = (2 * index - 3) / (2 * index)
    root_series = np.cumprod(np.concatenate([[1.0], ratios]))

    # Stretch the root by (1 - weight_decay)^j and by momentum^j; the product of the two series is what is wanted.
    powers = np.arange(num_bands)
    weight_decay_root = root_series * (1.0 - workload.weight_decay) ** powers
    momentum_root = root_series * workload.momentum**powers
    return BandedInverse(np.convolve(weight_decay_root, momentum_root)[:num_bands])


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
        log_error, gradient_by_noising = log_squared_error(filled_up(noising, num_steps), error, workload)
        gradient = through_reciprocal(gradient_by_column, column, noising) + gradient_by_noising[:num_bands]
        return log_sensitivity + log_error + penalty * float(increase @ increase), gradient[1:]

    return loss
