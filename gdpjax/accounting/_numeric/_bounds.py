"""The public functions: brackets on epsilon and delta of T Poisson-subsampled Gaussian steps."""

import jax.numpy as jnp

from gdpjax._core import checks
from gdpjax._core.gdp import gdp_epsilon
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _dominating, _driver, _tradeoff
from gdpjax.accounting._numeric._batch import batched

_RUN = {"noise_multiplier": checks.POSITIVE, "sampling_prob": checks.UNIT, "num_steps": checks.COUNT}
_PHASES = {**_RUN, "num_steps": checks.WHOLE}
_TINY = 2.3e-308


def _prepare(noise_multiplier: Array, sampling_prob: Array, num_steps: Array) -> tuple[tuple[Array, ...], Array]:
    """Phases as [J] arrays, and whether anything is revealed; p = 0 is computed at a larger p and masked."""
    active = jnp.any((sampling_prob > 0) & (num_steps > 0))
    steps = jnp.where(sampling_prob > 0, num_steps, 0.0)
    phases = (noise_multiplier, jnp.maximum(sampling_prob, 1e-30), jnp.where(active, steps, 1.0))
    return tuple(jnp.atleast_1d(phase) for phase in phases), active


def _epsilon_core(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array) -> Bounds:
    phases, active = _prepare(noise_multiplier, sampling_prob, num_steps)
    answer = _driver.epsilon_of_run(*phases, jnp.log(delta))
    # Without sampling the run is Gaussian, in closed form (1e-13 relative); with sampling it reveals less.
    sigma, p, steps = phases
    gaussian = gdp_epsilon(delta, jnp.sqrt(jnp.sum(steps / sigma**2)))
    exact = jnp.all((p == 1.0) | (steps == 0)) & (gaussian < jnp.inf)
    lower = jnp.where(exact, jnp.maximum(answer.lower, gaussian * (1.0 - 1e-10)), answer.lower)
    upper = jnp.fmin(answer.upper, gaussian * (1.0 + 1e-10))
    return Bounds(jnp.where(active, lower, 0.0), jnp.where(active, upper, 0.0))


def _estimate_core(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array) -> Array:
    phases, active = _prepare(noise_multiplier, sampling_prob, num_steps)
    answer = _driver.epsilon_of_run(*phases, jnp.log(delta), width=_driver.ESTIMATE_WIDTH)
    return jnp.where(active, answer.estimate, 0.0)


def _delta_core(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, epsilon: Array) -> Bounds:
    phases, active = _prepare(noise_multiplier, sampling_prob, num_steps)
    answer = _driver.log_delta_of_run(*phases, epsilon)
    upper = jnp.minimum(jnp.exp(answer.upper) * (1.0 + 1e-12) + _TINY, 1.0)
    lower = jnp.maximum(jnp.exp(answer.lower) * (1.0 - 1e-12) - _TINY, 0.0)
    return Bounds(jnp.where(active, lower, 0.0), jnp.where(active, upper, 0.0))


def _tradeoff_core(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, alpha: Array) -> Bounds:
    phases, active = _prepare(noise_multiplier, sampling_prob, num_steps)
    bounds = _tradeoff.tradeoff_of_run(*phases, jnp.clip(alpha, 1e-300, 1.0 - 1e-16))
    ends = (alpha == 0) | (alpha == 1) | ~active
    return Bounds(jnp.where(ends, 1.0 - alpha, bounds.lower), jnp.where(ends, 1.0 - alpha, bounds.upper))


def _mu_core(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, failure: Array) -> Bounds:
    phases, active = _prepare(noise_multiplier, sampling_prob, num_steps)
    bounds = _dominating.mu_of_run(*phases, failure)
    return Bounds(jnp.where(active, bounds.lower, 0.0), jnp.where(active, bounds.upper, 0.0))


_tradeoff_bounds = batched(_tradeoff_core, **_RUN, alpha=checks.UNIT)
_mu_bounds = batched(_mu_core, **_RUN, failure=checks.OPEN_UNIT)
_epsilon_bounds = batched(_epsilon_core, **_RUN, delta=checks.OPEN_UNIT)
_epsilon_estimate = batched(_estimate_core, **_RUN, delta=checks.OPEN_UNIT)
_delta_bounds = batched(_delta_core, **_RUN, epsilon=checks.NONNEGATIVE)
_phases_epsilon_bounds = batched(_epsilon_core, num_phase_axes=3, **_PHASES, delta=checks.OPEN_UNIT)
_phases_delta_bounds = batched(_delta_core, num_phase_axes=3, **_PHASES, epsilon=checks.NONNEGATIVE)


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


