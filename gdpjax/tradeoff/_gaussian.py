"""The Gaussian trade-off curve G_mu = T(N(0, 1), N(mu, 1)), and the identity, which is G_0."""

import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

from gdpjax._core import gdp
from gdpjax._core.checks import EXTENDED_NONNEGATIVE, check
from gdpjax._core.types import Array, Numbers, pytree_dataclass
from gdpjax.tradeoff._abstract import Curve, from_positive


@pytree_dataclass
class Gaussian(Curve):
    """G_mu(alpha) = Phi(Phi^-1(1 - alpha) - mu), the curve of the Gaussian mechanism with stddev = sensitivity / mu.

    Args:
        mu: Gaussian privacy parameter >= 0; 0 is no leakage, inf no privacy. An array gives an array of curves.

    Returns:
        A symmetric curve; its values are exact (relative error about 1e-14).

    Raises:
        ValueError: mu negative or NaN.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Definition 2.6 and Theorem 2.7.

    >>> print(f"{Gaussian(1.0)(0.05):.6f}")
    0.740489
    """

    mu: Numbers

    def check(self) -> None:
        check("mu", self.mu, EXTENDED_NONNEGATIVE)

    def shapes(self) -> dict:
        return {"mu": self.mu}

    def valid(self) -> Array:
        return self.mu >= 0

    def value(self, alpha: Array) -> Array:
        # Compute where alpha and mu are regular, and put the limits at the other places.
        inside = (alpha > 0) & (alpha < 1)
        is_finite = self.mu < jnp.inf
        safe_mu = jnp.where(is_finite, self.mu, 0.0)
        safe_alpha = jnp.where(inside, alpha, 0.5)
        beta = ndtr(-ndtri(safe_alpha) - safe_mu)
        at_ends = jnp.where(alpha > 0, 0.0, 1.0)
        beta = jnp.where(inside, beta, at_ends)
        return jnp.where(is_finite, beta, 0.0)

    def derivative(self, alpha: Array) -> Array:
        # The slope is minus the likelihood ratio at x = -Phi^-1(alpha).
        inside = (alpha > 0) & (alpha < 1)
        safe_alpha = jnp.where(inside, alpha, 0.5)
        x = -ndtri(safe_alpha)
        is_finite = self.mu < jnp.inf
        safe_mu = jnp.where(is_finite, self.mu, 0.0)
        loss = safe_mu * x - 0.5 * safe_mu**2

        # At alpha = 0 and 1, and for mu = inf, the slope has a limit.
        limit = jnp.where(alpha > 0, 0.0, -jnp.inf)
        at_ends = jnp.where(self.mu > 0, limit, -1.0)
        slope = jnp.where(inside, -jnp.exp(loss), at_ends)
        return jnp.where(is_finite, slope, limit)

    def profile(self, epsilon: Array) -> Array:
        return from_positive(self._profile_of_positive, epsilon)

    def _profile_of_positive(self, epsilon: Array) -> Array:
        """Return D at epsilon >= 0."""
        epsilon, mu = jnp.broadcast_arrays(epsilon, self.mu)
        return gdp.gdp_delta(epsilon, mu)

    def fixed_point(self) -> Array:
        return ndtr(-0.5 * self.mu)


@pytree_dataclass
class Identity(Curve):
    """Id(alpha) = 1 - alpha: two equal laws, perfect privacy.

    Returns:
        A symmetric curve; exact.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 2.1.

    >>> print(Identity()(0.25))
    0.75
    """

    def value(self, alpha: Array) -> Array:
        return 1.0 - alpha

    def derivative(self, alpha: Array) -> Array:
        return -jnp.ones_like(alpha)

    def profile(self, epsilon: Array) -> Array:
        return jnp.maximum(0.0, -jnp.expm1(epsilon))
