"""PRNG keys: fresh ones from the system's entropy, and a check of those that are given."""

import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import is_traced
from gdpjax._core.types import Array


def fresh_key(impl: str | None = None) -> Array:
    """A typed PRNG key with every bit from the operating system's entropy source.

    A seed such as 0 is known to everybody who reads the code, and 32-bit seeds can be tried out: noise made from them
    protects nobody. The default (threefry) key holds 64 bits.

    Args:
      impl: a key implementation of jax, such as "rbg"; default: jax's own default.

    >>> fresh_key().shape
    ()
    """
    shape = jax.random.key_data(jax.random.key(0, impl=impl)).shape
    words = np.frombuffer(os.urandom(4 * int(np.prod(shape))), np.uint32).reshape(shape)
    return jax.random.wrap_key_data(jnp.asarray(words), impl=impl)


def check_key(key: Any) -> tuple[Array, str]:
    """The data and the implementation of one PRNG key (typed, or a legacy uint32 pair); ValueError otherwise."""
    if not isinstance(key, jax.Array | np.ndarray):
        raise ValueError(f"key must be a PRNG key such as gdpjax.fresh_key() or jax.random.key(0), got {key!r}")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        if key.shape != ():
            raise ValueError(f"key must be one PRNG key, got an array of keys of shape {key.shape}")
        data, impl = jax.random.key_data(key), str(jax.random.key_impl(key))
        # A host copy: a donated optimizer state must not delete the buffer of the user's key.
        return (data if is_traced(data) else np.asarray(data)), impl
    if key.dtype == jnp.uint32 and key.shape == (2,):
        return (key if is_traced(key) else np.asarray(key)), "threefry2x32"
    raise ValueError(f"key must be a PRNG key, got an array of {key.dtype}{list(key.shape)}")
