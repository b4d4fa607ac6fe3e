"""Batches on the host are those of the device, from any step on, padded, pickled, and never truncated."""

import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax import sampling

KEY = jax.random.key(7)


def assert_same(batches, expected):
    """Check that two sequences of batches have the same rows and the same padding."""
    for (indices, is_padding), (expected_indices, expected_padding) in zip(batches, expected, strict=True):
        np.testing.assert_array_equal(indices, expected_indices)
        np.testing.assert_array_equal(is_padding, expected_padding)


@pytest.mark.parametrize("p", [0.1, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_step_has_the_batch_of_the_device(p):
    """The batches are those of `poisson_sample` with the key of the step, as arrays of NumPy."""
    batches = list(sampling.poisson_batches(KEY, 500, p, num_steps=4, capacity=501))

    @jax.jit
    def draw_on_device(step):
        key = jax.random.fold_in(KEY, step)
        return sampling.poisson_sample(key, 500, p, 501)[:2]

    assert_same(batches, [draw_on_device(step) for step in range(4)])
    indices, is_padding = batches[0]
    assert type(indices) is np.ndarray
    assert type(is_padding) is np.ndarray
    assert indices.dtype == np.int32
    assert is_padding.dtype == bool


def test_a_step_has_the_uniform_batch_of_the_device():
    """The batches are those of `uniform_sample` with the key of the step, without padding."""
    batches = sampling.UniformBatches(KEY, 100, 7, num_steps=5)

    @jax.jit
    def draw_on_device(step):
        key = jax.random.fold_in(KEY, step)
        return sampling.uniform_sample(key, 100, 7)

    for step in range(5):
        np.testing.assert_array_equal(batches[step].indices, draw_on_device(step))
        assert not batches[step].is_padding.any()
    assert batches.sampling_prob == 0.07
    assert batches.overflow == sampling.uniform_sampling_error(100, 5)


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
def test_any_key_and_a_legacy_one(impl):
    """A key of any generator gives the batches of the device, and a legacy key those of the typed one."""

    def second_batch(key):
        batches = sampling.PoissonBatches(key, 50, 0.5, num_steps=2, capacity=50)
        return batches[1]

    @jax.jit
    def draw_on_device(key):
        key_of_step = jax.random.fold_in(key, 1)
        return sampling.poisson_sample(key_of_step, 50, 0.5, 50)[:2]

    key = jax.random.key(3, impl=impl)
    assert_same([second_batch(key)], [draw_on_device(key)])
    of_legacy_key = second_batch(jax.random.PRNGKey(3))
    of_typed_key = second_batch(jax.random.key(3))
    assert_same([of_legacy_key], [of_typed_key])


def test_it_starts_anywhere():
    """The batch of a step is a function of the key and the step."""
    whole = list(gdpjax.poisson_batches(KEY, 200, 0.2, num_steps=6))
    for start in [0, 1, 5, 6]:
        rest = gdpjax.poisson_batches(KEY, 200, 0.2, num_steps=6, start=start)
        assert_same(rest, whole[start:])

    # A source takes any step, and is itself a sequence.
    source = sampling.PoissonBatches(KEY, 200, 0.2, num_steps=6)
    assert_same([source[t] for t in [5, 0, 3]], [whole[t] for t in [5, 0, 3]])
    assert_same(source, whole)
    assert len(source) == 6


def test_a_step_is_drawn_at_once_also_while_something_else_is_compiled():
    """A batch that is taken inside of a compiled function is a constant of it."""
    source = sampling.PoissonBatches(KEY, 200, 0.2, num_steps=6)
    rows = jax.jit(lambda x: x + source[3].indices)(0)
    np.testing.assert_array_equal(rows, source[3].indices)


def test_the_default_capacity_is_for_the_whole_run():
    """The capacity is chosen for all steps, and for the probability that is really sampled with."""
    source = sampling.PoissonBatches(KEY, 1437, 64 / 1437, num_steps=900)
    used = sampling.dyadic_probability(64 / 1437)
    assert source.sampling_prob == used
    assert source.capacity == sampling.choose_capacity(1437, used, 900)
    assert source.overflow == sampling.overflow_probability(1437, used, 900, source.capacity) <= 1e-12


def test_a_batch_that_does_not_fit_is_refused():
    """Traps 15 and 33: a batch is neither truncated nor skipped, and those before it are given."""

    @jax.jit
    def count_of(step):
        key = jax.random.fold_in(KEY, step)
        return sampling.poisson_sample(key, 100, 0.5, 100).count

    counts = [int(count_of(step)) for step in range(40)]

    # One batch fills this capacity, and one has a row more.
    capacity = next(count for count in sorted(counts) if count >= 48 and count + 1 in counts)
    source = sampling.PoissonBatches(KEY, 100, 0.5, num_steps=40, capacity=capacity)
    for step, count in enumerate(counts):
        if count <= capacity:
            is_real = ~source[step].is_padding
            assert is_real.sum() == count
        else:
            message = f"step {step} drew {count} .* capacity is {capacity}"
            with pytest.raises(sampling.BatchOverflowError, match=message):
                source[step]

    # The iterator raises it as well, and a loader may catch it as a RuntimeError.
    assert issubclass(sampling.BatchOverflowError, RuntimeError)
    with pytest.raises(sampling.BatchOverflowError):
        list(sampling.poisson_batches(KEY, 100, 0.5, num_steps=40, capacity=capacity))


def test_empty_batches_are_all_padding():
    """A batch without rows has the shape of all others."""
    batch = sampling.PoissonBatches(KEY, 100, 0.0, num_steps=1, capacity=8)[0]
    assert batch.is_padding.all()
    assert batch.indices.shape == (8,)


def test_sizes_pad_to_the_smallest_that_fits():
    """The rows are the same in every size."""
    sizes = (24, 30, 64)
    of_one_size = list(sampling.poisson_batches(KEY, 100, 0.3, num_steps=30, capacity=64))
    of_several_sizes = list(sampling.poisson_batches(KEY, 100, 0.3, num_steps=30, sizes=sizes))
    used_sizes = set()
    for batch, expected in zip(of_several_sizes, of_one_size, strict=True):
        rows = batch.indices[~batch.is_padding]
        expected_rows = expected.indices[~expected.is_padding]
        np.testing.assert_array_equal(rows, expected_rows)
        smallest_that_fits = min(size for size in sizes if size >= len(rows))
        assert len(batch.indices) == smallest_that_fits
        used_sizes.add(len(batch.indices))
    assert used_sizes == {24, 30, 64}


def test_rows_beyond_the_real_ones_are_never_drawn():
    """Trap 34: a data set below the public maximum gives the same shapes and the same coins."""
    everything = sampling.PoissonBatches(KEY, 100, 0.5, num_steps=5, capacity=100)
    fewer = sampling.PoissonBatches(KEY, 100, 0.5, num_steps=5, capacity=100, num_valid=60)
    for step in range(5):
        all_indices, is_padding_of_all = everything[step]
        indices, is_padding = fewer[step]
        expected = all_indices[~is_padding_of_all & (all_indices < 60)]
        np.testing.assert_array_equal(indices[~is_padding], expected)
        assert indices.shape == all_indices.shape
    assert fewer.capacity == everything.capacity
    assert "60" not in repr(fewer)


def test_sources_survive_pickling_and_show_no_key():
    """An unpickled source has the same batches, and prints the same, as loaders compare that when they resume."""
    words_of_key = np.asarray(jax.random.key_data(KEY))
    for source in [
        sampling.PoissonBatches(KEY, 100, 0.3, num_steps=3),
        sampling.UniformBatches(KEY, 100, 9, num_steps=3),
    ]:
        unpickled = pickle.loads(pickle.dumps(source))
        assert_same(unpickled, source)
        assert repr(unpickled) == repr(source)
        for word in words_of_key:
            if word > 100:
                assert str(word) not in repr(source)


@pytest.mark.parametrize("step", [-1, 3, 10])
def test_steps_outside_the_run_do_not_exist(step):
    """A negative step does not count from the end."""
    with pytest.raises(IndexError, match="from 0 to 2"):
        sampling.PoissonBatches(KEY, 100, 0.3, num_steps=3)[step]


def test_steps_are_whole_numbers():
    """A step may be a whole number of NumPy, and is refused as a float."""
    source = sampling.PoissonBatches(KEY, 100, 0.3, num_steps=3)
    assert_same([source[np.int64(2)]], [source[2]])
    with pytest.raises(ValueError, match="step must be a whole number"):
        source[1.0]


def test_the_iterator_checks_its_arguments_at_once():
    """Wrong arguments are refused before the first batch is asked for."""
    assert "num_steps" in inspect.signature(sampling.poisson_batches).parameters
    with pytest.raises(ValueError, match="sampling_prob"):
        sampling.poisson_batches(KEY, 100, 1.5, num_steps=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(key=0), "key must be a PRNG key"),
        (dict(num_examples=0), "num_examples"),
        (dict(num_steps=0), "num_steps"),
        (dict(capacity=0), "capacity"),
        (dict(overflow=0.0), "overflow"),
        (dict(sizes=(5, 5)), "ascending"),
        (dict(sizes=(6, 5)), "ascending"),
        (dict(sizes=()), "ascending"),
        (dict(sizes=(5, 7), capacity=8), "last of sizes"),
        (dict(num_valid=101), "num_valid must be a whole number >= 0, at most 100, got 101"),
        (dict(num_valid=-1), "num_valid"),
        (dict(start=-1), "start"),
        (dict(start=4), "start must be at most num_steps=3"),
        (dict(sampling_prob=1e-12), "2\\^-32"),
    ],
)
def test_bad_input(options, message):
    """The message names the argument."""
    arguments = {
        "key": KEY,
        "num_examples": 100,
        "sampling_prob": 0.3,
        "num_steps": 3,
        **options,
    }
    with pytest.raises(ValueError, match=message):
        sampling.poisson_batches(**arguments)
    if "num_valid" in options:
        with pytest.raises(ValueError, match="num_valid"):
            sampling.poisson_sample(KEY, 100, 0.3, 10, num_valid=options["num_valid"])


def test_a_uniform_batch_larger_than_the_data_is_refused():
    """A batch of six cannot hold different rows of five."""
    with pytest.raises(ValueError, match="at most 5, got"):
        sampling.UniformBatches(KEY, 5, 6, num_steps=1)

    # Nothing above changed the precision.
    assert jnp.ones(()).dtype == jnp.float32


def test_a_traced_step_is_sent_to_the_function_for_compiled_code():
    """A step that is traced is refused, and the message names the function that takes one."""
    poisson = sampling.PoissonBatches(jax.random.key(0), 20, 0.1, num_steps=3)
    uniform = sampling.UniformBatches(jax.random.key(0), 20, 4, num_steps=3)
    for batches, name in ((poisson, "poisson_sample"), (uniform, "uniform_sample")):
        with pytest.raises(ValueError, match=f"call gdpjax.sampling.{name} with"):
            jax.jit(lambda t, batches=batches: batches[t].indices)(1)
        with pytest.raises(ValueError, match=r"step must be a whole number, got 1\.5"):
            batches[1.5]
        assert batches[np.int64(1)].indices.tolist() == batches[1].indices.tolist()
