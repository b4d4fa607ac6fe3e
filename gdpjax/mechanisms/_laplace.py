"""The Laplace mechanism.

Noise: with t uniform on (0, 1), -log t is exponential; a random sign makes it Laplace. t has 63 random bits, so that
the tail is right to 43 scales, and values near 0, where t is near 1, come from 1 - t, computed from the same bits.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_tree
from gdpjax._core.checks import POSITIVE, check
from gdpjax._core.keys import bits
from gdpjax._core.pytrees import pytree_dataclass
from gdpjax._core.trees import leaf_keys
from gdpjax._core.types import Array
from gdpjax.mechanisms._abstract import Additive, check_sensitivity, floating, one_number
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

    privacy_loss: Array  # the epsilon; that name is the method's

    def __init__(self, epsilon: Array) -> None:
        check("epsilon", epsilon, POSITIVE)
        object.__setattr__(self, "privacy_loss", epsilon)

    def tradeoff(self) -> Curve:
        """`Laplace(epsilon)`; exact."""
        return Laplace(self.privacy_loss)

    def sample(self, key: Array, value: Any, sensitivity: Array) -> Any:
        """``value`` with noise.

        Args:
            key: a PRNG key, used for nothing else.
            value: a scalar, an array or a pytree of arrays.
            sensitivity: the largest l1 distance of two neighbours' values, over all leaves together, >= 0.

        Returns:
            The same structure in float32 or wider.

        Raises:
            ValueError: sensitivity negative, NaN or not one number; complex values.
        """
        scale = check_sensitivity(sensitivity) / one_number("epsilon", self.privacy_loss, POSITIVE)

        check_tree("value", value)

        def noisy(leaf: Any, leaf_key: Array) -> Array:
            array = floating(leaf)
            return array + jnp.asarray(scale).astype(array.dtype) * standard_laplace(leaf_key, array.shape, array.dtype)

        return jax.tree.map(noisy, value, leaf_keys(key, value))


def standard_laplace(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Laplace noise of scale 1, from 64 random bits a coordinate."""
    first, second = bits(key, (2, *shape))
    sign = jnp.where(first >> 31, -1, 1).astype(dtype)
    k, most = first & jnp.uint32(0x7FFFFFFF), jnp.uint32(0x7FFFFFFF)
    low = (second.astype(dtype) + np.asarray(0.5, dtype)) * np.asarray(2.0**-32, dtype)
    unit = np.asarray(2.0**-31, dtype)
    t = (k.astype(dtype) + low) * unit
    rest = ((most - k).astype(dtype) + (1 - low)) * unit
    small = k >= jnp.uint32(1 << 30)
    return -sign * jnp.where(small, jnp.log1p(-jnp.where(small, rest, 0.5)), jnp.log(t))
