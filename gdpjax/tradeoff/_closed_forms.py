"""The curves in closed form: of Gaussian and Laplace noise, of (epsilon, delta)-privacy, and the identity.

All are symmetric: D is given at epsilon >= 0, and `from_positive` gives the rest.
"""

from typing import ClassVar

import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

from gdpjax._core import gdp
from gdpjax._core.checks import EXTENDED_NONNEGATIVE, NONNEGATIVE, UNIT
from gdpjax._core.types import Array, Numbers, pytree_dataclass
from gdpjax.tradeoff._abstract import Curve, from_positive

_LARGEST_EXPONENT = 709.0
"""The largest exponent whose exponential float64 can hold, rounded down."""


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

    domains: ClassVar = {"mu": EXTENDED_NONNEGATIVE}
    mu: Numbers

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

    domains: ClassVar = {"epsilon": NONNEGATIVE}
    epsilon: Numbers

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


@pytree_dataclass
class ApproximateDP(Curve):
    """f(alpha) = max(0, 1 - delta - e^epsilon alpha, e^-epsilon (1 - delta - alpha)).

    A mechanism is (epsilon, delta)-DP iff its trade-off curve lies above this one. With delta = 0 it is the exact curve
    of binary randomized response.

    Args:
        epsilon: privacy loss >= 0, in nats.
        delta: probability in [0, 1]. Arrays broadcast and give an array of curves.

    Returns:
        A symmetric curve; exact.

    Raises:
        ValueError: an argument outside its range.

    Reference: Wasserman and Zhou, arXiv:0811.2501; Dong, Roth and Su, arXiv:1905.02383, Proposition 2.3.

    >>> print(f"{ApproximateDP(1.0, 0.1)(0.2):.6f}")
    0.356344
    """

    domains: ClassVar = {"epsilon": EXTENDED_NONNEGATIVE, "delta": UNIT}
    epsilon: Numbers
    delta: Numbers = 0.0

    def value(self, alpha: Array) -> Array:
        rest = 1.0 - self.delta
        right = jnp.exp(-self.epsilon) * (rest - alpha)
        # Where alpha = 0 the product e^epsilon alpha is 0, whatever epsilon.
        growth = jnp.exp(jnp.minimum(self.epsilon, _LARGEST_EXPONENT))
        product = jnp.where(alpha > 0, growth * alpha, 0.0)
        left = rest - product
        larger = jnp.maximum(left, right)
        return jnp.maximum(larger, 0.0)

    def derivative(self, alpha: Array) -> Array:
        rest = 1.0 - self.delta
        decay = jnp.exp(-self.epsilon)
        steep = jnp.exp(self.epsilon)
        flat = jnp.where(alpha < rest, decay, 0.0)
        return -jnp.where(alpha < self.fixed_point(), steep, flat)

    def profile(self, epsilon: Array) -> Array:
        return from_positive(self._profile_of_positive, epsilon)

    def _profile_of_positive(self, epsilon: Array) -> Array:
        """Return D at epsilon >= 0."""
        # gap = (e^{self.epsilon} - e^epsilon) / (1 + e^{self.epsilon}), without overflow
        excess = jnp.minimum(epsilon - self.epsilon, 0.0)
        gap = -jnp.expm1(excess) / (1.0 + jnp.exp(-self.epsilon))
        return self.delta + (1.0 - self.delta) * gap

    def fixed_point(self) -> Array:
        decay = jnp.exp(-self.epsilon)
        return (1.0 - self.delta) * decay / (1.0 + decay)
