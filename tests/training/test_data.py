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


def test_an_array_of_jax_that_lies_in_memory_of_numpy_is_copied_too():
    """`jax.device_put` may use the memory of its argument."""
    x = aligned_ones((4096, 4))
    sharding = NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec("data"))
    data = TRAINING.place(jax.device_put(x), sharding=sharding)
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


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "values",
    [
        np.array([2**31 - 1, -(2**31)]),
        np.array([2**32 - 1], np.uint64),
        np.array([0.1, 1e-300, 3.4028235e38]),
        np.array([True]),
    ],
    ids=str,
)
def test_what_is_rounded_or_not_finite_already_is_taken(values):
    """Rows that are not finite add nothing to a clipped sum."""
    placed = TRAINING.place(np.resize(values, 4096))
    np.testing.assert_array_equal(placed.arrays[0][: values.size], values.astype(placed.arrays[0].dtype))


@pytest.mark.parametrize("convert", [np.asarray, jnp.asarray])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_rows_that_are_not_finite_are_counted(convert, value):
    """A row is counted once, wherever it has such values, and trains on nothing: `place` tells."""
    x = np.ones((300, 4), np.float32)
    x[:2, 1:3] = value
    labels = {"a": np.where(np.arange(300) == 7, value, 0), "b": np.arange(300)}
    message = r"^3 of 300 examples have a NaN or an infinity .* The number is private"
    with pytest.warns(UserWarning, match=message) as told:
        data = TRAINING.place(convert(x), jax.tree.map(convert, labels))
    assert told[0].filename == __file__
    np.testing.assert_array_equal(data.arrays[0][:300], x)


@pytest.mark.parametrize(("dtype", "value"), [(jnp.bfloat16, np.nan), (np.float16, np.inf), (np.complex64, -np.inf)])
def test_rows_of_every_type_of_number_are_looked_at(dtype, value):
    x = np.ones(40, dtype)
    x[3] = value
    with pytest.warns(UserWarning, match="1 of 40 examples"):
        TRAINING.place(x, sharding=NamedSharding(jax.make_mesh((1,), ("data",)), PartitionSpec("data")))


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
