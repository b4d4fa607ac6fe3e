"""Operators on trade-off curves: inverse, biconjugate, symmetrization, subsampling, groups, parallel composition.

Composition is in `_compose`, and conversions to (epsilon, delta) and mu are in `_duality`.
"""

import numpy as np

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import is_traced
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve, check_curve, check_symmetric
from gdpjax.tradeoff._derived_curves import Grouped, Hull, Mixture, Subsampled
from gdpjax.tradeoff._gaussian import Gaussian
from gdpjax.tradeoff._laplace import Laplace
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, from_vertices


def inverse(f: Curve) -> Curve:
    """Return the curve with null and alternative exchanged.

    Formula: f^-1(alpha) = inf {t in [0, 1] : f(t) <= alpha}.

    Args:
        f: any trade-off curve.

    Returns:
        A curve; exact, f itself where it is symmetric.

    Raises:
        ValueError: not a curve.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Lemma A.2.

    >>> print(f"{inverse(mixture(Gaussian(2.0), 0.5))(0.5):.6f}")
    0.158655
    """
    return check_curve("f", f).inverse()


def biconjugate(*curves: Curve) -> Curve:
    """Return the largest trade-off curve below all the given ones.

    Formula: (min_i f_i)**, the convex lower envelope of the pointwise minimum. Of one curve it is that curve.

    Args:
        curves: one or more trade-off curves.

    Returns:
        A curve; exact, piecewise linear (and host-side) if all of them are.

    Raises:
        ValueError: not curves, or none.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 2.1.

    >>> f = PiecewiseLinear([0, 0.2, 1], [1, 0.4, 0])
    >>> print(f"{biconjugate(f, inverse(f))(0.3):.6f}")
    0.300000
    """
    if not curves:
        raise ValueError("biconjugate needs at least one curve, got none")
    curves = tuple(check_curve(f"curve {i}", curve) for i, curve in enumerate(curves))
    if len(curves) == 1:
        return curves[0]

    # Concrete curves of one kind have an envelope of that kind.
    if not is_traced(curves):
        gaussians = [curve for curve in curves if isinstance(curve, Gaussian)]
        laplaces = [curve for curve in curves if isinstance(curve, Laplace)]
        polygons = [curve for curve in curves if isinstance(curve, PiecewiseLinear)]
        if len(gaussians) == len(curves):
            mus = [np.asarray(curve.mu, np.float64) for curve in gaussians]
            return Gaussian(np.maximum.reduce(mus))
        if len(laplaces) == len(curves):
            epsilons = [np.asarray(curve.epsilon, np.float64) for curve in laplaces]
            return Laplace(np.maximum.reduce(epsilons))
        if len(polygons) == len(curves):
            alpha = np.concatenate([curve.alpha for curve in polygons])
            beta = np.concatenate([curve.beta for curve in polygons])
            return from_vertices(alpha, beta)

    symmetric = all(curve.is_symmetric() for curve in curves)
    return Hull(curves, symmetric)


def symmetrize(f: Curve) -> Curve:
    """Return the largest symmetric curve below f, which holds for both orders of a pair.

    Formula: min{f, f^-1}**. Of f_p = p f + (1 - p) Id with symmetric f it is C_p(f).

    Args:
        f: any trade-off curve.

    Returns:
        A symmetric curve; exact, f itself where it is symmetric.

    Raises:
        ValueError: not a curve.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Proposition 2.4 and Section 4.2.

    >>> print(f"{symmetrize(mixture(Gaussian(2.0), 0.5))(0.3):.6f}")
    0.358655
    """
    f = check_curve("f", f)
    if f.is_symmetric():
        return f
    if isinstance(f, Mixture) and f.curve.is_symmetric():
        return subsample(f.curve, f.sampling_prob)
    back = inverse(f)
    if isinstance(back, Mixture):
        return symmetrize(back)
    if isinstance(f, PiecewiseLinear):
        return biconjugate(f, back)
    return Hull((f, back), symmetric=True)


def mixture(f: Curve, sampling_prob: Array) -> Curve:
    """Return the curve of one direction of subsampling: the person takes part with probability ``sampling_prob``.

    Formula: f_p = p f + (1 - p) Id. The other direction is `inverse` of it, both together are `subsample`.

    Args:
        f: any trade-off curve.
        sampling_prob: p in [0, 1]; broadcasts against the parameters of f.

    Returns:
        A curve, in general asymmetric; exact.

    Raises:
        ValueError: not a curve, or not a probability.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 4.2.

    >>> print(f"{mixture(Gaussian(1.0), 0.5)(0.05):.6f}")
    0.845244
    """
    return Mixture(check_curve("f", f), sampling_prob)


def subsample(f: Curve, sampling_prob: Array) -> Curve:
    """Return the curve of a mechanism that runs on a random subsample.

    Formula: C_p(f) = min(f_p, f_p^-1)** with f_p = p f + (1 - p) Id: f_p on [0, x*], the straight line
    x* + f_p(x*) - x on [x*, f_p(x*)], f_p^-1 above, where x* = f(x*).

    Args:
        f: symmetric trade-off curve of the mechanism without subsampling.
        sampling_prob: p in [0, 1]; broadcasts against the parameters of f.

    Returns:
        A symmetric curve; exact for one Poisson-subsampled step under add-or-remove-one, and for uniform sampling of a
        fixed size. Do not compose it for several Poisson steps: that is valid but loose. Compose `mixture` instead.

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


def parallel(*curves: Curve) -> Curve:
    """Return the curve of mechanisms that run on disjoint parts of the data.

    A person is in one part only, and the other parts' outputs are the same for both neighbours: what an attacker sees
    is one of the mechanisms, at worst the least private.

    Formula: (min_i f_i)**.

    Args:
        curves: the symmetric trade-off curves of the parts' mechanisms, for adding or removing a person. (Replacing a
            person may touch two parts: compose those two instead.)

    Returns:
        A symmetric curve; a tight lower bound of the truth, namely over which part the person is in.

    Raises:
        ValueError: none, or one that is not a symmetric curve.

    Reference: McSherry, SIGMOD 2009 (parallel composition); Dong, Roth and Su, arXiv:1905.02383, Section 2.

    >>> print(parallel(Gaussian(0.5), Gaussian(1.0)).mu)
    1.0
    """
    for i, curve in enumerate(curves):
        check_symmetric(f"curve {i}", curve, "parallel composition")
    return biconjugate(*curves)
