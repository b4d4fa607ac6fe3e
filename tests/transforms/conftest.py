"""Noise that compiles at once, for tests that are not of the noise."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.transforms import _noise


def hashed(words, seed):
    """Return a hash of words, uint32 of their shape: the finalizer of MurmurHash3, with the seed in its middle."""
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ seed ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


@functools.partial(jax.jit, static_argnums=(1, 2))
def simple_normal(key, shape, dtype):
    """Return uniform numbers with the mean and the variance of standard normal ones, a function of key and place."""
    data = jax.random.key_data(key)
    places = jnp.arange(math.prod(shape), dtype=jnp.uint32) * np.uint32(0x9E3779B9)
    words = hashed(places + data[0], data[1])
    values = ((words >> 8).astype(dtype) + 0.5) * 2.0**-23 - 1.0
    return math.sqrt(3.0) * values.reshape(shape)


def simple_normals(keys, shapes, dtypes):
    """Stand in for `standard_normals`.

    The compiler takes as long for a draw of `jax.random` as for the rest of a small private step.
    """
    for key in keys:
        _noise.refuse_key_of_a_loop(key)
    return [simple_normal(*each) for each in zip(keys, shapes, dtypes, strict=True)]


@pytest.fixture
def cheap_noise(monkeypatch):
    """Draw other noise in `privatize`; what is done with it is as it was."""
    monkeypatch.setattr(_noise, "standard_normals", simple_normals)
