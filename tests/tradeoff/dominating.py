"""The smallest mu that dominates a curve, as the certified answers find it from a bracket."""

from gdpjax.tradeoff import CurveBounds


def dominating_mu(curve, failure=0.0):
    """Return the smallest mu with curve >= G_mu (x) f_{0, failure}."""
    return CurveBounds(curve, curve).mu(failure).upper
