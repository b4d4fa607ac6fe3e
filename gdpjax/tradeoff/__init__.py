"""f-DP: trade-off curves and the operators on them.

    curve = compose(Laplace(0.5), times=8)
    curve.epsilon(1e-5)             # Bounds(lower, upper): the truth is in between

Read the modules in this order:

* curves: `_abstract` (what a curve is), `_closed_forms`, `_piecewise_linear`, `_derived_curves` (curves of curves),
  `_operators`;
* their meaning: `_duality` (epsilon, delta and mu), `_limit` (the central limit theorem);
* numeric composition: `_loss_cells`, `_grid`, `_numeric`, `_compose`; derived in docs/theory/numeric_composition.md;
* certified brackets: `_certified_curve`, `_regret`, `_curve_bounds`, `_closed_answers`, `_exact_curve`.
"""

# What is imported under an alias is for the other parts of the library, and not public.
from gdpjax.tradeoff._abstract import Curve as Curve
from gdpjax.tradeoff._certified_curve import CertifiedCurve as CertifiedCurve
from gdpjax.tradeoff._certified_curve import NoGuarantee as NoGuarantee
from gdpjax.tradeoff._certified_curve import each as each
from gdpjax.tradeoff._closed_forms import ApproximateDP, Gaussian, Identity, Laplace
from gdpjax.tradeoff._compose import compose
from gdpjax.tradeoff._curve_bounds import CurveBounds as CurveBounds
from gdpjax.tradeoff._duality import delta, epsilon
from gdpjax.tradeoff._exact_curve import ExactCurve as ExactCurve
from gdpjax.tradeoff._limit import central_limit
from gdpjax.tradeoff._operators import group, subsample, symmetrize
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear

__all__ = [
    "ApproximateDP",
    "Gaussian",
    "Identity",
    "Laplace",
    "PiecewiseLinear",
    "central_limit",
    "compose",
    "delta",
    "epsilon",
    "group",
    "subsample",
    "symmetrize",
]
