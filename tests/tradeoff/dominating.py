"""The smallest mu that dominates a curve, as the certified answers find it from a bracket."""

import numpy as np

from gdpjax.tradeoff import delta, epsilon
from gdpjax.tradeoff._duality import smallest_mu


def dominating_mu(curve, failure=0.0):
    """Return the smallest mu with curve >= G_mu (x) f_{0, failure}."""
    end = float(epsilon(curve, failure))
    if end == 0 or end == np.inf:
        return end
    return smallest_mu(lambda points: np.asarray(delta(curve, points)), failure, end * (1 + 1e-12))
