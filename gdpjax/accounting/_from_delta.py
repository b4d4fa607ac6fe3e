"""The trade-off curve and mu of a run of which brackets on epsilon and delta are known.

f(alpha) is the supremum over e >= 0 of 1 - delta(e) - e^e alpha and of e^{-e} (1 - delta(e) - alpha). On a grid of e
the *lower* bound is the best of its points, with upper bounds on delta. For the *upper* bound, delta(e) on [e_i,
e_{i+1}] is at least delta(e_{i+1}) and e^e at least e^{e_i}; beyond the last point delta is at least 0. mu is that of
`_numeric._dominating`, on a coarser grid.
"""

from collections.abc import Callable

import jax
import numpy as np

from gdpjax._core.checks import at_once
from gdpjax._core.gdp import gdp_mu
from gdpjax._core.types import Bounds
from gdpjax.accounting._numeric._dominating import dominates

_INTERVALS = 32
_SLACK = 1e-12
_LEAST = 1e-12
_HALVINGS = 40

Question = Callable[[np.ndarray], Bounds]


def tradeoff(epsilon_at: Question, delta_at: Question, alpha: np.ndarray) -> Bounds:
    """The bracket on the curve at alpha."""
    inside = alpha[(alpha > 0) & (alpha < 1)]
    least = max(1e-3 * float(inside.min()), _LEAST) if inside.size else 0.5
    top = min(float(epsilon_at(np.asarray(least)).upper), 700.0)
    epsilon = np.linspace(0.0, top, _INTERVALS + 1)
    delta = delta_at(epsilon)
    lower, upper = np.maximum(delta.lower * (1 - _SLACK), 0.0), np.minimum(delta.upper * (1 + _SLACK), 1.0)
    at, ratio = alpha[..., None], np.exp(epsilon)
    below = np.maximum(1.0 - upper - ratio * at, (1.0 - upper - at) / ratio).max(axis=-1)
    next_lower = np.append(lower[1:], 0.0)
    above = np.maximum(1.0 - next_lower - ratio * at, np.maximum(1.0 - next_lower - at, 0.0) / ratio).max(axis=-1)
    below, above = below - _SLACK, above + _SLACK
    return Bounds(np.maximum(below, 0.0), np.clip(above, 0.0, 1.0 - alpha))


def mu(epsilon_at: Question, delta_at: Question, failure: np.ndarray, most: float) -> Bounds:
    """The bracket on mu at a failure probability; ``most`` is a mu that the run surely has."""
    ends = [_one_mu(epsilon_at, delta_at, float(value), most) for value in failure.reshape(-1)]
    lower, upper = (np.asarray(end).reshape(failure.shape) for end in zip(*ends, strict=True))
    return Bounds(lower[()], upper[()])


def _one_mu(epsilon_at: Question, delta_at: Question, failure: float, most: float) -> tuple[float, float]:
    top = float(epsilon_at(np.asarray(failure)).upper)
    if top == 0:
        return 0.0, 0.0
    if not top < np.inf:
        return 0.0, most
    epsilon = np.linspace(0.0, top, _INTERVALS + 1)
    delta = delta_at(epsilon[:-1])
    high = np.append(np.minimum(delta.upper * (1 + _SLACK), 1.0), failure)
    share = (delta.lower * (1 - _SLACK) - failure) / (1 - failure)
    with at_once(), jax.enable_x64(True):
        forced = np.asarray(gdp_mu(epsilon[:-1], np.clip(share, 1e-300, 1 - 1e-16)))
        forced = np.where((share > 1e-300) & ~np.isnan(forced), forced, 0.0)
        lower = min(float(forced.max()) * (1 - 1e-9), most)
        fails, holds = 0.0, most
        for _ in range(_HALVINGS):
            middle = float(np.sqrt(max(fails, 1e-12 * holds)) * np.sqrt(holds))
            if bool(dominates(middle, epsilon, high, failure)):
                holds = middle
            else:
                fails = middle
    return min(lower, holds), holds
