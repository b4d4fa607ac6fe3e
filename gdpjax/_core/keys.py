"""Fresh keys from the system's entropy."""

import os

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array


def fresh_key() -> Array:
    """A typed PRNG key with every bit from the operating system's entropy source.

    A seed such as 0 is known to everybody who reads the code, and 32-bit seeds can be tried out: noise made from them
    protects nobody. The default (threefry) key holds 64 bits.

    >>> fresh_key().shape
    ()
    """
    shape = jax.random.key_data(jax.random.key(0)).shape
    words = np.frombuffer(os.urandom(4 * int(np.prod(shape))), np.uint32).reshape(shape)
    return jax.random.wrap_key_data(jnp.asarray(words))
