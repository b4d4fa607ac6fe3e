"""The trade-off curve f_{epsilon, delta} of (epsilon, delta)-differential privacy."""

import jax.numpy as jnp

from gdpjax._core.checks import EXTENDED_NONNEGATIVE, UNIT, check, check_broadcast
from gdpjax._core.pytrees import pytree_dataclass
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve, from_positive


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

    epsilon: Array
    delta: Array = 0.0

    def check(self) -> None:
        check("epsilon", self.epsilon, EXTENDED_NONNEGATIVE)
        check("delta", self.delta, UNIT)
        check_broadcast(epsilon=self.epsilon, delta=self.delta)

    def shapes(self) -> dict:
        return {"epsilon": self.epsilon, "delta": self.delta}

    def valid(self) -> Array:
        return (self.epsilon >= 0) & UNIT.contains(self.delta)

    def value(self, alpha: Array) -> Array:
        rest = 1.0 - self.delta
        right = jnp.exp(-self.epsilon) * (rest - alpha)
        # Where alpha = 0 the product e^epsilon alpha is 0, whatever epsilon.
        left = rest - jnp.where(alpha > 0, jnp.exp(jnp.minimum(self.epsilon, 709.0)) * alpha, 0.0)
        return jnp.maximum(jnp.maximum(left, right), 0.0)

    def derivative(self, alpha: Array) -> Array:
        rest = 1.0 - self.delta
        decay = jnp.exp(-self.epsilon)
        return -jnp.where(alpha < self.fixed_point(), jnp.exp(self.epsilon), jnp.where(alpha < rest, decay, 0.0))

    def profile(self, epsilon: Array) -> Array:
        def right(e: Array) -> Array:
            # (e^epsilon - e^e) / (1 + e^epsilon), without overflow
            gap = -jnp.expm1(jnp.minimum(e - self.epsilon, 0.0)) / (1.0 + jnp.exp(-self.epsilon))
            return self.delta + (1.0 - self.delta) * gap

        return from_positive(right, epsilon)

    def fixed_point(self) -> Array:
        decay = jnp.exp(-self.epsilon)
        return (1.0 - self.delta) * decay / (1.0 + decay)
