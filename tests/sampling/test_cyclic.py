"""Cyclic Poisson sampling: groups, frequencies, the host and the device, and refusals."""

import pickle

import jax
import numpy as np
import pytest

from gdpjax.sampling import (
    BatchOverflowError,
    CyclicPoissonBatches,
    cyclic_poisson_sample,
    overflow_probability,
)
from tests.sampling.frequencies import included

KEY = jax.random.key(5)


def rows_of(sample):
    return np.asarray(sample.indices)[~np.asarray(sample.is_padding)]


@pytest.mark.parametrize(
    ("num_examples", "num_groups"),
    [
        (103, 4),
        (7, 7),
        (5, 1),
        pytest.param(100, 4, marks=pytest.mark.slow),
        pytest.param(10, 3, marks=pytest.mark.slow),
    ],
)
def test_the_groups_are_a_partition_that_comes_back(num_examples, num_groups):
    longest = -(-num_examples // num_groups)

    draw = jax.jit(lambda step: cyclic_poisson_sample(KEY, step, num_examples, 1.0, num_groups, longest + 1))

    def group(step):
        sample = draw(step)
        assert int(sample.count) == len(rows_of(sample))
        return rows_of(sample).tolist()

    groups = [group(step) for step in range(num_groups)]
    assert sorted(row for members in groups for row in members) == list(range(num_examples))
    assert {len(members) for members in groups} <= {longest, num_examples // num_groups}
    assert [group(num_groups + step) for step in range(num_groups)] == groups


def test_rows_are_drawn_independently_with_the_probability():
    """Over keys all rows are alike: drawn with p / 3, in steps of one group not at all, never twice in a cycle."""
    prob, draws = 0.3, 4000

    def draw(key, step):
        return cyclic_poisson_sample(key, step, 30, prob, 3, 11)

    of_all_steps = jax.vmap(jax.vmap(draw, (0, None)), (None, 0))
    drawn = jax.jit(of_all_steps)(jax.random.split(KEY, draws), np.arange(3))
    samples = zip(np.asarray(drawn.indices), np.asarray(drawn.is_padding), strict=True)
    drawn = np.stack([included(indices, is_padding, 30) for indices, is_padding in samples]).astype(float)
    assert drawn.sum(axis=0).max() == 1
    share = prob / 3
    assert np.max(np.abs(drawn.mean(axis=1) - share)) < 5 * np.sqrt(share * (1 - share) / draws)

    # Two rows are in one group with probability 9 / 29, and then both drawn with p^2.
    both = np.einsum("sdi,sdj->ij", drawn, drawn) / draws
    pairs = both[~np.eye(30, dtype=bool)]
    expected = prob**2 * 9 / 29
    assert np.max(np.abs(pairs - expected)) < 6 * np.sqrt(expected / draws)


def test_removing_a_row_changes_no_law():
    """Trap: with groups by row number every row behind the one that is removed would change its group.

    Rows 0, 2, 4, ... have the value +1 and the others -1. The sum of a batch does not tell whether row 0 is there.
    """
    values = np.where(np.arange(40) % 2, -1.0, 1.0)
    keys = jax.random.split(KEY, 2000)

    @jax.jit
    def draw(keys, num_valid):
        return jax.vmap(lambda key: cyclic_poisson_sample(key, 0, 40, 1.0, 2, 20, num_valid=num_valid))(keys)

    def sums(num_valid, values):
        sample = draw(keys, num_valid)
        return np.sum(np.where(sample.is_padding, 0.0, values[np.asarray(sample.indices)]), axis=1)

    found = sums(40, values)
    without = sums(39, np.append(values[1:], 0.0))
    assert abs(found.mean() - without.mean() - 0.5) < 0.5
    assert abs(found.std() - without.std()) < 0.5


def test_steps_of_one_group_are_independent_draws():
    draw = jax.jit(lambda step: cyclic_poisson_sample(KEY, step, 1000, 0.5, 2, 400))
    first, second = (rows_of(draw(step)) for step in (0, 2))
    both = len(set(first) & set(second))
    assert abs(both - 125) < 50


@jax.jit
def draw(step, num_valid, prob):
    return cyclic_poisson_sample(KEY, step, 100, prob, 4, 26, num_valid=num_valid)


@pytest.mark.parametrize("num_valid", [0, 1, 57, 100])
def test_rows_that_are_not_real_are_padding(num_valid):
    members = rows_of(draw(3, 100, 1.0))
    sample = draw(3, num_valid, 1.0)
    np.testing.assert_array_equal(rows_of(sample), members[members < num_valid])


def test_the_host_draws_what_the_device_draws():
    batches = CyclicPoissonBatches(KEY, 100, 0.4, 4, num_steps=10, capacity=26, num_valid=90)
    for step in range(10):
        on_device = draw(step, 90, batches.sampling_prob)
        np.testing.assert_array_equal(batches[step].indices, on_device.indices)
        np.testing.assert_array_equal(batches[step].is_padding, on_device.is_padding)
    again = pickle.loads(pickle.dumps(batches))
    np.testing.assert_array_equal(again[7].indices, batches[7].indices)


def test_the_overflow_is_that_of_the_largest_group():
    batches = CyclicPoissonBatches(KEY, 101, 0.4, 4, num_steps=10, capacity=26, num_valid=90)
    assert batches.overflow == overflow_probability(26, batches.sampling_prob, 10, 26)


def test_a_batch_that_does_not_fit_is_padding_and_stops_the_host():
    sample = jax.jit(lambda step: cyclic_poisson_sample(KEY, step, 100, 1.0, 4, 20))(0)
    assert np.all(sample.is_padding)
    assert int(sample.count) == 25
    with pytest.raises(BatchOverflowError, match="drew 25"):
        CyclicPoissonBatches(KEY, 100, 1.0, 4, num_steps=8, capacity=20)[0]


@pytest.mark.parametrize(
    ("step", "num_valid", "prob"),
    [(-1, 10, 0.5), (0.5, 10, 0.5), (0, 101, 0.5), (0, -1, 0.5), (0, 5, 2.0)],
)
def test_traced_values_out_of_range_never_fit(step, num_valid, prob):
    sample = draw(step, num_valid, prob)
    assert int(sample.count) > 26
    assert np.all(sample.is_padding)
    with pytest.raises(ValueError, match="must be"):
        jax.eval_shape(lambda: cyclic_poisson_sample(KEY, step, 100, prob, 4, 26, num_valid=num_valid))


def test_more_groups_than_rows_are_refused():
    with pytest.raises(ValueError, match="num_groups must be at most"):
        cyclic_poisson_sample(KEY, 0, 5, 0.5, 6, 3)
