"""Batches on the host: those of the device, from any step on, padded, pickled, and never truncated."""

import inspect
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax import sampling

KEY = jax.random.key(7)


def assert_same(batches, others):
    for (indices, is_padding), (other, others_padding) in zip(batches, others, strict=True):
        np.testing.assert_array_equal(indices, other)
        np.testing.assert_array_equal(is_padding, others_padding)


@pytest.mark.parametrize("p", [0.1, pytest.param(1.0, marks=pytest.mark.slow)])
def test_a_step_has_the_batch_of_the_device(p):
    """As arrays of NumPy."""
    batches = list(sampling.poisson_batches(KEY, 500, p, num_steps=4, capacity=501))
    device = jax.jit(lambda t: sampling.poisson_sample(jax.random.fold_in(KEY, t), 500, p, 501)[:2])
    assert_same(batches, [device(t) for t in range(4)])
    assert all(type(part) is np.ndarray for part in batches[0])
    assert (batches[0].indices.dtype, batches[0].is_padding.dtype) == (np.int32, bool)


def test_a_step_has_the_uniform_batch_of_the_device():
    """Without padding."""
    batches = sampling.UniformBatches(KEY, 100, 7, num_steps=5)
    draw = jax.jit(lambda t: sampling.uniform_sample(jax.random.fold_in(KEY, t), 100, 7))
    for t in range(5):
        np.testing.assert_array_equal(batches[t].indices, draw(t))
        assert not batches[t].is_padding.any()
    assert batches.sampling_prob == 0.07
    assert batches.overflow == sampling.uniform_sampling_error(100, 5)


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
def test_any_key_and_a_legacy_one(impl):
    """A legacy key has the batches of the typed one."""
    key = jax.random.key(3, impl=impl)
    batch = sampling.PoissonBatches(key, 50, 0.5, num_steps=2, capacity=50)[1]
    draw = jax.jit(lambda key: sampling.poisson_sample(jax.random.fold_in(key, 1), 50, 0.5, 50)[:2])
    assert_same([batch], [draw(key)])
    legacy = sampling.PoissonBatches(jax.random.PRNGKey(3), 50, 0.5, num_steps=2, capacity=50)[1]
    assert_same(
        [legacy],
        [sampling.PoissonBatches(jax.random.key(3), 50, 0.5, num_steps=2, capacity=50)[1]],
    )


def test_it_starts_anywhere():
    """The batch of a step is a function of the key and the step."""
    whole = list(gdpjax.poisson_batches(KEY, 200, 0.2, num_steps=6))
    for start in [0, 1, 5, 6]:
        assert_same(
            gdpjax.poisson_batches(KEY, 200, 0.2, num_steps=6, start=start),
            whole[start:],
        )
    source = sampling.PoissonBatches(KEY, 200, 0.2, num_steps=6)
    assert_same([source[t] for t in [5, 0, 3]], [whole[t] for t in [5, 0, 3]])
    assert_same(source, whole)
    assert len(source) == 6


def test_a_step_is_drawn_at_once_also_while_something_else_is_compiled():
    """It is no part of what is traced."""
    source = sampling.PoissonBatches(KEY, 200, 0.2, num_steps=6)
    rows = jax.jit(lambda x: x + source[3].indices)(0)
    np.testing.assert_array_equal(rows, source[3].indices)


def test_the_default_capacity_is_for_the_whole_run():
    """It is chosen for the probability that is really sampled with."""
    source = sampling.PoissonBatches(KEY, 1437, 64 / 1437, num_steps=900)
    used = sampling.dyadic_probability(64 / 1437)
    assert source.sampling_prob == used
    assert source.capacity == sampling.choose_capacity(1437, used, 900)
    assert source.overflow == sampling.overflow_probability(1437, used, 900, source.capacity) <= 1e-12


def test_a_batch_that_does_not_fit_is_refused():
    """Traps 15 and 33: neither truncated nor skipped; the batches before it are given."""
    count_of = jax.jit(lambda t: sampling.poisson_sample(jax.random.fold_in(KEY, t), 100, 0.5, 100).count)
    counts = [int(count_of(t)) for t in range(40)]
    capacity = next(count for count in sorted(counts) if count >= 48 and count + 1 in counts)  # full, and one above
    source = sampling.PoissonBatches(KEY, 100, 0.5, num_steps=40, capacity=capacity)
    fits = np.array(counts) <= capacity
    for t in range(40):
        if fits[t]:
            assert (~source[t].is_padding).sum() == counts[t]
        else:
            with pytest.raises(
                sampling.BatchOverflowError,
                match=f"step {t} drew {counts[t]} .* capacity is {capacity}",
            ):
                source[t]
    assert issubclass(sampling.BatchOverflowError, RuntimeError)
    with pytest.raises(sampling.BatchOverflowError):
        list(sampling.poisson_batches(KEY, 100, 0.5, num_steps=40, capacity=capacity))


