"""Cyclic Poisson sampling: groups, frequencies, the host and the device, and refusals."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.sampling import BatchOverflowError, CyclicPoissonBatches, cyclic_poisson_sample, overflow_probability

KEY = jax.random.key(5)


def rows_of(sample):
    return np.asarray(sample.indices)[~np.asarray(sample.is_padding)]


@pytest.mark.parametrize(("num_examples", "num_groups"), [(100, 4), (103, 4), (7, 7), (5, 1), (10, 3)])
def test_a_step_has_rows_of_its_group_only(num_examples, num_groups):
    longest = -(-num_examples // num_groups)
    for step in range(2 * num_groups):
        sample = cyclic_poisson_sample(KEY, step, num_examples, 1.0, num_groups, longest + 1)
        expected = np.arange(step % num_groups, num_examples, num_groups)
        np.testing.assert_array_equal(rows_of(sample), expected)
        assert int(sample.count) == len(expected)


def test_rows_are_drawn_independently_with_the_probability():
    prob, draws = 0.3, 4000
    sample = jax.vmap(lambda key: cyclic_poisson_sample(key, 1, 30, prob, 3, 11))(jax.random.split(KEY, draws))
    drawn = np.zeros((draws, 30))
    for i in range(draws):
        drawn[i, np.asarray(sample.indices[i])[~np.asarray(sample.is_padding[i])]] = 1
    group = drawn[:, 1::3]
    assert drawn.sum() == group.sum()
    assert np.max(np.abs(group.mean(axis=0) - prob)) < 5 * np.sqrt(prob * (1 - prob) / draws)
    correlation = np.corrcoef(group.T) - np.eye(10)
    assert np.max(np.abs(correlation)) < 5 / np.sqrt(draws)


def test_steps_of_one_group_are_independent_draws():
    first, second = (cyclic_poisson_sample(KEY, step, 1000, 0.5, 2, 400) for step in (0, 2))
    both = len(set(rows_of(first)) & set(rows_of(second)))
    assert abs(both - 125) < 50


@pytest.mark.parametrize("num_valid", [0, 1, 57, 100])
def test_rows_that_are_not_real_are_padding(num_valid):
    sample = cyclic_poisson_sample(KEY, 3, 100, 1.0, 4, 26, num_valid=num_valid)
    np.testing.assert_array_equal(rows_of(sample), np.arange(3, num_valid, 4))


def test_the_host_draws_what_the_device_draws():
    batches = CyclicPoissonBatches(KEY, 101, 0.4, 4, num_steps=10, capacity=26, num_valid=90)
    on_device = jax.jit(lambda step: cyclic_poisson_sample(KEY, step, 101, 0.4, 4, 26, num_valid=90))
    for step in range(10):
        np.testing.assert_array_equal(batches[step].indices, on_device(step).indices)
        np.testing.assert_array_equal(batches[step].is_padding, on_device(step).is_padding)
    again = pickle.loads(pickle.dumps(batches))
    np.testing.assert_array_equal(again[7].indices, batches[7].indices)
    assert batches.overflow == overflow_probability(26, batches.sampling_prob, 10, 26)


def test_a_batch_that_does_not_fit_is_padding_and_stops_the_host():
    sample = cyclic_poisson_sample(KEY, 0, 100, 1.0, 4, 20)
    assert np.all(sample.is_padding)
    assert int(sample.count) == 25
    with pytest.raises(BatchOverflowError, match="drew 25"):
        CyclicPoissonBatches(KEY, 100, 1.0, 4, num_steps=8, capacity=20)[0]


@pytest.mark.parametrize(
    ("step", "num_valid", "prob"), [(-1, 10, 0.5), (0.5, 10, 0.5), (0, 101, 0.5), (0, -1, 0.5), (0, 5, 2.0)]
)
def test_traced_values_out_of_range_never_fit(step, num_valid, prob):
    draw = jax.jit(lambda *args: cyclic_poisson_sample(KEY, args[0], 100, args[2], 4, 26, num_valid=args[1]))
    sample = draw(jnp.asarray(step), jnp.asarray(num_valid), jnp.asarray(prob))
    assert int(sample.count) > 26
    assert np.all(sample.is_padding)
    with pytest.raises(ValueError, match="must be"):
        cyclic_poisson_sample(KEY, step, 100, prob, 4, 26, num_valid=num_valid)


def test_more_groups_than_rows_are_refused():
    with pytest.raises(ValueError, match="num_groups must be at most"):
        cyclic_poisson_sample(KEY, 0, 5, 0.5, 6, 3)
