"""The whole computation per run, lifted to arrays of runs and to runs in phases; `_certified` adds the public forms.

The losses of the phases of a run add up, so K is a sum over phases; a phase without steps or with sampling_prob 0 does
nothing.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core import checks
from gdpjax._core.gdp import gdp_epsilon
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _dominating, _driver, _tradeoff
from gdpjax.accounting._numeric._batch import batched

_RUN = {"noise_multiplier": checks.POSITIVE, "sampling_prob": checks.UNIT, "num_steps": checks.COUNT}
_PHASES = {**_RUN, "num_steps": checks.WHOLE}
_TINY = 2.3e-308
_SMALLEST_NOISE_SEARCHED = 0.2


def _prepare(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array
) -> tuple[tuple[Array, Array, Array], Array]:
    """Phases as [J] arrays, and whether anything is revealed; p = 0 is computed at a larger p and masked."""
    active = jnp.any((sampling_prob > 0) & (num_steps > 0))
    steps = jnp.where(sampling_prob > 0, num_steps, 0.0)
    phases = (noise_multiplier, jnp.maximum(sampling_prob, 1e-30), jnp.where(active, steps, 1.0))
    sigma, prob, steps = (jnp.atleast_1d(phase) for phase in phases)
    return (sigma, prob, steps), active


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
    sigma, _, steps = phases
    # Without sampling the run is Gaussian with this mu, and sampling reveals less. For the smallest noises the search
    # takes minutes and finds little better.
    gaussian = jnp.sqrt(jnp.sum(steps / sigma**2)) * (1.0 + 1e-12)
    bounds = jax.lax.cond(
        jnp.min(sigma) < _SMALLEST_NOISE_SEARCHED,
        lambda: Bounds(jnp.zeros_like(gaussian), gaussian),
        lambda: _dominating.mu_of_run(*phases, failure),
    )
    return Bounds(jnp.where(active, bounds.lower, 0.0), jnp.where(active, bounds.upper, 0.0))


def _lift(core: Callable[..., Any], **query: checks.Domain) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """``core`` for broadcasting arrays of runs, and for runs in phases (the last axis of the first three arguments)."""
    runs = batched(core, **_RUN, **query)  # pyright: ignore[reportArgumentType]
    return runs, batched(core, num_phase_axes=3, **_PHASES, **query)


epsilon_of_runs, epsilon_of_phases = _lift(_epsilon_core, delta=checks.OPEN_UNIT)
estimate_of_runs, estimate_of_phases = _lift(_estimate_core, delta=checks.OPEN_UNIT)
delta_of_runs, delta_of_phases = _lift(_delta_core, epsilon=checks.NONNEGATIVE)
tradeoff_of_runs, tradeoff_of_phases = _lift(_tradeoff_core, alpha=checks.UNIT)
mu_of_runs, mu_of_phases = _lift(_mu_core, failure=checks.OPEN_UNIT)
