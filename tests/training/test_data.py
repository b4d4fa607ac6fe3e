"""A run has its own copy or record of all that it depends on: data, parameters, and the compiler's settings."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gdpjax.training import make_plan, private_training
from gdpjax.training._fingerprint import environment

PLAN = make_plan(
    clip=1.0,
    max_examples=4096,
    expected_batch_size=8,
    num_steps=2,
    delta=1e-5,
    noise_multiplier=1.0,
)
TRAINING = private_training(PLAN, lambda w, x: jnp.sum(x @ w), optax.sgd(0.1), num_arrays=1)


def aligned_ones(shape):
    """Return an array of NumPy that begins at a multiple of 64 bytes, which JAX can use where it lies."""
    size = int(np.prod(shape))
    memory = np.ones(size + 16, np.float32)
    begin = (-memory.ctypes.data % 64) // 4
    return memory[begin : begin + size].reshape(shape)


@pytest.mark.parametrize("spec", [None, PartitionSpec(), PartitionSpec("data")], ids=str)
def test_data_do_not_change_with_the_array_that_they_came_from(spec):
    """They are copied, wherever they are placed."""
    sharding = None if spec is None else NamedSharding(jax.make_mesh((1,), ("data",)), spec)
    x = aligned_ones((4096, 4))
    data = TRAINING.place(x, sharding=sharding)
    x[:] = 0
    assert float(data.arrays[0].min()) == 1


def test_parameters_do_not_change_with_the_array_that_they_came_from():
    """They are copied too."""
    weights = aligned_ones((64, 64))
    state = TRAINING.init({"weights": weights}, jax.random.key(0))
    weights[:] = 0
    assert float(state.params["weights"].min()) == 1


def test_the_processors_of_a_process_are_in_its_environment(monkeypatch):
    """XLA cuts a sum into a part for each processor that the process may use, not for each that there is."""
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 1, 2}, raising=False)
    before = environment()
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {2}, raising=False)
    assert environment() == before | {"cpu_count": 1}
    monkeypatch.setenv("PJRT_NPROC", "1")
    assert environment() == before | {"cpu_count": 1, "pjrt_nproc": "1"}


def test_settings_that_change_bits_change_the_environment(monkeypatch):
    """The same program text is compiled to other roundings then; an interrupted chunk must not be repeated."""
    before = environment()
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    assert environment() != before
    monkeypatch.undo()
    assert environment() == before
    name = "jax_disable_most_optimizations"
    value = jax.config.values[name]
    try:
        jax.config.update(name, not value)
        assert environment() != before
    finally:
        jax.config.update(name, value)
