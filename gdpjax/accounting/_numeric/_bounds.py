"""The public functions: brackets on epsilon and delta of T Poisson-subsampled Gaussian steps."""

import jax.numpy as jnp

from gdpjax._core import checks
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _driver
from gdpjax.accounting._numeric._batch import batched

_RUN = {"noise_multiplier": checks.POSITIVE, "sampling_prob": checks.UNIT, "num_steps": checks.COUNT}
_TINY = 2.3e-308


def _epsilon_core(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array) -> Bounds:
    phase = (noise_multiplier[None], jnp.maximum(sampling_prob, 1e-30)[None], num_steps[None])
    bounds = _driver.epsilon_of_run(*phase, jnp.log(delta))
    # p = 0 reveals nothing; its bracket was computed for a larger p.
    return Bounds(jnp.where(sampling_prob > 0, bounds.lower, 0.0), jnp.where(sampling_prob > 0, bounds.upper, 0.0))


def _delta_core(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, epsilon: Array) -> Bounds:
    phase = (noise_multiplier[None], jnp.maximum(sampling_prob, 1e-30)[None], num_steps[None])
    log_bounds = _driver.log_delta_of_run(*phase, epsilon)
    upper = jnp.minimum(jnp.exp(log_bounds.upper) * (1.0 + 1e-12) + _TINY, 1.0)
    lower = jnp.maximum(jnp.exp(log_bounds.lower) * (1.0 - 1e-12) - _TINY, 0.0)
    return Bounds(jnp.where(sampling_prob > 0, lower, 0.0), jnp.where(sampling_prob > 0, upper, 0.0))


_epsilon_bounds = batched(_epsilon_core, rounding="outward", **_RUN, delta=checks.OPEN_UNIT)
_delta_bounds = batched(_delta_core, rounding="outward", **_RUN, epsilon=checks.NONNEGATIVE)


def epsilon_bounds(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array) -> Bounds:
    """Certified bracket on the exact epsilon of ``num_steps`` Poisson-subsampled Gaussian steps.

    The smallest epsilon >= 0 with delta(epsilon) <= ``delta``, where delta(epsilon) is the larger of
    sup_S P(S) - e^epsilon Q(S) and sup_S Q(S) - e^epsilon P(S) for P = ((1 - p) N(0, sigma^2) + p N(1, sigma^2))^T and
    Q = N(0, sigma^2)^T, i.e. neighbours that differ by adding or removing one example.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, > 0.
        sampling_prob: probability that an example takes part in a step, in [0, 1].
        num_steps: number of steps, a whole number >= 1.
        delta: in (0, 1). All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape. Certified: the truth, in exact arithmetic, lies in between.
        The relative width is below 1e-3 (or the width below 1e-6) for ordinary runs, larger in hard corners.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference:
        Dong, Roth, Su, arXiv:1905.02383 (definitions); Gopi, Lee, Wutschitz, arXiv:2106.02848 (numerical composition).

    >>> bounds = epsilon_bounds(1.0, 0.01, 1000, 1e-5)
    >>> bool(bounds.lower <= 1.82824 <= bounds.upper), bool(bounds.upper < 1.001 * bounds.lower)
    (True, True)
    """
    return _epsilon_bounds(noise_multiplier, sampling_prob, num_steps, delta)


def delta_bounds(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, epsilon: Array) -> Bounds:
    """Certified bracket on the exact delta(epsilon) of ``num_steps`` Poisson-subsampled Gaussian steps.

    See `epsilon_bounds` for the definition of delta(epsilon).

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, > 0.
        sampling_prob: probability that an example takes part in a step, in [0, 1].
        num_steps: number of steps, a whole number >= 1.
        epsilon: finite and >= 0. All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified. The relative width is about 1e-2 for ordinary runs,
        larger in hard corners; below 1e-300 only the upper end says something.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference:
        Dong, Roth, Su, arXiv:1905.02383 (definitions); Gopi, Lee, Wutschitz, arXiv:2106.02848 (numerical composition).

    >>> bounds = delta_bounds(1.0, 0.01, 1000, 1.82824)
    >>> bool(bounds.lower <= 1e-5 <= bounds.upper)
    True
    """
    return _delta_bounds(noise_multiplier, sampling_prob, num_steps, epsilon)
