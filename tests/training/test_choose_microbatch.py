"""The number of rows that fits a memory, by the compiler's account."""

import functools
import re

import jax
import jax.numpy as jnp
import optax
import pytest

from gdpjax.training import Data, choose_microbatch, make_plan, private_training

WIDTH = 200
PLAN = make_plan(
    clip=1.0,
    max_examples=64,
    expected_batch_size=8,
    num_steps=3,
    delta=1e-5,
    noise_multiplier=1.0,
)
PARAMS = jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)
DATA = Data((jax.ShapeDtypeStruct((64, WIDTH), jnp.float32),), jax.ShapeDtypeStruct((), jnp.int32))


def loss_fn(weights, x):
    """Two layers of the same weights, whose gradient is formed."""
    return jnp.sum(jnp.tanh(jnp.tanh(x @ weights) @ weights))


@functools.cache
def build(rows):
    """Return the training that takes so many rows at a time."""
    return private_training(
        PLAN,
        loss_fn,
        optax.sgd(0.1),
        num_arrays=1,
        strategy="microbatch",
        microbatch_size=rows,
    )


def test_the_largest_that_fits_is_taken():
    """One byte too few for all rows gives the next candidate."""
    rows, needs = choose_microbatch(build, PARAMS, DATA, memory_bytes=10**9)
    assert rows == max(needs) == PLAN.capacity
    rows, compiled = choose_microbatch(build, PARAMS, DATA, memory_bytes=needs[PLAN.capacity] - 1)
    assert rows == 32
    assert compiled[32] < needs[PLAN.capacity]


def test_a_model_that_does_not_fit_is_refused():
    """The need of one row is named, which is more than the parameters."""
    with pytest.raises(ValueError, match="one row at a time needs") as refusal:
        choose_microbatch(build, PARAMS, DATA, memory_bytes=1)
    needed = int(re.search(r"needs ([\d,]+) bytes", str(refusal.value))[1].replace(",", ""))
    assert needed > PARAMS.size * PARAMS.dtype.itemsize
