"""A trade-off curve that is known exactly, as a `CertifiedCurve`: `ExactCurve`.

    curve = compose(Gaussian(3.0), Gaussian(4.0))
    curve.exact                     # Gaussian(5.0)
    curve.epsilon(1e-5)             # Bounds, 1e-11 of themselves wide

The curve of exact arithmetic lies between two that are a little worse and a little better than the computed one, and
the answers are `CurveBounds` of these:

* parameters of Gaussians and of (0, delta) pairs are moved by the relative error with which they were computed;
* the vertices of a polygon are moved by it, and by the rounding of its hull. A symmetric polygon is given by the half
  in which alpha is the smaller error, whose digits it has; the mirror image is the rest;
* single curves of other kinds are put between two polygons, as numeric composition does it.
"""

import dataclasses
from collections.abc import Iterator

import numpy as np

from gdpjax._core.checks import is_traced
from gdpjax._core.types import Bounds, Floats, Numbers, pytree_dataclass
from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._certified_curve import CertifiedCurve
from gdpjax.tradeoff._closed_answers import CLOSED
from gdpjax.tradeoff._closed_forms import ApproximateDP, Gaussian
from gdpjax.tradeoff._curve_bounds import CurveBounds
from gdpjax.tradeoff._numeric import numerically, polygon
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear

_UNIT_ROUNDOFF = 2.0**-53
_UNDERFLOW = 1e-300


@pytree_dataclass
class ExactCurve(CertifiedCurve):
    """A symmetric trade-off curve and what it says, in brackets as wide as its rounding.

    Made by `compose`. It is called as the curve is, unpacks into two curves as `CurveBounds` do, and the functions of
    `gdpjax.tradeoff` that take a curve take it, for ``exact``.

    Args:
        exact: the symmetric curve.
        error: static; the relative error with which its parameters or vertices were computed.

    >>> from gdpjax.tradeoff import Gaussian, compose
    >>> curve = compose(Gaussian(3.0), Gaussian(4.0))
    >>> print(f"{curve(0.01):.6f} {curve.tradeoff(0.01).lower:.6f} {curve.mu().upper:.4f}")
    0.003752 0.003752 5.0000
    """

    exact: Curve
    error: float = dataclasses.field(default=0.0, metadata={"static": True})

    def __call__(self, alpha: Numbers) -> Floats:
        """Return the least type II error of a test with type I error at most ``alpha``, as `Curve.__call__`."""
        return self.exact(alpha)

    def __iter__(self) -> Iterator[Curve]:
        return iter((self.lower, self.upper))

    @property
    def lower(self) -> Curve:
        """The curve itself, as of `CurveBounds`."""
        return self.exact

    @property
    def upper(self) -> Curve:
        """The curve itself, as of `CurveBounds`."""
        return self.exact

    def slope(self, alpha: Numbers) -> Floats:
        """Return the derivative f'(alpha) <= 0, as `Curve.slope`."""
        return self.exact.slope(alpha)

    def is_symmetric(self) -> bool:
        """Return True: the curve speaks of both orders of two neighbours."""
        return True

    def _ask(self, question: str, at: Numbers) -> Bounds:
        return getattr(self._bounds(), question)(at)

    def _bounds(self) -> CurveBounds:
        """Return two curves around the one of exact arithmetic, made when they are first asked for."""
        if is_traced(self.exact):
            raise ValueError(
                "certified bounds are read outside compiled code: give known parameters, or use the curve ``exact``"
            )
        if "_made" not in vars(self):
            object.__setattr__(self, "_made", _around(self.exact, self.error))
        return vars(self)["_made"]


def _around(curve: Curve, error: float) -> CurveBounds:
    """Return two curves around the one of exact arithmetic."""
    match curve:
        case Gaussian() if error:
            mu = np.asarray(curve.mu, np.float64)
            lower = Gaussian(mu * (1.0 + error))
            upper = Gaussian(mu * (1.0 - error))
            return CurveBounds(lower, upper)
        case ApproximateDP() if error:
            delta = np.asarray(curve.delta, np.float64)
            larger_delta = np.minimum(delta * (1.0 + error), 1.0)
            smaller_delta = delta * (1.0 - error)
            lower = ApproximateDP(curve.epsilon, larger_delta)
            upper = ApproximateDP(curve.epsilon, smaller_delta)
            return CurveBounds(lower, upper)
        case PiecewiseLinear():
            if np.ndim(curve.alpha) > 1:
                raise ValueError("certified bounds are of one polygon at a time, and these are many")
            return _around_polygon(np.asarray(curve.alpha), np.asarray(curve.beta), error)
    if isinstance(curve, CLOSED):
        return CurveBounds(curve, curve)
    if any(np.ndim(value) for value in curve.shapes().values()):
        raise ValueError(f"certified bounds of {type(curve).__name__} are of one curve at a time, and these are many")
    return numerically([curve], [1])


def _around_polygon(alpha: np.ndarray, beta: np.ndarray, error: float) -> CurveBounds:
    """Return polygons around a symmetric one, whose vertices are right to ``error`` of themselves, 1 - beta and u."""
    # The half in which alpha is the smaller error has alpha's digits; the mirror image is the rest.
    if error:
        is_left = alpha <= 2.0 * beta
        alpha = alpha[is_left]
        beta = beta[is_left]

    # The error of beta: relative to beta or to 1 - beta. The point (0, 1) is exact.
    unit_roundoff = _UNIT_ROUNDOFF if error > 0 else 0.0
    error_near_one = error * (1.0 - beta) + 16.0 * unit_roundoff
    error_of_beta = np.where(beta < 0.5, error * beta, error_near_one)
    is_exact = (alpha == 0) & (beta == 1)
    error_of_beta = np.where(is_exact, 0.0, error_of_beta)

    # Move the vertices both ways. The better alpha gets back what may have underflowed.
    worse_alpha = alpha * (1.0 - error)
    worse_beta = np.maximum(beta - error_of_beta, 0.0)
    underflow = _UNDERFLOW if error > 0 else 0.0
    better_alpha = alpha * (1.0 + error) + np.where(alpha > 0, underflow, 0.0)
    better_alpha = np.minimum(better_alpha, 1.0)
    better_beta = np.minimum(beta + error_of_beta, 1.0)
    lower = polygon([(worse_alpha, worse_beta)], lower=True)
    upper = polygon([(better_alpha, better_beta)], lower=False)
    return CurveBounds(lower, upper)
