"""The trade-off curve f_{epsilon, delta} of (epsilon, delta)-differential privacy."""

import jax.numpy as jnp

from gdpjax._core.checks import EXTENDED_NONNEGATIVE, UNIT, check
from gdpjax._core.types import Array, Numbers, pytree_dataclass
from gdpjax.tradeoff._abstract import Curve, from_positive

_LARGEST_EXPONENT = 709.0
"""The largest exponent whose exponential float64 can hold, rounded down."""


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

    epsilon: Numbers
    delta: Numbers = 0.0

    def check(self) -> None:
        check("epsilon", self.epsilon, EXTENDED_NONNEGATIVE)
        check("delta", self.delta, UNIT)

    def shapes(self) -> dict:
        return {"epsilon": self.epsilon, "delta": self.delta}

    def valid(self) -> Array:
        return (self.epsilon >= 0) & UNIT.contains(self.delta)

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
