"""Batches on the host are those of the device, from any step on, padded, pickled, and never truncated."""

import pickle

import jax
import numpy as np
import pytest

from gdpjax import sampling
from gdpjax.sampling import HostBatches

KEY = jax.random.key(7)
SCHEMES = {
    "poisson": sampling.Poisson(60, 20, 6),
    "truncated": sampling.TruncatedPoisson(60, 20, 6, capacity=18),
    "without replacement": sampling.WithoutReplacement(60, 7, 6),
    "allocation": sampling.RandomAllocation(60, 20, epochs=2, num_selected=2),
    "fixed allocation": sampling.RandomAllocation(60, 20, epochs=2, num_selected=2, bins="fixed"),
    "shuffled": sampling.Shuffled(60, 20, epochs=2),
    "shuffled once": sampling.Shuffled(60, 20, epochs=2, order="fixed"),
    "cyclic": sampling.CyclicPoisson(60, 10, 6, num_groups=3),
}
each_scheme = pytest.mark.parametrize("name", SCHEMES)


def assert_same(batch, expected):
    for part, expected_part in zip(batch, expected, strict=True):
        np.testing.assert_array_equal(part, expected_part)


@each_scheme
def test_a_step_has_the_batch_of_the_device(name):
    """In any order of the steps, and after pickling, as arrays of NumPy."""
    batches = SCHEMES[name]
    host = batches.on_host(KEY, num_valid=45)
    draw = jax.jit(lambda step: batches.sample(KEY, step, num_valid=45))
    assert len(host) == batches.num_steps
    for step in (3, 0, 5, 3):
        indices, is_padding = host[step]
        assert_same((indices, is_padding), draw(step)[:2])
        assert (type(indices), indices.dtype, is_padding.dtype) == (np.ndarray, np.int32, bool)
        assert indices.shape == (batches.capacity,)
        assert indices[~is_padding].max(initial=0) < 45
    again = pickle.loads(pickle.dumps(host))
    assert_same(again[5], host[5])
    assert repr(again) == repr(host)


@each_scheme
def test_a_scheme_is_a_value_that_passes_through_jit(name):
    """Static, without leaves: equal ones share a program, and a plan's JSON form reads it back."""
    batches = SCHEMES[name]
    assert jax.tree.leaves(batches) == []
    assert jax.jit(lambda scheme: scheme)(batches) == batches
    assert pickle.loads(pickle.dumps(batches)) == batches
    assert hash(pickle.loads(pickle.dumps(batches))) == hash(batches)
    assert sampling.AbstractBatches.from_dict(batches.to_dict()) == batches
    assert batches.replace(num_steps=batches.num_steps) == batches


@each_scheme
def test_a_plan_of_any_length_has_the_overflow_of_its_event(name):
    """The share of a step, times the number of steps, is what the whole run may lose."""
    batches = SCHEMES[name]
    whole, half = batches.event(2.0), batches.event(2.0, batches.num_steps // 2)
    assert (whole.num_steps, half.num_steps) == (batches.num_steps, batches.num_steps // 2)
    if hasattr(whole, "overflow"):
        assert whole.overflow == batches.overflow
        assert half.overflow == pytest.approx(batches.overflow / 2)
    else:
        assert batches.overflow == 0


@pytest.mark.parametrize("impl", ["rbg", "threefry2x32"])
def test_any_key_and_a_legacy_one(impl):
    """A key of any generator gives the batches of the device, and a legacy key those of the typed one."""
    batches = SCHEMES["poisson"]
    key = jax.random.key(3, impl=impl)
    assert_same(batches.on_host(key)[1], jax.jit(batches.sample)(key, 1)[:2])
    assert_same(batches.on_host(jax.random.PRNGKey(3))[1], batches.on_host(jax.random.key(3))[1])


def test_a_step_is_drawn_at_once_also_while_something_else_is_compiled():
    """A batch that is taken inside of a compiled function is a constant of it."""
    host = SCHEMES["poisson"].on_host(KEY)
    rows = jax.jit(lambda x: x + host[3].indices)(0)
    np.testing.assert_array_equal(rows, host[3].indices)


def test_it_is_a_sequence_of_all_steps():
    host = SCHEMES["poisson"].on_host(KEY)
    for step, batch in enumerate(host):
        assert_same(batch, host[step])
    assert step == 5


def test_a_batch_that_does_not_fit_is_refused():
    """Traps 15 and 33: a batch is neither truncated nor skipped, and those before it are given."""
    batches = sampling.Poisson(100, 50, 10, capacity=58)
    counts_of = jax.jit(lambda key: jax.vmap(lambda step: batches.sample(key, step).count)(np.arange(10)))
    key = next(key for key in jax.random.split(KEY, 50) if max(counts_of(key)) > 58)
    counts = [int(count) for count in counts_of(key)]
    host = batches.on_host(key)
    for step, count in enumerate(counts):
        if count <= 58:
            assert (~host[step].is_padding).sum() == count
        else:
            with pytest.raises(sampling.BatchOverflowError, match=f"step {step} drew {count} .* capacity is 58"):
                host[step]
    assert issubclass(sampling.BatchOverflowError, RuntimeError)
    with pytest.raises(sampling.BatchOverflowError):
        list(host)


def test_rows_beyond_the_real_ones_are_never_drawn():
    """Trap 34: a data set below the public maximum gives the same shapes and the same coins."""
    everything = SCHEMES["poisson"].on_host(KEY)
    fewer = SCHEMES["poisson"].on_host(KEY, num_valid=33)
    for step in range(5):
        all_indices, is_padding_of_all = everything[step]
        indices, is_padding = fewer[step]
        np.testing.assert_array_equal(indices[~is_padding], all_indices[~is_padding_of_all & (all_indices < 33)])
        assert indices.shape == all_indices.shape


def test_it_shows_neither_key_nor_number_of_rows():
    host = SCHEMES["poisson"].on_host(jax.random.key(987654321), num_valid=47)
    assert "987654321" not in repr(host)
    assert "47" not in repr(host)


@pytest.mark.parametrize("step", [-1, 6, 10])
def test_steps_outside_the_run_do_not_exist(step):
    """A negative step does not count from the end."""
    with pytest.raises(IndexError, match="from 0 to 5"):
        SCHEMES["poisson"].on_host(KEY)[step]


def test_steps_are_whole_numbers():
    """A step may be a whole number of NumPy, and is refused as a float or where it is traced."""
    host = SCHEMES["poisson"].on_host(KEY)
    assert_same(host[np.int64(2)], host[2])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(key=0), "key must be a PRNG key"),
        (dict(num_valid=61), "num_valid must be a whole number >= 0, at most 60, got 61"),
        (dict(num_valid=-1), "num_valid"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        HostBatches(SCHEMES["poisson"], **{"key": KEY} | options)
