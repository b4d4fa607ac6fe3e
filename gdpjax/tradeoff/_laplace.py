"""The Laplace trade-off curve T(Lap(0, 1), Lap(epsilon, 1))."""

import jax.numpy as jnp

from gdpjax._core.checks import NONNEGATIVE, check
from gdpjax._core.types import Array, Numbers, pytree_dataclass
from gdpjax.tradeoff._abstract import Curve, from_positive


@pytree_dataclass
class Laplace(Curve):
    """The curve of the Laplace mechanism with scale = sensitivity / epsilon.

    Formula: f(alpha) = 1 - e^epsilon alpha for alpha < e^-epsilon / 2, e^-epsilon / (4 alpha) up to alpha = 1/2, and
    e^-epsilon (1 - alpha) above. D(e) = 1 - e^{(e - epsilon)/2} for 0 <= e <= epsilon, 0 beyond.

    Args:
        epsilon: finite and >= 0, in nats: l1 sensitivity / scale. An array gives an array of curves.

    Returns:
        A symmetric curve; exact. It lies above `ApproximateDP(epsilon)`, the worst curve that is (epsilon, 0)-private.

    Raises:
        ValueError: epsilon negative, infinite or NaN.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 2.1 (Proposition A.6).

    >>> print(f"{Laplace(1.0)(0.25):.6f}")
    0.367879
    """

    epsilon: Numbers

    def check(self) -> None:
        check("epsilon", self.epsilon, NONNEGATIVE)

    def shapes(self) -> dict:
        return {"epsilon": self.epsilon}

    def valid(self) -> Array:
        return NONNEGATIVE.contains(self.epsilon)

    def value(self, alpha: Array) -> Array:
        is_left, safe_alpha, is_right = self._pieces(alpha)
        decay = jnp.exp(-self.epsilon)
        left = 1.0 - jnp.where(is_left, alpha / decay, 0.0)
        right = decay * (1.0 - alpha)
        middle = decay * 0.25 / safe_alpha
        beta = jnp.where(is_right, right, middle)
        return jnp.where(is_left, left, beta)

    def derivative(self, alpha: Array) -> Array:
        is_left, safe_alpha, is_right = self._pieces(alpha)
        decay = jnp.exp(-self.epsilon)
        left = jnp.exp(self.epsilon)
        middle = decay * 0.25 / safe_alpha**2
        steepness = jnp.where(is_right, decay, middle)
        return -jnp.where(is_left, left, steepness)

    def _pieces(self, alpha: Array) -> tuple[Array, Array, Array]:
        """Return whether alpha is in the left piece, an alpha for the middle, whether it is in the right piece."""
        is_left = alpha < 0.5 * jnp.exp(-self.epsilon)
        is_right = alpha >= 0.5
        safe_alpha = jnp.where(is_left | is_right, 0.5, alpha)
        return is_left, safe_alpha, is_right

    def profile(self, epsilon: Array) -> Array:
        return from_positive(self._profile_of_positive, epsilon)

    def _profile_of_positive(self, epsilon: Array) -> Array:
        """Return D at epsilon >= 0."""
        capped = jnp.minimum(epsilon, self.epsilon)
        gap = -jnp.expm1(0.5 * (capped - self.epsilon))
        return jnp.where(epsilon < self.epsilon, gap, 0.0)

    def fixed_point(self) -> Array:
        return 0.5 * jnp.exp(-0.5 * self.epsilon)
