"""Runs in closed form: without sampling, or of a single step.

Without sampling the run is one Gaussian mechanism, mu^2 = k^2 sum T / sigma^2. A single step under "remove" has

    sup_S (1 - p) Q(S) + p P(S) - e^e Q(S) = p sup_S P(S) - e^{e'} Q(S) = p delta_{1/sigma}(e'),
    e^{e'} = 1 + (e^e - 1) / p,

with P, Q = N(1, sigma^2), N(0, sigma^2) and delta_mu that of the Gaussian mechanism. "add" is never worse at e >= 0:
the one-step curve f_p lies below its inverse where its slope is below -1 (Dong, Roth and Su, arXiv:1905.02383, Section
4). The symmetric step has the same delta. Without sampling e' = e, so one formula serves both.

A computed e' and mu are off by a few ulp, and x = e' / mu - mu / 2 by as much of e' / mu + mu, of which it is the
difference. log delta_mu feels |x| + 1 times that at most; values are moved by it, and by 1e-9, to the safe side.
epsilon itself is of the size of mu^2, and feels a few ulp of that. The inverse is taken at
delta_mu = delta / p, which may be as close to 1 as delta is to p; `gdpjax._core.gdp` works from 1 - delta / p there.
"""

import numpy as np

from gdpjax._core.gdp import delta_kernel, subsampled_epsilon_kernel
from gdpjax._core.types import Bounds
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF
from gdpjax.accounting._numeric._run_description import Run, gaussian_mu, is_alone

_SLACK = 1e-9


def has_closed_form(run: Run) -> bool:
    """Whether nothing is sampled, or there is only one step, of one example."""
    if not is_alone(run):
        return False
    unsampled = all(step.sampling_prob == 1.0 for step in run.steps)
    return unsampled or sum(step.num_steps * step.group_size for step in run.steps) == 1.0


def epsilon(run: Run, delta: float) -> Bounds:
    """The smallest epsilon at delta, of a run with a closed form."""
    value = subsampled_epsilon_kernel(np, delta, run.steps[0].sampling_prob, gaussian_mu(run))
    # Where epsilon is close to zero delta fixes it absolutely.
    return Bounds(max(value * (1.0 - _SLACK) - 1e-12, 0.0), value * (1.0 + _SLACK) + 1e-12)


def delta(run: Run, epsilon: float) -> Bounds:
    """delta at epsilon, of a run with a closed form; underflow to zero is undone by the caller."""
    p = run.steps[0].sampling_prob
    if epsilon < 1.0:
        inner = np.log1p(np.expm1(epsilon) / p)
    else:
        inner = epsilon + np.log1p((p - 1.0) * np.exp(-epsilon)) - np.log(p)
    lower, upper = gaussian_delta(inner, gaussian_mu(run))
    return Bounds(p * lower, p * upper)


def gaussian_delta(epsilon: float, mu: float) -> Bounds:
    """delta at epsilon of a Gaussian mechanism, where both are right to eight roundings of their own size."""
    value = delta_kernel(np, np.asarray(epsilon), np.asarray(mu))
    safe = max(mu, 1e-300)
    moved = 16.0 * UNIT_ROUNDOFF * (np.abs(epsilon / safe - 0.5 * mu) + 1.0) * (epsilon / safe + mu)
    least = value * np.exp(-moved) * (1.0 - 2.0 * _SLACK)
    return Bounds(least, np.fmin(value * np.exp(moved) * (1.0 + 2.0 * _SLACK), 1.0))
