"""The smallest mu with f >= G_mu (x) f_{0, failure}, bracketed.

The statement says delta(e) <= R_mu(e) := d + (1 - d) delta_mu(e) for all e >= 0, d = failure. (Without d the answer is
sqrt(T) / sigma whatever the sampling: in the extreme tail subsampling buys nothing.)

*Lower bound*: each e with its lower bound on delta(e) forces mu to be at least the mu whose curve passes there.

*Upper bound*: a grid 0 = e_0 < ... < e_n, where e_n has a certified delta(e_n) <= d, so that everything beyond holds
for any mu. In y = e^e both sides are convex (suprema of linear functions of y), so on [y_i, y_{i+1}] the left side is
below the chord through its upper bounds, and R_mu above its tangent at a point y_m in between,

    R_mu(y_m) - (1 - d) Phi(-e_m / mu - mu / 2) (y - y_m).

Two linear functions need comparing at the two ends only. A mu that passes on all intervals is an upper bound;
bisection finds the smallest, up to 1e-6, which is right because R_mu increases with mu. Rounding of the closed forms
(1e-12 relative) is covered by comparing with 1e-9 to spare.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr

from gdpjax._core.gdp import gdp_delta, gdp_mu
from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _driver
from gdpjax.accounting._numeric._run import Run, trivial_mu

_INTERVALS = 96
_SHARING = 6  # how many neighbouring points of the grid share a contour
_WIDTH = 3e-3


def mu_of_run(run: Run, failure: Array) -> Bounds:
    """The bracket on mu of a run."""
    top = _driver.epsilon_of_run(run, jnp.log(failure)).upper
    epsilon = top * (np.arange(_INTERVALS) / _INTERVALS)
    groups = epsilon.reshape(-1, _SHARING)
    answer = jax.lax.map(lambda group: _driver.log_deltas_of_run(run, group, _WIDTH), groups)
    answer = jax.tree.map(lambda leaf: leaf.reshape(-1), answer)
    low = jnp.exp(answer.lower) * (1.0 - 1e-12)
    high = jnp.minimum(jnp.exp(answer.upper) * (1.0 + 1e-12), 1.0)
    mixed = (low - failure) / (1.0 - failure)
    forced = jnp.where(mixed > 1e-300, gdp_mu(epsilon, jnp.clip(mixed, 1e-300, 1.0 - 1e-16)), 0.0)
    lower = jnp.max(jnp.where(jnp.isnan(forced), 0.0, forced)) * (1.0 - 1e-9)
    trivial = trivial_mu(run)
    ends = jnp.append(epsilon, top), jnp.append(high, failure)

    def narrow(_: int, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        fails, holds = bracket
        middle = jnp.sqrt(jnp.maximum(fails, 1e-12 * holds)) * jnp.sqrt(holds)
        good = dominates(middle, *ends, failure)
        return jnp.where(good, fails, middle), jnp.where(good, middle, holds)

    lower = jnp.minimum(lower, trivial)
    _, upper = jax.lax.fori_loop(np.int32(0), np.int32(40), narrow, (lower, trivial))
    return Bounds(jnp.where(top > 0, lower, 0.0), jnp.where(top > 0, upper, 0.0))


def dominates(mu: Array, epsilon: Array, bound: Array, failure: Array) -> Array:
    """Whether the tangents of R_mu lie above the chords through (epsilon, bound), on every interval."""
    left, right = epsilon[:-1], epsilon[1:]
    middle = 0.5 * (left + right)
    level = gdp_delta(middle, mu)
    slope = jnp.exp(middle + log_ndtr(-middle / mu - 0.5 * mu))  # e^{e_m} Phi(-e_m / mu - mu / 2) <= delta-like

    def tangent(e: Array) -> Array:
        change = slope * jnp.expm1(e - middle)
        return failure + (1.0 - failure) * (level - change - 1e-9 * (level + jnp.abs(change)))

    return jnp.all((tangent(left) >= bound[:-1]) & (tangent(right) >= bound[1:] * (1.0 - 1e-12)))
