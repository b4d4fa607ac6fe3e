"""Evaluate a kernel over many configurations in chunks, so that a large grid needs little memory."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array

CHUNK = 64
"""Configurations evaluated together."""


def map_chunks(kernel: Callable[..., Array], *arguments: Array) -> Array:
    """kernel(*arguments) for an elementwise kernel whose temporaries are much larger than its result."""
    arrays = jnp.broadcast_arrays(*arguments)
    shape, size = arrays[0].shape, arrays[0].size
    if size <= CHUNK:
        return kernel(*arrays)
    rows = -(-size // CHUNK)
    padded = tuple(jnp.resize(array, (rows, CHUNK)) for array in arrays)
    return jax.lax.map(lambda chunk: kernel(*chunk), padded).ravel()[:size].reshape(shape)
