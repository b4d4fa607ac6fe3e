"""The smallest mu with f >= G_mu (x) f_{0, failure}, bracketed.

The statement says delta(e) <= R_mu(e) := d + (1 - d) delta_mu(e) for all e >= 0, d = failure. (Without d the answer is
sqrt(T) / sigma whatever the sampling: in the extreme tail subsampling buys nothing.)

*Lower bound*: each e with its lower bound on delta(e) forces mu to be at least the mu whose curve passes there.

*Upper bound*: a grid 0 = e_0 < ... < e_n, where e_n has a certified delta(e_n) <= d, so that everything beyond holds
for any mu; on the intervals by `gdpjax._core.dominating`. A mu that passes on all of them is an upper bound; bisection
finds the smallest, up to 1e-9, which is right because R_mu increases with mu.
"""

import numpy as np

from gdpjax._core.dominating import dominates
from gdpjax._core.gdp import mu_kernel
from gdpjax._core.types import Bounds
from gdpjax.accounting._numeric import _directions
from gdpjax.accounting._numeric._run_description import Run, trivial_mu

_INTERVALS = 96
_SHARING = 6  # how many neighbouring points of the grid share a contour
_WIDTH = 3e-3


def mu_of_run(run: Run, failure: float) -> Bounds:
    """The bracket on mu of a run."""
    top = _directions.epsilon_of_run(run, np.log(failure)).upper
    if not top > 0:
        return Bounds(0.0, 0.0)
    epsilon = top * (np.arange(_INTERVALS) / _INTERVALS)
    answers = [_directions.log_deltas_of_run(run, group, _WIDTH) for group in epsilon.reshape(-1, _SHARING)]
    low = np.exp(np.concatenate([answer.lower for answer in answers])) * (1.0 - 1e-12)
    high = np.minimum(np.exp(np.concatenate([answer.upper for answer in answers])) * (1.0 + 1e-12), 1.0)

    # The mu that each point forces.
    mixed = (low - failure) / (1.0 - failure)
    forced = np.where(mixed > 1e-300, mu_kernel(np, epsilon, np.clip(mixed, 1e-300, 1.0 - 1e-16)), 0.0)
    lower = np.max(np.nan_to_num(forced, nan=0.0)) * (1.0 - 1e-9)

    # The smallest mu that dominates.
    trivial = trivial_mu(run)
    lower = min(lower, trivial)
    epsilon, high = np.append(epsilon, top), np.append(high, failure)
    fails, holds = lower, trivial
    for _ in range(40):
        middle = np.sqrt(max(fails, 1e-12 * holds)) * np.sqrt(holds)
        if dominates(middle, epsilon, high, failure).all():
            holds = middle
        else:
            fails = middle
        if not fails < holds * (1.0 - 1e-9):
            break
    return Bounds(lower, holds)
