"""Bracket the smallest mu with f >= G_mu (x) f_{0, failure}: mu-GDP but for a failure probability.

The statement says delta(e) <= R_mu(e) := d + (1 - d) delta_mu(e) for all e >= 0, with d = failure. (Without d the
answer is sqrt(T) / sigma whatever the sampling: in the extreme tail subsampling buys nothing.)

*Lower bound*: each e with its lower bound on delta(e) forces mu to be at least the mu whose curve passes there.

*Upper bound*: a grid 0 = e_0 < ... < e_n, where e_n has a certified delta(e_n) <= d, so that everything beyond holds
for any mu; `gdpjax._core.dominating` decides on the intervals. A mu that passes on all of them is an upper bound.
Bisection finds the smallest, up to 1e-9, which is right because R_mu increases with mu.
"""

import numpy as np

from gdpjax._composition import _directions
from gdpjax._composition._run_description import RunDescription, trivial_mu
from gdpjax._core.dominating import dominates
from gdpjax._core.gdp import mu_kernel
from gdpjax._core.types import Array, Bounds

_NUM_INTERVALS = 96
_SHARING = 6
"""How many neighbouring points of the grid share a contour."""
_WIDTH = 3e-3
"""The relative width that brackets on delta aim at."""
_NUM_BISECTIONS = 40
_LEAST_MU = 1e-6
"""Where nothing else is known the search for a mu that the run has begins here."""
_MU_WIDTH = 1e-9
"""The relative width at which the bisection stops, and the room for rounding in the mu that a point forces."""


def mu_of_run(run: RunDescription, failure: float) -> Bounds:
    """Return the bracket on mu of a run.

    Args:
        run: the run.
        failure: the failure probability d, 0 < d < 1.
    """
    # Beyond the last point of the grid delta is at most the failure probability.
    last = _directions.epsilon_of_run(run, np.log(failure)).upper
    if not last > 0:
        return Bounds(0.0, 0.0)
    if last == np.inf:
        return Bounds(0.0, np.inf)
    epsilon = last * (np.arange(_NUM_INTERVALS) / _NUM_INTERVALS)
    delta = _directions.deltas_on_grid(run, epsilon, _SHARING, _WIDTH)
    highest_delta = np.minimum(delta.upper, 1.0)

    trivial = trivial_mu(run)
    lower = min(_forced_mu(epsilon, delta.lower, failure), trivial)
    upper = _dominating_mu(
        epsilon=np.append(epsilon, last),
        delta=np.append(highest_delta, failure),
        failure=failure,
        fails=lower,
        holds=trivial,
    )
    return Bounds(lower, upper)


def _forced_mu(epsilon: Array, delta: Array, failure: float) -> float:
    """Return the largest mu whose R_mu passes through a point (epsilon, lower bound on delta)."""
    # R_mu = delta where delta_mu is this. Nothing is forced where it is not positive.
    delta_mu = (delta - failure) / (1.0 - failure)
    is_forced = delta_mu > 1e-300
    mu = mu_kernel(np, epsilon, np.clip(delta_mu, 1e-300, 1.0 - 1e-16))
    mu = np.nan_to_num(np.where(is_forced, mu, 0.0), nan=0.0)
    return np.max(mu) * (1.0 - _MU_WIDTH)


def _dominating_mu(epsilon: Array, delta: Array, failure: float, fails: float, holds: float) -> float:
    """Return about the smallest mu that dominates, by bisection in the scale of log mu.

    Args:
        epsilon: the grid, its last point included [n + 1].
        delta: upper bounds on delta there [n + 1].
        failure: the failure probability.
        fails: the smallest mu that is looked at.
        holds: a mu that the run has, or inf.
    """
    if holds == np.inf:
        for mu in max(fails, _LEAST_MU) * 2.0 ** np.arange(_NUM_BISECTIONS):
            if dominates(mu, epsilon, delta, failure).all():
                holds = mu
                break
    if holds == np.inf:
        return holds
    for _ in range(_NUM_BISECTIONS):
        mu = np.sqrt(max(fails, 1e-12 * holds)) * np.sqrt(holds)
        if dominates(mu, epsilon, delta, failure).all():
            holds = mu
        else:
            fails = mu
        if not fails < holds * (1.0 - _MU_WIDTH):
            break
    return holds
