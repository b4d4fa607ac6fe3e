"""The number of rows that fits a memory, by the compiler's account."""

import functools

import jax
import jax.numpy as jnp
import optax
import pytest

from gdpjax.training import Data, _choices, choose_microbatch, make_plan, private_training

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


@pytest.fixture(scope="module", autouse=True)
def compiled_once():
    """Keep what the compiler said of each training for the next search."""
    compile_step = _choices._step_bytes
    known = {}

    def step_bytes(training, *shapes):
        if training.step not in known:
            known[training.step] = compile_step(training, *shapes)
        return known[training.step]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_choices, "_step_bytes", step_bytes)
        yield


@pytest.fixture(scope="module")
def needs():
    """Return the memory of one row, of all rows, and of the candidates between them that are searched."""
    return choose_microbatch(build, PARAMS, DATA, memory_bytes=10**9)[1]


def test_the_largest_that_fits_is_taken(needs):
    """One byte too few for all rows gives the next candidate."""
    assert max(needs) == PLAN.capacity
    rows, compiled = choose_microbatch(build, PARAMS, DATA, memory_bytes=needs[PLAN.capacity] - 1)
    assert rows == 32
    assert compiled[32] < needs[PLAN.capacity]


def test_a_model_that_does_not_fit_is_refused(needs):
    """A budget below the need of one row is refused."""
    with pytest.raises(ValueError, match="one row at a time needs"):
        choose_microbatch(build, PARAMS, DATA, memory_bytes=needs[1] - 1)