def epsilon_estimate(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array) -> Array:
    """A fast estimate of the epsilon that `epsilon_bounds` brackets, without the bracket.

    The same contour with a thirty times coarser smoothing, whose two one-sided errors cancel to first order.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, > 0.
        sampling_prob: probability that an example takes part in a step, in [0, 1].
        num_steps: number of steps, a whole number >= 1.
        delta: in (0, 1). All arguments broadcast.

    Returns:
        An array of the broadcast shape. An estimate: usually good to 1e-3, on either side of the truth.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference:
        Gopi, Lee, Wutschitz, arXiv:2106.02848 (numerical composition).

    >>> abs(epsilon_estimate(1.0, 0.01, 1000, 1e-5) / 1.82824 - 1) < 2e-3
    np.True_
    """
    return _epsilon_estimate(noise_multiplier, sampling_prob, num_steps, delta)


def tradeoff_bounds(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, alpha: Array) -> Bounds:
    """Certified bracket on the trade-off curve f(alpha) of ``num_steps`` Poisson-subsampled Gaussian steps.

    The largest convex curve below both directions: f = min(f_rem, f_add)**, with f(alpha) the smallest type II error
    of a test of type I error alpha (and its mirror image).

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, > 0.
        sampling_prob: probability that an example takes part in a step, in [0, 1].
        num_steps: number of steps, a whole number >= 1.
        alpha: type I error, in [0, 1]. All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference:
        Dong, Roth, Su, arXiv:1905.02383 (trade-off functions, duality with delta(epsilon), subsampling).

    >>> bounds = tradeoff_bounds(1.0, 0.01, 1000, 0.1)
    >>> bool(0 < bounds.lower < bounds.upper < 0.9)
    True
    """
    return _tradeoff_bounds(noise_multiplier, sampling_prob, num_steps, alpha)


def mu_bounds(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, failure: Array = 1e-10) -> Bounds:
    """Certified bracket on the smallest mu such that the run is mu-GDP except with probability ``failure``.

    f >= G_mu (x) f_{0, failure}, i.e. delta(epsilon) <= failure + (1 - failure) delta_mu(epsilon) for all epsilon >= 0.
    Such statements compose: mus in squares, failures by union.

    Args:
        noise_multiplier: standard deviation of the noise over the sensitivity, > 0.
        sampling_prob: probability that an example takes part in a step, in [0, 1].
        num_steps: number of steps, a whole number >= 1.
        failure: in (0, 1). All arguments broadcast.

    Returns:
        ``Bounds(lower, upper)`` of the broadcast shape, certified: it holds at ``upper`` and fails below ``lower``.

    Raises:
        ValueError: an argument outside its range, or shapes that do not broadcast.

    Reference:
        Dong, Roth, Su, arXiv:1905.02383 (mu-GDP and its dual).

    >>> bounds = mu_bounds(1.0, 0.01, 1000, 1e-10)
    >>> bool(0.3 < bounds.lower < bounds.upper < 2)
    True
    """
    return _mu_bounds(noise_multiplier, sampling_prob, num_steps, failure)


def phases_epsilon_bounds(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array) -> Bounds:
    """`epsilon_bounds` of a run in phases: the last axis of the first three arguments runs over its phases.

    The losses of the phases add up, so K is a sum over phases. Phases with no steps or with sampling_prob 0 do
    nothing. ``delta`` broadcasts against the other axes.

    >>> two = phases_epsilon_bounds([1.0, 1.0], [0.01, 0.01], [400, 600], 1e-5)
    >>> one = epsilon_bounds(1.0, 0.01, 1000, 1e-5)
    >>> bool(abs(two.upper / one.upper - 1) < 1e-6)
    True
    """
    return _phases_epsilon_bounds(noise_multiplier, sampling_prob, num_steps, delta)


def phases_delta_bounds(noise_multiplier: Array, sampling_prob: Array, num_steps: Array, epsilon: Array) -> Bounds:
    """`delta_bounds` of a run in phases, see `phases_epsilon_bounds`."""
    return _phases_delta_bounds(noise_multiplier, sampling_prob, num_steps, epsilon)
