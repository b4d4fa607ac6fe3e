"""A run has its own copy or record of all that it depends on: data, parameters, and the compiler's settings."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from gdpjax.training import environment, make_plan, private_training

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


def test_a_batch_is_copied_before_the_step_is_computed():
    """A loader may write its next batch into the same memory, and a step returns before it is computed."""

    def slow_loss(w, x):
        slow = jax.lax.fori_loop(0, 40, lambda _, v: jnp.tanh(v @ w), w)
        return jnp.sum(x @ (slow + w))

    training = private_training(PLAN, slow_loss, optax.sgd(0.1), num_arrays=1)
    state = training.init(jnp.eye(64), jax.random.key(0))
    is_padding = np.arange(PLAN.capacity) >= 5
    buffer = aligned_ones((PLAN.capacity, 64))
    norms = []
    for _ in range(2):
        buffer[:] = 1
        _, info = training.step_on(state, buffer, is_padding=is_padding)
        buffer[:] = 0
        norms.append(np.asarray(info.norms))
    assert (np.asarray(norms)[:, :5] > 0).all()


def test_a_large_batch_is_copied_before_the_call_returns():
    """JAX's own copy of a large array of NumPy is made later, from whatever is in its memory then."""
    size = 2**23 // PLAN.capacity
    batch = np.empty((PLAN.capacity, size), np.float32)
    is_padding = np.zeros(PLAN.capacity, bool)
    state = TRAINING.init(np.ones(size, np.float32), jax.random.key(0))
    norms = []
    for _ in range(4):  # the first call takes long: it compiles
        batch[:] = 1
        _, info = TRAINING.step_on(state, batch, is_padding=is_padding)
        batch[:] = 0
        norms.append(np.asarray(info.norms))
    np.testing.assert_allclose(norms, np.sqrt(size), rtol=1e-3)


def test_large_parameters_are_copied_before_the_call_returns():
    """The same of parameters, which a step would otherwise begin with in a state that nobody gave it."""
    weights = np.empty(2**23, np.float32)
    for key in range(4):
        weights[:] = 1
        state = TRAINING.init(weights, jax.random.key(key))
        weights[:] = 0
        assert float(state.params.min()) == 1


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (2**40, np.int64),
        (-(2**31) - 1, np.int64),
        (2**32 + 1, np.uint64),
        (1e300, np.float64),
        (-1e300, np.float64),
        (1e300j, np.complex128),
    ],
)
@pytest.mark.parametrize("first", [0, np.nan, np.inf], ids=str)
def test_numbers_that_32_bits_do_not_hold_are_refused(value, dtype, first):
    """JAX wraps whole numbers around, 2^40 to 0, and makes real ones infinite."""
    values = np.zeros(4096, dtype)
    if values.dtype.kind in "fc":
        values[0] = first
    values[7] = value
    with pytest.raises(ValueError, match=r"^array 1 of the data is an array of .* does not hold.* cast the array"):
        TRAINING.place(np.ones((4096, 4), np.float32), values)


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


def test_the_compiler_of_the_devices_is_in_the_environment(monkeypatch):
    """That of a TPU, or CUDA, may change while jaxlib does not; a lost step then has other bits."""
    client = SimpleNamespace(platform_version="first")
    device = SimpleNamespace(platform="tpu", device_kind="TPU", client=client)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    before = environment()
    client.platform_version = "second"
    assert environment() != before
