"""Runs in closed form: without sampling, or of a single step.

Without sampling the run is one Gaussian mechanism, mu^2 = k^2 sum T / sigma^2. A single step under "remove" has

    sup_S (1 - p) Q(S) + p P(S) - e^e Q(S) = p sup_S P(S) - e^{e'} Q(S) = p delta_{1/sigma}(e'),
    e^{e'} = 1 + (e^e - 1) / p,

with P, Q = N(1, sigma^2), N(0, sigma^2) and delta_mu that of the Gaussian mechanism. "add" is never worse at e >= 0:
the one-step curve f_p lies below its inverse where its slope is below -1 (Dong, Roth and Su, arXiv:1905.02383, Section
4). The symmetric step has the same delta. Without sampling e' = e, so one formula serves both.

A computed value is off by a few ulp of e' and mu, which log delta_mu feels up to x^2 < 1400 times where delta is above
1e-300 (x = e' / mu - mu / 2): far below the 1e-9 by which values are moved to the safe side. The inverse is taken at
delta_mu = delta / p, which may be as close to 1 as delta is to p; `gdpjax._core.gdp` works from 1 - delta / p there.
"""

from typing import NamedTuple

import jax.numpy as jnp

from gdpjax._core.gdp import gdp_delta, subsampled_epsilon
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric._run import Run, alone, gaussian_mu

_SLACK = 1e-9


class Closed(NamedTuple):
    """Whether the run has a closed form, and its mu and p."""

    applies: Array
    mu: Array
    sampling_prob: Array


def closed_form(run: Run) -> Closed:
    """The closed form of a run, where there is one."""
    steps = run.steps
    used = steps.num_steps > 0
    unsampled = jnp.all(~used | (steps.sampling_prob == 1.0))
    single = (jnp.sum(steps.num_steps) == 1.0) & jnp.all(jnp.asarray(steps.group_size) == 1)
    p = jnp.max(jnp.where(used, steps.sampling_prob, 0.0))
    return Closed((unsampled | single) & alone(run) & jnp.any(used), gaussian_mu(run), p)


def epsilon(form: Closed, delta: Array) -> Bounds:
    """The smallest epsilon at delta."""
    value = subsampled_epsilon(delta, form.sampling_prob, form.mu)
    # Where epsilon is close to zero delta fixes it absolutely.
    return Bounds(jnp.maximum(value * (1.0 - _SLACK) - 1e-12, 0.0), value * (1.0 + _SLACK) + 1e-12)


def delta(form: Closed, epsilon: Array) -> Bounds:
    """delta at epsilon; underflow to zero is undone by the caller."""
    p = form.sampling_prob
    small = jnp.log1p(jnp.expm1(jnp.minimum(epsilon, 1.0)) / p)
    large = epsilon + jnp.log1p((p - 1.0) * jnp.exp(-epsilon)) - jnp.log(p)
    value = p * gdp_delta(jnp.where(epsilon < 1.0, small, large), form.mu)
    return Bounds(value * (1.0 - _SLACK), value * (1.0 + _SLACK))
