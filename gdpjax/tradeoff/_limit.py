r"""Composition by the central limit theorem: a Gaussian curve, and a certified band around the truth.

    limit = central_limit(Laplace(0.1), times=100)
    limit.bounds(0.2)               # Bounds(lower, upper) on the composition at alpha = 0.2

For symmetric f_1 ... f_n the privacy loss of the composition is a sum of independent losses. With

    mu = 2 sum kl / sqrt(sum kappa2 - sum kl^2),    gamma = 0.56 sum kappa3bar / (sum kappa2 - sum kl^2)^{3/2},

if gamma < 1/2, the Berry-Esseen theorem gives for alpha in [gamma, 1 - gamma]

    G_mu(alpha + gamma) - gamma <= f_1 (x) ... (x) f_n (alpha) <= G_mu(alpha - gamma) + gamma.

The composition is non-increasing, so that the lower bound extends as a constant to alpha < gamma; above 1 - gamma it is
0. The upper one is 1 - alpha on the left, and its value at 1 - gamma (or 1 - alpha) on the right. For arrays of curves
with sum kl -> K, sum kappa2 -> s^2, max kl -> 0 and sum E |L|^3 -> 0 the limit is G_{2K/s}.

The moments are computed to a relative 1e-7 or better (`_loss_moments`); gamma is enlarged by 1e-6 of itself and by 1e-9
(1 + mu) for the rounding of mu, since moving mu by d moves G_mu by at most d phi(0).
"""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp

from gdpjax._core.checks import COUNT, NONNEGATIVE, UNIT, check_scalar, is_traced
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Bounds, Floats, Numbers
from gdpjax.tradeoff._abstract import Curve, check_symmetric
from gdpjax.tradeoff._gaussian import Gaussian
from gdpjax.tradeoff._loss_moments import Moments, loss_law, moments


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
    band_mu: Floats
    gamma: Floats

    def bounds(self, alpha: Numbers) -> Bounds:
        """Certified bracket on the composition at ``alpha`` in [0, 1]; trivial where gamma >= 1/2."""
        return _band(alpha, self.band_mu, self.gamma)


def central_limit(*curves: Curve, times: int = 1) -> NormalApproximation:
    """Return the Gaussian limit of a composition of many curves of small privacy loss, with a certified band.

    Formula: G_mu with mu = 2 sum kl / sqrt(sum kappa2); the band is that of the Berry-Esseen theorem,
    G_m(alpha + gamma) - gamma <= f_1 (x) ... (x) f_n (alpha) <= G_m(alpha - gamma) + gamma, with
    m = 2 sum kl / sqrt(sum kappa2 - sum kl^2), gamma = 0.56 sum kappa3bar / (sum kappa2 - sum kl^2)^{3/2}.

    Args:
        curves: symmetric trade-off curves with concrete parameters (host-side).
        times: how often the whole list is composed, a whole number >= 1.

    Returns:
        The limit, whose ``.curve`` is asymptotic and may overstate privacy. ``.bounds(alpha)`` is certified: a band
        around G_m, ``.band_mu``, of half width ``.gamma``.

    Raises:
        ValueError: a curve that is not symmetric, is traced, has f(0) < 1 or moments that are not known precisely; no
            privacy loss at all.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorems 3.4 (band) and 3.5 (limit).

    >>> from gdpjax.tradeoff import Laplace
    >>> limit = central_limit(Laplace(0.1), times=100)
    >>> print(f"{limit.curve.mu:.4f} {limit.gamma:.4f} {limit.bounds(0.2).lower:.4f}")
    0.9832 0.0569 0.3133
    """
    check_scalar("times", times, COUNT)
    rows = []
    for i, curve in enumerate(curves):
        kl, kappa2, kappa3bar = _moments(f"curve {i}", curve)
        rows.append([kl, kl * kl, kappa2, kappa3bar])
    kl, kl_squared, kappa2, kappa3bar = (times * np.sum(rows, axis=0)).tolist()

    variance = kappa2 - kl_squared
    if not variance > 0:
        raise ValueError("no curve has any privacy loss: the composition is the identity")
    band_mu = 2.0 * kl / np.sqrt(variance)
    gamma = 0.56 * kappa3bar / variance**1.5
    # The moments are right to 1e-7 of themselves, and mu is rounded.
    gamma = gamma * (1.0 + 1e-6) + 1e-9 * (1.0 + band_mu)
    return NormalApproximation(Gaussian(2.0 * kl / np.sqrt(kappa2)), band_mu, gamma)


def _moments(name: str, curve: Curve) -> Moments:
    """Return the moments of one symmetric curve, known and finite; else raise ValueError."""
    curve = check_symmetric(name, curve, "a limit theorem")
    if is_traced(curve) or any(np.ndim(value) for value in curve.shapes().values()):
        raise ValueError("a limit theorem takes one curve at a time, known before compiling")
    found = moments(loss_law(curve))
    if not np.isfinite(found).all():
        raise ValueError("a curve with f(0) < 1 has infinite moments: no limit theorem; compose it numerically")
    return found
