"""The Gaussian trade-off curve G_mu = T(N(0, 1), N(mu, 1)), and the identity, which is G_0."""

import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

from gdpjax._core import gdp
from gdpjax._core.checks import EXTENDED_NONNEGATIVE, check
from gdpjax._core.pytrees import pytree_dataclass
from gdpjax._core.types import Array
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

    mu: Array

    def check(self) -> None:
        check("mu", self.mu, EXTENDED_NONNEGATIVE)

    def shapes(self) -> dict:
        return {"mu": self.mu}

    def valid(self) -> Array:
        return self.mu >= 0

    def value(self, alpha: Array) -> Array:
        inside = (alpha > 0) & (alpha < 1)
        finite = jnp.where(self.mu < jnp.inf, self.mu, 0.0)
        beta = ndtr(-ndtri(jnp.where(inside, alpha, 0.5)) - finite)
        return jnp.where(self.mu < jnp.inf, jnp.where(inside, beta, jnp.where(alpha > 0, 0.0, 1.0)), 0.0)

    def derivative(self, alpha: Array) -> Array:
        inside = (alpha > 0) & (alpha < 1)
        x = -ndtri(jnp.where(inside, alpha, 0.5))
        finite = jnp.where(self.mu < jnp.inf, self.mu, 0.0)
        ends = jnp.where(self.mu > 0, jnp.where(alpha > 0, 0.0, -jnp.inf), -1.0)
        slope = jnp.where(inside, -jnp.exp(finite * x - 0.5 * finite**2), ends)
        return jnp.where(self.mu < jnp.inf, slope, jnp.where(alpha > 0, 0.0, -jnp.inf))

    def profile(self, epsilon: Array) -> Array:
        return from_positive(lambda e: gdp.gdp_delta(*jnp.broadcast_arrays(e, self.mu)), epsilon)

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
