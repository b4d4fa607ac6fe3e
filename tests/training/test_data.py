"""What is placed on the device is a copy, which the caller's later changes do not reach."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gdpjax.training import make_plan, private_training

PLAN = make_plan(clip=1.0, max_examples=4096, expected_batch_size=8, num_steps=2, delta=1e-5, noise_multiplier=1.0)
TRAINING = private_training(PLAN, lambda w, x: jnp.sum(x @ w), optax.sgd(0.1), num_arrays=1)


def aligned_ones(shape):
    """Return an array of NumPy that begins at a multiple of 64 bytes, which JAX can use where it lies."""
    size = int(np.prod(shape))
    memory = np.ones(size + 16, np.float32)
    begin = (-memory.ctypes.data % 64) // 4
    return memory[begin : begin + size].reshape(shape)


@pytest.mark.parametrize("spec", [None, PartitionSpec(), PartitionSpec("data")], ids=str)
def test_data_do_not_change_with_the_array_that_they_came_from(spec):
    sharding = None if spec is None else NamedSharding(jax.make_mesh((1,), ("data",)), spec)
    x = aligned_ones((4096, 4))
    data = TRAINING.place(x, sharding=sharding)
    x[:] = 0
    assert float(data.arrays[0].min()) == 1


def test_parameters_do_not_change_with_the_array_that_they_came_from():
    weights = aligned_ones((64, 64))
    state = TRAINING.init({"weights": weights}, jax.random.key(0))
    weights[:] = 0
    assert float(state.params["weights"].min()) == 1
