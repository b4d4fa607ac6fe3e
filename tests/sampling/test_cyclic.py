"""Cyclic Poisson sampling: groups, frequencies, the host and the device, and refusals."""

import functools

import jax
import numpy as np
import pytest

from gdpjax.sampling import BatchOverflowError, CyclicPoisson, overflow_probability
from tests.sampling.frequencies import included, rows_of

KEY = jax.random.key(5)


OF_25 = CyclicPoisson(100, 20, 10, num_groups=4, capacity=24)


@jax.jit
def draw(step, num_valid):
    """One batch from groups of 25 rows, of which 24 fit."""
    return OF_25.sample(KEY, step, num_valid=num_valid)


@functools.partial(jax.jit, static_argnums=3)
def draw_for_keys(keys, step, num_valid, prob):
    """A batch for each key, from three groups of ten rows."""
    batches = CyclicPoisson(30, 10 * prob, 10, num_groups=3, capacity=11)
    return jax.vmap(lambda key: batches.sample(key, step, num_valid=num_valid))(keys)


def included_for_keys(step, prob, num_keys=4000):
    """float[keys, 30]: one for the rows of the batch of each key."""
    sample = draw_for_keys(jax.random.split(KEY, num_keys), step, 30, prob)
    chosen = included(np.asarray(sample.indices), np.asarray(sample.is_padding), 30)
    return chosen.astype(float)


@pytest.mark.parametrize(("num_examples", "num_groups"), [(103, 4), (7, 7)])
def test_the_groups_are_a_partition_that_comes_back(num_examples, num_groups):
    """Every row is in one group, whose sizes differ by one at most, and the next cycle has the same groups."""
    longest = -(-num_examples // num_groups)

    batches = CyclicPoisson(num_examples, longest, 10, num_groups=num_groups, capacity=longest + 1)

    @jax.jit
    def draw_all(step):
        return batches.sample(KEY, step)

    def group(step):
        sample = draw_all(step)
        assert int(sample.count) == len(rows_of(sample))
        return rows_of(sample)

    groups = [group(step) for step in range(num_groups)]
    members = [row for rows in groups for row in rows]
    assert sorted(members) == list(range(num_examples))
    assert {len(rows) for rows in groups} <= {longest, num_examples // num_groups}
    assert [group(num_groups + step) for step in range(num_groups)] == groups


def test_rows_are_drawn_independently_with_the_probability():
    """Over keys all rows are alike: drawn with p / 3, in steps of one group not at all, never twice in a cycle."""
    prob = 0.3
    draws = 4000
    drawn = np.stack([included_for_keys(step, prob, draws) for step in range(3)])
    assert drawn.sum(axis=0).max() == 1
    share = prob / 3
    assert np.max(np.abs(drawn.mean(axis=1) - share)) < 5 * np.sqrt(share * (1 - share) / draws)

    # Two rows are in one group with probability 9 / 29, and then both drawn with p^2.
    both = np.einsum("sdi,sdj->ij", drawn, drawn) / draws
    pairs = both[~np.eye(30, dtype=bool)]
    expected = prob**2 * 9 / 29
    assert np.max(np.abs(pairs - expected)) < 6 * np.sqrt(expected / draws)


@pytest.mark.parametrize("num_valid", [0, 1, 57, 100])
def test_rows_that_are_not_real_are_padding(num_valid):
    """The real rows are drawn as they would be if all were real."""
    members = rows_of(draw(3, 100))
    sample = draw(3, num_valid)
    assert len(members) > 10
    assert rows_of(sample) == [row for row in members if row < num_valid]


def test_the_overflow_is_that_of_the_largest_group():
    """The public number of rows decides, however many are real."""
    batches = CyclicPoisson(101, 10, 10, num_groups=4, capacity=26)
    assert batches.overflow == pytest.approx(overflow_probability(26, batches.sampling_prob, 10, 26), rel=1e-12)
    assert CyclicPoisson(101, 10, 10, num_groups=4, capacity=27).overflow < 1e-34


def test_a_batch_that_does_not_fit_is_padding_and_stops_the_host():
    """A batch of 25 with 24 slots is never truncated; one with so many is found among many keys."""
    keys = jax.random.split(KEY, 2000)
    counts = jax.jit(jax.vmap(lambda key: OF_25.sample(key, 0).count))(keys)
    key = keys[int(np.argmax(counts))]
    assert counts.max() == 25
    assert np.all(jax.jit(OF_25.sample)(key, 0).is_padding)
    with pytest.raises(BatchOverflowError, match="drew 25"):
        OF_25.on_host(key)[0]
