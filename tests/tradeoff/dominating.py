"""The smallest mu that dominates a curve, as the certified answers find it; and one direction of a subsampled one."""

from gdpjax.tradeoff import CurveBounds, subsample


def dominating_mu(curve, failure=0.0):
    """Return the smallest mu with curve >= G_mu (x) f_{0, failure}."""
    return CurveBounds(curve, curve).mu(failure).upper


def one_direction(curve, sampling_prob):
    """Return p f + (1 - p) Id, which is one direction of the subsampled curve."""
    return subsample(curve, sampling_prob).one_direction