def test_empty_batches_are_all_padding():
    """They have the shape of all others."""
    batch = sampling.PoissonBatches(KEY, 100, 0.0, num_steps=1, capacity=8)[0]
    assert batch.is_padding.all()
    assert batch.indices.shape == (8,)


def test_sizes_pad_to_the_smallest_that_fits():
    """The rows are the same in every size."""
    one = list(sampling.poisson_batches(KEY, 100, 0.3, num_steps=30, capacity=64))
    several = list(sampling.poisson_batches(KEY, 100, 0.3, num_steps=30, sizes=(24, 30, 64)))
    counts = [(~batch.is_padding).sum() for batch in one]
    expected = [24 if count <= 24 else 30 if count <= 30 else 64 for count in counts]
    assert [len(batch.indices) for batch in several] == expected
    assert set(expected) == {24, 30, 64}
    for a, b in zip(one, several, strict=True):
        np.testing.assert_array_equal(a.indices[~a.is_padding], b.indices[~b.is_padding])


def test_rows_beyond_the_real_ones_are_never_drawn():
    """Trap 34: a data set below the public maximum gives the same shapes and the same coins."""
    everything = sampling.PoissonBatches(KEY, 100, 0.5, num_steps=5, capacity=100)
    fewer = sampling.PoissonBatches(KEY, 100, 0.5, num_steps=5, capacity=100, num_valid=60)
    for t in range(5):
        (all_rows, padding), (rows, others) = everything[t], fewer[t]
        np.testing.assert_array_equal(rows[~others], all_rows[~padding & (all_rows < 60)])
        assert rows.shape == all_rows.shape
    assert fewer.capacity == everything.capacity
    assert "60" not in repr(fewer)


def test_sources_survive_pickling_and_show_no_key():
    """Loaders compare what a source prints when they resume."""
    for source in [
        sampling.PoissonBatches(KEY, 100, 0.3, num_steps=3),
        sampling.UniformBatches(KEY, 100, 9, num_steps=3),
    ]:
        assert_same(pickle.loads(pickle.dumps(source)), source)
        assert not any(str(word) in repr(source) for word in np.asarray(jax.random.key_data(KEY)) if word > 100)
        assert repr(source) == repr(pickle.loads(pickle.dumps(source)))  # loaders compare them when they resume


@pytest.mark.parametrize("step", [-1, 3, 10])
def test_steps_outside_the_run_do_not_exist(step):
    """A negative step does not count from the end."""
    with pytest.raises(IndexError, match="from 0 to 2"):
        sampling.PoissonBatches(KEY, 100, 0.3, num_steps=3)[step]


def test_steps_are_whole_numbers():
    """Of NumPy too."""
    source = sampling.PoissonBatches(KEY, 100, 0.3, num_steps=3)
    assert_same([source[np.int64(2)]], [source[2]])
    with pytest.raises(ValueError, match="step must be a whole number"):
        source[1.0]


def test_the_iterator_checks_its_arguments_at_once():
    """And not when the first batch is asked for."""
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
        (dict(num_valid=101), "num_valid must be at most num_examples=100"),
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
    """It cannot hold different rows."""
    with pytest.raises(ValueError, match="at most num_examples=5"):
        sampling.UniformBatches(KEY, 5, 6, num_steps=1)
    assert jnp.ones(()).dtype == jnp.float32  # nothing above changed the precision


def test_a_traced_step_is_sent_to_the_function_for_compiled_code():
    """The message names it."""
    poisson = sampling.PoissonBatches(jax.random.key(0), 20, 0.1, num_steps=3)
    uniform = sampling.UniformBatches(jax.random.key(0), 20, 4, num_steps=3)
    for batches, name in ((poisson, "poisson_sample"), (uniform, "uniform_sample")):
        with pytest.raises(ValueError, match=f"call gdpjax.sampling.{name} with"):
            jax.jit(lambda t, batches=batches: batches[t].indices)(1)
        with pytest.raises(ValueError, match=r"step must be a whole number, got 1\.5"):
            batches[1.5]
        assert batches[np.int64(1)].indices.tolist() == batches[1].indices.tolist()
