r"""Composition by the central limit theorem: a Gaussian curve, and a certified band around the truth.

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
    curve = Gaussian(0.0).replaced(mu=mu)
    usable = gamma < 0.5
    inside = jnp.clip(alpha, gamma, 1.0 - gamma)
    lower = jnp.where(alpha > 1.0 - gamma, 0.0, curve.value(jnp.clip(inside + gamma, 0.0, 1.0)) - gamma)
    upper = jnp.where(alpha < gamma, 1.0, curve.value(jnp.clip(inside - gamma, 0.0, 1.0)) + gamma)
    trivial = 1.0 - alpha
    return Bounds(
        jnp.where(usable, jnp.clip(lower, 0.0, trivial), 0.0), jnp.where(usable, jnp.minimum(upper, trivial), trivial)
    )


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


def _moments(curves: tuple[Curve, ...], times: int) -> tuple[float, float, float, float]:
    """Sums of kl, kl^2, kappa2 and kappa3bar."""
    check_scalar("times", times, COUNT)
    if not curves:
        raise ValueError("a limit theorem needs at least one curve, got none")
    curves = tuple(check_symmetric(f"curve {i}", curve, "a limit theorem") for i, curve in enumerate(curves))
    for curve in curves:
        if not _loss_moments.is_precise(curve):
            raise ValueError(
                f"the moments of {type(curve).__name__} are not known precisely enough for a certified band; "
                "compose it numerically, or give the piecewise-linear curve of its bounds"
            )
    rows = np.array(
        [(k := _loss_moments.kl(f), k * k, _loss_moments.kappa2(f), _loss_moments.kappa3bar(f)) for f in curves]
    )
    if not np.isfinite(rows).all():
        raise ValueError("a curve with f(0) < 1 has infinite moments: no limit theorem; compose it numerically")
    total = times * rows.sum(axis=0)
    return float(total[0]), float(total[1]), float(total[2]), float(total[3])


def berry_esseen(*curves: Curve, times: int = 1) -> NormalApproximation:
    """The Gaussian curve nearest to a composition, with the certified band of the Berry-Esseen theorem.

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
    kl, kl_squared, kappa2, kappa3bar = _moments(curves, times)
    variance = kappa2 - kl_squared
    if not variance > 0:
        raise ValueError("no curve has any privacy loss: the composition is the identity")
    mu = 2.0 * kl / np.sqrt(variance)
    gamma = 0.56 * kappa3bar / variance**1.5
    return NormalApproximation(Gaussian(mu), mu, gamma * (1.0 + 1e-6) + 1e-9 * (1.0 + mu))


def central_limit(*curves: Curve, times: int = 1) -> NormalApproximation:
    """The limit curve of a composition of many curves, each with a small privacy loss.

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
    kl, _, kappa2, _ = _moments(curves, times)
    return band._replace(curve=Gaussian(2.0 * kl / np.sqrt(kappa2)))
