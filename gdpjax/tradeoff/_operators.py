"""Operators on trade-off curves: symmetrization, subsampling, groups.

Composition is in `_compose`, and conversions to (epsilon, delta) and mu are in `_duality`.
"""

import numpy as np

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import is_traced
from gdpjax._core.types import Array, Numbers
from gdpjax.tradeoff._abstract import Curve, check_curve, check_symmetric
from gdpjax.tradeoff._closed_forms import Gaussian, Laplace
from gdpjax.tradeoff._derived_curves import Grouped, Inverse, Mixture, Subsampled
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, from_vertices


def symmetrize(f: Curve) -> Curve:
    """Return the largest symmetric curve below f, which holds for both orders of a pair.

    Formula: min{f, f^-1}**. Of f_p = p f + (1 - p) Id with symmetric f it is C_p(f).

    Args:
        f: any trade-off curve.

    Returns:
        A symmetric curve; exact, f itself where it is symmetric.

    Raises:
        ValueError: not a curve, or neither a polygon nor a mixture of a symmetric one.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Proposition 2.4 and Section 4.2.

    >>> print(f"{symmetrize(subsample(Gaussian(2.0), 0.5).one_direction)(0.3):.6f}")
    0.358655
    """
    f = check_curve("f", f)
    if f.is_symmetric():
        return f
    if isinstance(f, PiecewiseLinear):
        back = f.inverse()
        return from_vertices(np.concatenate([f.alpha, back.alpha]), np.concatenate([f.beta, back.beta]))
    mixture = f.curve if isinstance(f, Inverse) else f
    if not isinstance(mixture, Mixture):
        raise ValueError(f"the symmetric curve below a {type(f).__name__} is not known; give it by its points")
    return subsample(mixture.curve, mixture.sampling_prob)


def subsample(f: Curve, sampling_prob: Numbers) -> Subsampled:
    """Return the curve of a mechanism that runs on a random subsample.

    Formula: C_p(f) = min(f_p, f_p^-1)** with f_p = p f + (1 - p) Id: f_p on [0, x*], the straight line
    x* + f_p(x*) - x on [x*, f_p(x*)], f_p^-1 above, where x* = f(x*).

    Args:
        f: symmetric trade-off curve of the mechanism without subsampling.
        sampling_prob: p in [0, 1]; broadcasts against the parameters of f.

    Returns:
        A symmetric curve; exact for one Poisson-subsampled step under add-or-remove-one, and for uniform sampling of a
        fixed size. Do not compose it for several Poisson steps: that is valid but loose. Compose its ``one_direction``
        instead: f_p, of the direction in which the person is removed.

    Raises:
        ValueError: f not a symmetric curve, or not a probability.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorem 4.2; Bu, Dong, Long and Su, arXiv:1911.11607, Section 3.

    >>> print(f"{subsample(Gaussian(1.8), 0.35)(0.05):.6f}")
    0.770924
    """
    return Subsampled(check_symmetric("f", f, "subsampling"), sampling_prob)


def group(f: Curve, k: int) -> Curve:
    """Return the curve that an f-private mechanism gives a group of k people.

    Formula: 1 - (1 - f)^{o k}, the k-fold iterate. For Gaussians it is G_{k mu}; for Laplace noise also k epsilon.

    Args:
        f: symmetric trade-off curve for one person.
        k: size of the group, a whole number >= 1, static.

    Returns:
        A symmetric curve; exact for the formula (for Gaussian and Laplace noise also attained). Where it is iterated,
        the absolute error is about 1e-15 times the product of the slopes.

    Raises:
        ValueError: f not a symmetric curve, or k not a whole number >= 1.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorem 2.14.

    >>> print(group(Gaussian(0.5), 3).mu)
    1.5
    """
    f = check_symmetric("f", f, "group privacy")
    k = check_count("k", k)
    if isinstance(f, Gaussian):
        return f.replaced(mu=_multiplied(f.mu, k))
    if isinstance(f, Laplace):
        return f.replaced(epsilon=_multiplied(f.epsilon, k))
    if k == 1:
        return f
    return Grouped(f, int(k))


def _multiplied(parameter: Array, k: int) -> Array:
    """Return k times a parameter, in float64 where it is concrete."""
    if is_traced(parameter):
        return k * parameter
    return k * np.asarray(parameter, np.float64)[()]
