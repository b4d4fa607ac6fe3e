r"""The random number of runs behind private hyperparameter selection: its mean, its parameters, its sampler.

The truncated negative binomial law with shape eta > -1 and gamma in (0, 1) has, for k = 1, 2, ...,

    P(K = k+1) / P(K = k) = (1 - gamma) (k + eta) / (k + 1),
    P(K = 1) = gamma^{eta+1} E[K],

    E[K] = (1 - gamma) eta / (gamma (1 - gamma^eta)),    at eta = 0:  (1 - gamma) / (gamma log(1/gamma)).

eta = 1 is the geometric law, eta = 0 the logarithmic one. With x = eta log(1/gamma) the mean is
(1 - gamma) / (gamma log(1/gamma)) x / (1 - e^{-x}), which has no singularity. It decreases from inf to 1 as gamma grows
from 0 to 1, so that a mean fixes gamma. The Poisson law may give no run at all, K = 0.

*Sampling* inverts the distribution function by sequential search from the recurrence above, with a uniform number of
53 bits: the law is exact up to a total variation distance of about 1e-15 E[K], which is added to delta.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int, PRNGKeyArray

from gdpjax._core.arguments import check_choice, check_positions
from gdpjax._core.checks import OPEN_UNIT, WHOLE, Domain, check, is_traced
from gdpjax._core.keys import bits
from gdpjax._core.precision import float64_function
from gdpjax._core.roots import bisect, geometric_midpoint
from gdpjax._core.types import Array, Floats, Numbers

DISTRIBUTIONS = ("negative_binomial", "poisson")
SHAPE = Domain("a finite number > -1", lambda x: (x > -1) & (x < np.inf))
MEAN_ABOVE_ONE = Domain("a number in (1, 1e6]", lambda x: (x > 1) & (x <= 1e6))

_SAMPLED_MEAN = Domain("a number in (0, 600]", lambda x: (x > 0) & (x <= 600))
_SMALLEST_NORMAL = 2.0**-1022
_SMALLEST_GAMMA = 2.0**-1000
_LARGEST_GAMMA = 1 - 2.0**-53
_SMALLEST_START = -690.0  # log P of the first value must be representable
_LARGEST_MEAN = 1e6
_TAIL = 2.0**-70


@float64_function(eta=SHAPE, gamma=OPEN_UNIT)
def mean_num_runs(eta: Numbers, gamma: Numbers) -> Floats:
    """Return the mean of the truncated negative binomial number of runs.

    Formula: E[K] = (1 - gamma) eta / (gamma (1 - gamma^eta)), at eta = 0 (1 - gamma) / (gamma log(1/gamma)).

    Args:
        eta: shape, > -1; 1 is the geometric law and 0 the logarithmic one.
        gamma: number strictly between 0 and 1; smaller means more runs.

    Returns:
        mean > 1, of the broadcast shape; exact; inf for gamma below 2^-1022, the smallest normal number.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Papernot and Steinke, arXiv:2110.03620, Definition 1.

    >>> print(mean_num_runs(1.0, 0.1), f"{mean_num_runs(0.0, 0.1):.4f}")
    10.0 3.9087
    """
    return mean_kernel(eta, gamma)


@float64_function(rounding="down", mean=MEAN_ABOVE_ONE, eta=SHAPE)
def gamma_for_mean_num_runs(mean: Numbers, eta: Numbers) -> Floats:
    """Return the gamma at which the truncated negative binomial number of runs has a given mean.

    Formula: the root gamma of `mean_num_runs`(eta, gamma) = mean.

    Args:
        mean: mean number of runs, in (1, 1e6].
        eta: shape, > -1.

    Returns:
        gamma in (0, 1), of the broadcast shape; the mean is at least the given one, up to 1e-12 of it. NaN where no
        gamma between 2^-1000 and 1 - 2^-53 has it (eta close to -1, or above 1e14). Give this very number to the
        sampler and to the bound.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference: Papernot and Steinke, arXiv:2110.03620, Definition 1.

    >>> print(f"{gamma_for_mean_num_runs(10.0, 1.0):.6f}")
    0.100000
    """
    shape = jnp.broadcast_shapes(mean.shape, eta.shape)

    def is_enough(gamma: Array) -> Array:
        return mean_kernel(eta, gamma) >= mean

    smallest = jnp.full(shape, _SMALLEST_GAMMA)
    largest = jnp.full(shape, _LARGEST_GAMMA)
    gamma, _ = bisect(is_enough, smallest, largest, midpoint=geometric_midpoint, num_iterations=64)
    return jnp.where(is_enough(smallest) & ~is_enough(largest), gamma, jnp.nan)


def sample_num_runs(
    key: PRNGKeyArray,
    *,
    distribution: str = "negative_binomial",
    eta: Numbers | None = None,
    gamma: Numbers | None = None,
    mean: Numbers | None = None,
    shape: tuple[int, ...] | None = None,
) -> Int[Array, "..."]:
    """Draw the number of training runs to make before the best one is released.

    The number itself is private: publish neither it nor the runs that lost. Draw it from a key of its own.

    Formula: P(K = k) of the module docstring, or e^{-mean} mean^k / k!.

    Args:
        key: a jax PRNG key.
        distribution: "negative_binomial" (truncated, K >= 1) or "poisson" (K >= 0; with 0 runs release nothing).
        eta: shape > -1, for "negative_binomial".
        gamma: number strictly between 0 and 1, for "negative_binomial".
        mean: mean number of runs in (0, 600], for "poisson".
        shape: shape of the result, by default that of the parameters broadcast together.

    Returns:
        whole numbers, int32; the exact law up to rounding (see the module docstring). -1 where a traced argument is
        outside its range.

    Raises:
        ValueError: an unknown distribution, a missing or superfluous parameter, an argument outside its range, or
            shapes that do not broadcast.

    Reference: Papernot and Steinke, arXiv:2110.03620, Definition 1.

    >>> import jax
    >>> runs = sample_num_runs(jax.random.key(1), eta=1.0, gamma=0.1, shape=(5,))
    >>> bool((runs >= 1).all())
    True
    """
    check_parameters(distribution, eta=eta, gamma=gamma, mean=mean)
    if distribution == "poisson":
        check("mean", mean, _SAMPLED_MEAN)
        parameters: tuple[Array, ...] = (mean,)
    else:
        check("eta", eta, SHAPE)
        check("gamma", gamma, OPEN_UNIT)
        parameters = (eta, gamma)
    parameters_shape = np.broadcast_shapes(*[np.shape(parameter) for parameter in parameters])
    shape = parameters_shape if shape is None else check_positions("shape", shape)
    if np.broadcast_shapes(shape, parameters_shape) != shape:
        raise ValueError(f"shape must hold the parameters' shape {parameters_shape}, got {shape}")

    words = bits(key, (2, *shape))
    sample = _poisson_from_bits if distribution == "poisson" else _negative_binomial_from_bits
    runs = sample(words[0], words[1], *parameters)
    if not is_traced(runs) and np.isnan(runs).any():
        raise ValueError(
            "the mean must be at most 1e6 and P(K = 1) at least 1e-299: choose a smaller eta or a larger gamma"
        )
    return jnp.where(runs >= 0, runs, -1.0).astype(jnp.int32)


def check_parameters(
    distribution: str,
    *,
    eta: Array | None = None,
    gamma: Array | None = None,
    mean: Array | None = None,
) -> None:
    """Raise ValueError unless exactly the parameters of the distribution are given."""
    check_choice("distribution", distribution, DISTRIBUTIONS)
    needed = {"mean"} if distribution == "poisson" else {"eta", "gamma"}
    parameters = {"eta": eta, "gamma": gamma, "mean": mean}
    given = {name for name, value in parameters.items() if value is not None}
    if given != needed:
        raise ValueError(
            f"distribution {distribution!r} takes {' and '.join(sorted(needed))}, "
            f"got {' and '.join(sorted(given)) or 'none'} (gamma_for_mean_num_runs turns a mean into a gamma)"
        )


def mean_kernel(eta: Array, gamma: Array) -> Array:
    """Return `mean_num_runs` without its checks, never NaN and never too small."""
    # x / (1 - e^{-x}) at x = eta log(1/gamma), by its series near 0.
    rate = -jnp.log(gamma)
    x = eta * rate
    is_near_zero = jnp.abs(x) < 1e-5
    safe_x = jnp.where(is_near_zero, 1.0, x)
    series = 1 + x / 2 + x * x / 12
    factor = jnp.where(is_near_zero, series, -safe_x / jnp.expm1(-safe_x))

    # log(1/gamma) = -log1p(-(1 - gamma)): the quotient tends to 1 as gamma does.
    mean = (1 - gamma) / gamma * factor / rate

    # Devices take a gamma below the smallest normal number for 0, at which the quotients are NaN.
    return jnp.where(gamma < _SMALLEST_NORMAL, jnp.inf, mean)


@float64_function(high=WHOLE, low=WHOLE, eta=SHAPE, gamma=OPEN_UNIT)
def _negative_binomial_from_bits(
    high: Array,
    low: Array,
    eta: Array,
    gamma: Array,
) -> Array:
    """Return the truncated negative binomial number that two words of random bits stand for."""
    mean = mean_kernel(eta, gamma)
    log_start = (eta + 1) * jnp.log(gamma) + jnp.log(mean)

    def ratio(k: Array) -> Array:
        return (1 - gamma) * (k + eta) / (k + 1)

    return _sequential_search(high, low, 1.0, log_start, mean, ratio)


@float64_function(high=WHOLE, low=WHOLE, mean=_SAMPLED_MEAN)
def _poisson_from_bits(high: Array, low: Array, mean: Array) -> Array:
    """Return the Poisson number that two words of random bits stand for."""

    def ratio(k: Array) -> Array:
        return mean / (k + 1)

    return _sequential_search(high, low, 0.0, -mean, mean, ratio)


def _sequential_search(
    high: Array,
    low: Array,
    first: float,
    log_start: Array,
    mean: Array,
    ratio: Callable[[Array], Array],
) -> Array:
    """Return the smallest k with P(K <= k) >= u, where u is the uniform number of the two words.

    Args:
        high, low: the two words of 32 random bits.
        first: the smallest value of K.
        log_start: log P(K = first).
        mean: the mean of K.
        ratio: P(K = k + 1) / P(K = k) as a function of k.
    """
    # 53 bits make the uniform number.
    uniform = high * 2.0**-32 + (jnp.floor(low * 2.0**-11) + 0.5) * 2.0**-53
    shape = jnp.broadcast_shapes(uniform.shape, log_start.shape)
    is_usable = (log_start >= _SMALLEST_START) & (mean <= _LARGEST_MEAN)
    start = jnp.where(is_usable, jnp.exp(log_start), jnp.nan)
    pmf = jnp.broadcast_to(start, shape)

    # The state is (k, P(K <= k), P(K = k)).
    def is_unfinished(state: tuple[Array, Array, Array]) -> Array:
        k, total, pmf = state
        return (total < uniform) & ((k < mean) | (pmf > _TAIL))

    def is_any_unfinished(state: tuple[Array, Array, Array]) -> Array:
        return jnp.any(is_unfinished(state))

    def step(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        k, total, pmf = state
        continues = is_unfinished(state)
        next_pmf = pmf * ratio(k)
        return (
            jnp.where(continues, k + 1, k),
            jnp.where(continues, total + next_pmf, total),
            jnp.where(continues, next_pmf, pmf),
        )

    start_state = (jnp.full(shape, first), pmf, pmf)
    k, _, _ = jax.lax.while_loop(is_any_unfinished, step, start_state)
    return jnp.where(is_usable, k, jnp.nan)
