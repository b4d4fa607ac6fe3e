"""The Laplace mechanism.

Noise: with t uniform on (0, 1), -log t is exponential; a random sign makes it Laplace. t has 63 random bits, so that
the tail is right to 43 scales, and values near 0, where t is near 1, come from 1 - t, computed from the same bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from gdpjax._core.checks import POSITIVE, check, checked_scalar
from gdpjax._core.keys import bits
from gdpjax._core.trees import leaf_keys
from gdpjax._core.types import Array, NeighboringRelation, Numbers, Scalar, pytree_dataclass
from gdpjax.ledger import LaplaceEvent
from gdpjax.mechanisms._abstract import ADDED, Additive, check_sensitivity, floating
from gdpjax.tradeoff import Curve, Laplace


@pytree_dataclass
class LaplaceMechanism(Additive):
    """Adds Laplace noise of scale sensitivity / epsilon to every coordinate.

    Args:
        epsilon: privacy loss, finite and > 0: l1 sensitivity / scale.

    Returns:
        A mechanism whose curve is `Laplace(epsilon)`: exact for a scalar, and for a vector where one coordinate may
        change by the whole sensitivity (the worst case; a change spread over coordinates is more private).

    Raises:
        ValueError: epsilon not a finite number > 0.

    Reference: Dwork, McSherry, Nissim and Smith, TCC 2006; Dong, Roth and Su, arXiv:1905.02383, Section 2.1.

    >>> print(f"{LaplaceMechanism(1.0).delta(0.5):.6f}")
    0.221199
    """

    privacy_loss: Numbers  # the epsilon; that name is the method's

    def __init__(self, epsilon: Numbers) -> None:
        check("epsilon", epsilon, POSITIVE)
        object.__setattr__(self, "privacy_loss", epsilon)

    def tradeoff(self) -> Curve:
        """Return `Laplace(epsilon)`; exact."""
        return Laplace(self.privacy_loss)

    def event(self, num_steps: int = 1, *, neighboring_relation: NeighboringRelation = ADDED) -> LaplaceEvent:
        """Return the event of ``num_steps`` releases."""
        return LaplaceEvent(self.privacy_loss, num_steps, neighboring_relation)

    def sample(self, key: PRNGKeyArray, value: Any, sensitivity: Scalar) -> Any:
        """Return ``value`` with noise.

        Args:
            key: a PRNG key, used for nothing else.
            value: a scalar, an array or a pytree of arrays.
            sensitivity: the largest l1 distance of two neighbours' values, over all leaves together, >= 0.

        Returns:
            The same structure in float32 or wider.

        Raises:
            ValueError: sensitivity negative, NaN or not one number; complex values.
        """
        scale = check_sensitivity(sensitivity) / checked_scalar("epsilon", self.privacy_loss, POSITIVE)

        def add_noise(leaf: Any, leaf_key: Array) -> Array:
            array = floating(leaf)
            noise = standard_laplace(leaf_key, array.shape, array.dtype)
            return array + jnp.asarray(scale).astype(array.dtype) * noise

        return jax.tree.map(add_noise, value, leaf_keys(key, value))


def standard_laplace(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw Laplace noise of scale 1, from 64 random bits a coordinate."""
    high_word, low_word = bits(key, (2, *shape))

    # One bit is the sign. The other 63 are t = (high + low) 2^-31, with low in (0, 1).
    sign = jnp.where(high_word >> 31, -1, 1).astype(dtype)
    largest_high = jnp.uint32(0x7FFFFFFF)
    high = high_word & largest_high
    low = (low_word.astype(dtype) + np.asarray(0.5, dtype)) * np.asarray(2.0**-32, dtype)
    unit = np.asarray(2.0**-31, dtype)
    t = (high.astype(dtype) + low) * unit

    # 1 - t from the same bits, without cancellation.
    complement = ((largest_high - high).astype(dtype) + (1 - low)) * unit

    # log t, by way of 1 - t where t is at least a half.
    is_large = high >= jnp.uint32(1 << 30)
    log_of_large = jnp.log1p(-jnp.where(is_large, complement, 0.5))
    log_t = jnp.where(is_large, log_of_large, jnp.log(t))
    return -sign * log_t
