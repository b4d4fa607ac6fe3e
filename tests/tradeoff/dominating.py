"""The smallest mu that dominates a curve, as the certified answers find it; and one direction of a subsampled one."""

import numpy as np

from gdpjax.tradeoff import delta, epsilon, subsample
from gdpjax.tradeoff._duality import smallest_mu


def dominating_mu(curve, failure=0.0):
    """Return the smallest mu with curve >= G_mu (x) f_{0, failure}."""
    end = float(epsilon(curve, failure))
    if end == 0 or end == np.inf:
        return end
    return smallest_mu(lambda points: np.asarray(delta(curve, points)), failure, end * (1 + 1e-12))


def one_direction(curve, sampling_prob):
    """Return p f + (1 - p) Id, which is one direction of the subsampled curve."""
    return subsample(curve, sampling_prob).one_direction
