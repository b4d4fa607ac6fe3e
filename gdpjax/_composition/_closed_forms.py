"""Runs with a closed form: without sampling, or of a single step.

A run without sampling is one Gaussian mechanism with mu^2 = k^2 sum T / sigma^2. A single subsampled step has

    delta(e) = p delta_{1 / sigma}(e'),        e^{e'} = 1 + (e^e - 1) / p,

where delta_mu is that of the Gaussian mechanism. With p = 1 this is e' = e, so one formula serves both.

    >>> from gdpjax._composition._likelihood_ratio import SubsampledGaussian
    >>> one_step = RunDescription((SubsampledGaussian(noise_multiplier=1.0, sampling_prob=0.5, num_steps=1.0),))
    >>> print(f"{delta(one_step, epsilon=1.0).upper:.6f}")
    0.028868

docs/theory/contour.md has the proof and the slack for rounding ("Closed forms").
"""

import numpy as np

from gdpjax._composition._moments import UNIT_ROUNDOFF
from gdpjax._composition._run_description import RunDescription, gaussian_mu, is_alone
from gdpjax._core.gdp import delta_kernel, subsampled_epsilon_kernel
from gdpjax._core.types import Array, Bounds

_SLACK = 1e-9
"""The relative slack for the rounding of the closed forms."""


def has_closed_form(run: RunDescription) -> bool:
    """Return whether nothing is sampled, or there is only one step, where one example is added or removed."""
    if not is_alone(run):
        return False
    if all(step.sampling_prob == 1.0 for step in run.steps):
        return True
    is_one_step = sum(step.num_steps * step.num_rows for step in run.steps) == 1.0
    return is_one_step and not run.steps[0].replaced


def epsilon(run: RunDescription, delta: float) -> Bounds:
    """Bracket the smallest epsilon at delta of a run with a closed form."""
    sampling_prob = run.steps[0].sampling_prob
    value = subsampled_epsilon_kernel(np, delta, sampling_prob, gaussian_mu(run))
    # Where epsilon is close to zero delta fixes it absolutely.
    lower = value * (1.0 - _SLACK) - 1e-12
    upper = value * (1.0 + _SLACK) + 1e-12
    return Bounds(max(lower, 0.0), upper)


def delta(run: RunDescription, epsilon: float) -> Bounds:
    """Bracket delta at epsilon of a run with a closed form. The caller undoes underflow to zero."""
    sampling_prob = run.steps[0].sampling_prob
    # e' = log(1 + (e^epsilon - 1) / p), without cancellation at small epsilon and without overflow at large epsilon.
    if epsilon < 1.0:
        inner_epsilon = np.log1p(np.expm1(epsilon) / sampling_prob)
    else:
        missed = (sampling_prob - 1.0) * np.exp(-epsilon)
        inner_epsilon = epsilon + np.log1p(missed) - np.log(sampling_prob)
    lower, upper = gaussian_delta(inner_epsilon, gaussian_mu(run))
    return Bounds(sampling_prob * lower, sampling_prob * upper)


def gaussian_delta(epsilon: float, mu: Array) -> Bounds:
    """Bracket delta at epsilon of a Gaussian mechanism, where both are right to eight roundings of their own size."""
    value = delta_kernel(np, np.asarray(epsilon), np.asarray(mu))

    # x = epsilon / mu - mu / 2 is off by as much of the sum of its terms, and log delta feels |x| + 1 times that.
    safe_mu = np.maximum(mu, 1e-300)
    quotient = epsilon / safe_mu
    x_size = np.abs(quotient - 0.5 * mu)
    moved = 16.0 * UNIT_ROUNDOFF * (x_size + 1.0) * (quotient + mu)

    lower = value * np.exp(-moved) * (1.0 - 2.0 * _SLACK)
    upper = value * np.exp(moved) * (1.0 + 2.0 * _SLACK)
    return Bounds(lower, np.fmin(upper, 1.0))
