r"""Composition by the central limit theorem: a Gaussian curve, and a certified band around the truth.

    limit = berry_esseen(Laplace(0.1), times=100)
    limit.bounds(0.2)               # Bounds(lower, upper) on the composition at alpha = 0.2

For symmetric f_1 ... f_n the privacy loss of the composition is a sum of independent losses. With

    mu = 2 sum kl / sqrt(sum kappa2 - sum kl^2),    gamma = 0.56 sum kappa3bar / (sum kappa2 - sum kl^2)^{3/2},

if gamma < 1/2, the Berry-Esseen theorem gives for alpha in [gamma, 1 - gamma]

    G_mu(alpha + gamma) - gamma <= f_1 (x) ... (x) f_n (alpha) <= G_mu(alpha - gamma) + gamma.

The composition is non-increasing, so that the lower bound extends as a constant to alpha < gamma; above 1 - gamma it is
0. The upper one is 1 - alpha on the left, and its value at 1 - gamma (or 1 - alpha) on the right. For arrays of curves
with sum kl -> K, sum kappa2 -> s^2, max kl -> 0 and sum kappa3 -> 0 the limit is G_{2K/s}.

The moments are computed to a relative 1e-7 or better (`_loss_moments`); gamma is enlarged by 1e-6 of itself and by 1e-9
(1 + mu) for the rounding of mu, since moving mu by d moves G_mu by at most d phi(0). Curves whose moments come from a
polygon in place of the curve are refused.
"""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp

from gdpjax._core.checks import COUNT, NONNEGATIVE, UNIT, check_scalar
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Bounds
from gdpjax.tradeoff import _loss_moments
from gdpjax.tradeoff._abstract import Curve, check_symmetric
from gdpjax.tradeoff._gaussian import Gaussian


@float64_function(alpha=UNIT, mu=NONNEGATIVE, gamma=NONNEGATIVE)
def _band(alpha: Array, mu: Array, gamma: Array) -> Bounds:
    """Return the Berry-Esseen bounds at alpha; trivial ones where gamma >= 1/2."""
    curve = Gaussian(0.0).replaced(mu=mu)
    inside = jnp.clip(alpha, gamma, 1.0 - gamma)

    # G_mu(alpha + gamma) - gamma, constant to the left, and 0 beyond 1 - gamma.
    to_the_right = jnp.clip(inside + gamma, 0.0, 1.0)
    lower = curve.value(to_the_right) - gamma
    lower = jnp.where(alpha > 1.0 - gamma, 0.0, lower)

    # G_mu(alpha - gamma) + gamma, constant to the right, and nothing to the left of gamma.
    to_the_left = jnp.clip(inside - gamma, 0.0, 1.0)
    upper = curve.value(to_the_left) + gamma
    upper = jnp.where(alpha < gamma, 1.0, upper)

    # No curve is above 1 - alpha.
    largest = 1.0 - alpha
    is_usable = gamma < 0.5
    lower = jnp.where(is_usable, jnp.clip(lower, 0.0, largest), 0.0)
    upper = jnp.where(is_usable, jnp.minimum(upper, largest), largest)
    return Bounds(lower, upper)


class NormalApproximation(NamedTuple):
    """G_mu in place of a composition, with a certified band around the truth.

    ``curve`` is asymptotic: it may lie above the truth. ``band_mu`` and ``gamma`` are of the Berry-Esseen theorem.
    """

    curve: Gaussian
    band_mu: Array
    gamma: Array

    def bounds(self, alpha: Array) -> Bounds:
        """Certified bracket on the composition at ``alpha`` in [0, 1]; trivial where gamma >= 1/2."""
        return _band(alpha, self.band_mu, self.gamma)


class _SumsOfMoments(NamedTuple):
    """Sums of the moments of several curves, in the notation of `_loss_moments`."""

    kl: float
    kl_squared: float
    kappa2: float
    kappa3bar: float


