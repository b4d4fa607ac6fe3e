"""The base of all mechanisms, and checks of their arguments.

A mechanism is a frozen pytree of its privacy parameters: it has a curve (`tradeoff`), from which `delta` and `epsilon`
follow; it draws (`sample`) under jit and vmap, from an explicit key that is used once.

*Floats.* Noise in floating point is not the noise of the theorem: the set of values that x + noise can take depends on
x, and observing the low bits of one release can reveal the input (Mironov, CCS 2012, broke textbook Laplace samplers
so). The curves here are those of real arithmetic. For releases where an adversary sees every bit use integers and
`DiscreteLaplaceMechanism`, `DiscreteGaussianMechanism` or `RandomizedResponse`, which are exact. Values are taken in
float32 (float64 where x64 is on): two neighbours' values that are rounded to it may lie further apart than the stated
sensitivity, by 1.2e-7 of their size. Large whole numbers, where that is 1 and more, are refused.
"""

import abc
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gdpjax._core.checks import NONNEGATIVE, checked_scalar, is_traced
from gdpjax._core.keys import as_key, refuse_key_of_a_loop, unshared
from gdpjax._core.noise import SCALE_MARGIN
from gdpjax._core.types import Array, Floats, NeighboringRelation, Numbers, Scalar
from gdpjax.ledger import AnyEvent
from gdpjax.tradeoff import Curve
from gdpjax.tradeoff import delta as delta_of
from gdpjax.tradeoff import epsilon as epsilon_of

ADDED = NeighboringRelation.ADD_OR_REMOVE_ONE


class Mechanism(abc.ABC):
    """Abstract base of all mechanisms: a curve and what follows from it."""

    @abc.abstractmethod
    def tradeoff(self) -> Curve:
        """Return the exact trade-off curve of one release, between neighbours at the stated sensitivity."""

    def delta(self, epsilon: Numbers) -> Floats:
        """Return the smallest delta with (epsilon, delta)-DP for one release; exact. See `gdpjax.tradeoff.delta`."""
        return delta_of(self.tradeoff(), epsilon)

    def epsilon(self, delta: Numbers) -> Floats:
        """Return the smallest epsilon >= 0 with (epsilon, delta)-DP for one release; exact.

        See `gdpjax.tradeoff.epsilon`.
        """
        return epsilon_of(self.tradeoff(), delta)

    @abc.abstractmethod
    def event(self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED) -> AnyEvent:
        """Return ``num_steps`` releases as an event of a `gdpjax.Ledger`, whose curve is that of this mechanism.

        Args:
          num_steps: how many of them, a whole number >= 1.
          neighboring_relation: the relation that the sensitivity is for.

        Raises:
          ValueError: a traced parameter.

        >>> from gdpjax.mechanisms import GaussianMechanism
        >>> GaussianMechanism(20.0).event(3).num_steps
        3
        """


class Additive(Mechanism):
    """Mechanisms that add noise to a value of bounded sensitivity."""

    @abc.abstractmethod
    def sample(self, key: PRNGKeyArray, value: Any, sensitivity: Scalar) -> Any:
        """Return ``value`` (a scalar, an array or a pytree of arrays) with noise for ``sensitivity``."""


def check_sensitivity(sensitivity: Any) -> Any:
    """Return a sensitivity >= 0, concrete or traced; a traced one that is negative becomes NaN."""
    return checked_scalar("sensitivity", sensitivity, NONNEGATIVE)


def floating(leaf: Any) -> Array:
    """Return a leaf as float32 or wider; whole numbers only where that is exact, else neighbours could move apart."""
    array = jnp.asarray(leaf)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        raise ValueError("complex values are not supported; pass real and imaginary parts")
    wide = jnp.promote_types(array.dtype, jnp.float32)
    if not jnp.issubdtype(array.dtype, jnp.integer):
        return array.astype(wide)

    # The largest size up to which this dtype holds every whole number.
    largest = 2 ** (jnp.finfo(wide).nmant + 1)
    if not is_traced(leaf) and np.size(leaf):
        size = max(abs(int(np.max(leaf))), abs(int(np.min(leaf))))
        if size > largest:
            raise ValueError(
                f"whole numbers must be at most {largest} in size, where {wide} holds them exactly: use a discrete "
                "mechanism, or subtract a public constant first"
            )
    is_exact = (array <= largest) & (array >= -largest)
    return jnp.where(is_exact, array.astype(wide), jnp.nan)


def own_key(key: Any, *values: Any) -> tuple[Array, Array]:
    """Return a key, and 1, or NaN where configurations under vmap that differ in ``values`` have the same key.

    Their noise would cancel. A key that vmap shares is refused with a ValueError.
    """
    refuse_key_of_a_loop(key)
    key = as_key(key)
    data, valid = unshared(jax.random.key_data(key), *values)
    return jax.random.wrap_key_data(data, impl=str(jax.random.key_impl(key))), valid


def scale_in(dtype: Any, scale: Any, sensitivity: Any) -> Array:
    """Return the scale of noise in the dtype of a leaf, never less than was asked for.

    It is NaN where noise for a sensitivity > 0 would vanish in that dtype.
    """
    rounded = jnp.asarray(scale * SCALE_MARGIN).astype(dtype)
    # Devices flush what is below the normal numbers to zero.
    is_usable = (rounded >= 100 * float(jnp.finfo(dtype).tiny)) | (sensitivity == 0)
    return jnp.where(is_usable, rounded, jnp.nan)


def not_above(parameter: Any) -> Any:
    """Return a parameter, or the float32 below a traced one: the number that was passed may have been rounded up."""
    return jnp.nextafter(floating(parameter), 0.0) if is_traced(parameter) else parameter