def _sum_moments(curves: tuple[Curve, ...], times: int) -> _SumsOfMoments:
    """Return ``times`` the sums of the moments of the curves; raise ValueError where there is no limit theorem."""
    check_scalar("times", times, COUNT)
    if not curves:
        raise ValueError("a limit theorem needs at least one curve, got none")
    symmetric_curves = []
    for i, curve in enumerate(curves):
        symmetric_curves.append(check_symmetric(f"curve {i}", curve, "a limit theorem"))
    for curve in symmetric_curves:
        if not _loss_moments.is_precise(curve):
            raise ValueError(
                f"the moments of {type(curve).__name__} are not known precisely enough for a certified band; "
                "compose it numerically, or give the piecewise-linear curve of its bounds"
            )

    # A row of moments for each curve.
    rows = np.empty((len(symmetric_curves), 4))
    for row, curve in zip(rows, symmetric_curves, strict=True):
        kl = _loss_moments.kl(curve)
        kappa2 = _loss_moments.kappa2(curve)
        kappa3bar = _loss_moments.kappa3bar(curve)
        row[:] = kl, kl * kl, kappa2, kappa3bar
    if not np.isfinite(rows).all():
        raise ValueError("a curve with f(0) < 1 has infinite moments: no limit theorem; compose it numerically")
    sums = times * rows.sum(axis=0)
    return _SumsOfMoments(*sums.tolist())


def berry_esseen(*curves: Curve, times: int = 1) -> NormalApproximation:
    """Return the Gaussian curve nearest to a composition, with the certified band of the Berry-Esseen theorem.

    Formula: mu = 2 sum kl / sqrt(sum kappa2 - sum kl^2), gamma = 0.56 sum kappa3bar / (sum kappa2 - sum kl^2)^{3/2},
    G_mu(alpha + gamma) - gamma <= f_1 (x) ... (x) f_n (alpha) <= G_mu(alpha - gamma) + gamma.

    Args:
        curves: symmetric trade-off curves with concrete parameters (host-side).
        times: how often the whole list is composed, a whole number >= 1.

    Returns:
        A `NormalApproximation`: ``.curve`` asymptotic, ``.bounds(alpha)`` certified, ``.gamma`` its half width.

    Raises:
        ValueError: a curve that is not symmetric, is traced, or has f(0) < 1; no privacy loss at all.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorem 3.4.

    >>> from gdpjax.tradeoff import Laplace
    >>> limit = berry_esseen(Laplace(0.1), times=100)
    >>> print(f"{limit.band_mu:.4f} {limit.gamma:.4f}")
    0.9844 0.0569
    """
    sums = _sum_moments(curves, times)
    variance = sums.kappa2 - sums.kl_squared
    if not variance > 0:
        raise ValueError("no curve has any privacy loss: the composition is the identity")
    mu = 2.0 * sums.kl / np.sqrt(variance)
    gamma = 0.56 * sums.kappa3bar / variance**1.5
    # The moments are right to 1e-7 of themselves, and mu is rounded.
    gamma = gamma * (1.0 + 1e-6) + 1e-9 * (1.0 + mu)
    return NormalApproximation(Gaussian(mu), mu, gamma)


def central_limit(*curves: Curve, times: int = 1) -> NormalApproximation:
    """Return the limit curve of a composition of many curves, each with a small privacy loss.

    Formula: G_mu with mu = 2 K / s, K = sum kl, s^2 = sum kappa2.

    Args:
        curves: symmetric trade-off curves with concrete parameters (host-side).
        times: how often the whole list is composed, a whole number >= 1.

    Returns:
        A `NormalApproximation`: the curve is asymptotic and may overstate privacy; ``.bounds(alpha)`` is the certified
        band of `berry_esseen`.

    Raises:
        ValueError: as `berry_esseen`.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorem 3.5.

    >>> from gdpjax.tradeoff import ApproximateDP
    >>> print(f"{central_limit(ApproximateDP(0.1), times=100).curve.mu:.4f}")
    0.9992
    """
    band = berry_esseen(*curves, times=times)
    sums = _sum_moments(curves, times)
    mu = 2.0 * sums.kl / np.sqrt(sums.kappa2)
    return band._replace(curve=Gaussian(mu))
