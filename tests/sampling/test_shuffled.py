"""Shuffled batches: every row once an epoch, all orders equally likely, on the device and on the host."""

import itertools

import jax
import numpy as np
import pytest

from gdpjax import sampling
from gdpjax.sampling import _ranks
from tests.sampling.frequencies import check_distribution, included, rows_of_steps

KEY = jax.random.key(7)
N = 60
SEVEN = sampling.Shuffled(N, N / 7, epochs=2)


def epochs_of(key, num_epochs, steps_per_epoch, n=N):
    """bool[num_epochs, steps_per_epoch, n]: which rows are in which step."""
    batches = sampling.Shuffled(n, n / steps_per_epoch, epochs=num_epochs)
    assert (batches.steps_per_epoch, batches.capacity) == (steps_per_epoch, -(-n // steps_per_epoch))
    chosen = rows_of_steps(batches, np.arange(num_epochs * steps_per_epoch), key)
    return chosen.reshape(num_epochs, steps_per_epoch, n)


@jax.jit
def draw(step, num_valid):
    """One batch of seven steps an epoch, by one program for all steps and numbers of real rows."""
    return SEVEN.sample(KEY, step, num_valid=num_valid)


@pytest.mark.parametrize("steps", [7, 59])
def test_every_row_is_in_one_step_of_every_epoch(steps):
    """In batches whose sizes are known, and differ by one at most; every epoch is another order."""
    chosen = epochs_of(KEY, 3, steps)
    assert (chosen.sum(axis=1) == 1).all()
    sizes = [len(part) for part in np.array_split(np.arange(N), steps)]
    assert (chosen.sum(axis=2) == sizes).all()
    if steps > 1:
        assert all((one != other).any() for one, other in itertools.combinations(chosen, 2))


def test_all_partitions_are_equally_likely():
    """And independent from epoch to epoch."""
    n, steps = 5, 2
    place = epochs_of(KEY, 16000, steps, n=n).argmax(axis=1)  # [epochs, rows]

    # All the ways in which the rows can be dealt to the steps, and the number of the way of each epoch.
    one_way = []
    for step, rows in enumerate(np.array_split(np.arange(n), steps)):
        one_way += [step] * len(rows)
    ways = sorted(set(itertools.permutations(one_way)))
    num_ways = len(ways)
    number = np.array([ways.index(tuple(row)) for row in place])
    counts = np.bincount(number, minlength=num_ways)
    check_distribution(counts, np.full(num_ways, 1 / num_ways))

    # Pairs of epochs that follow each other.
    pairs = number[:-1:2] * num_ways + number[1::2]
    counts_of_pairs = np.bincount(pairs, minlength=num_ways**2)
    check_distribution(counts_of_pairs, np.full(num_ways**2, num_ways**-2.0))


def test_rows_that_are_not_real_keep_their_place_in_the_order():
    """An example that takes the place of a null one moves no other, as the bound supposes."""

    def epochs(num_valid):
        batches = [draw(step, num_valid) for step in range(21)]
        indices = np.stack([batch.indices for batch in batches])
        is_padding = np.stack([batch.is_padding for batch in batches])
        return included(indices, is_padding, N).reshape(3, 7, N)

    more = epochs(41)
    fewer = epochs(40)
    np.testing.assert_array_equal(more[..., :40], fewer[..., :40])
    assert not fewer[..., 40:].any()
    assert (more[..., 40].sum(axis=1) == 1).all()
    assert not epochs(0).any()


@jax.jit
def lowest_rows(words, num):
    return _ranks.lowest_rows_of(words[0], lambda: words[1:], num)


@pytest.mark.parametrize("few", [1, 2, 4, 200])
def test_rows_whose_words_tie_are_in_order(few):
    """So that each is in exactly one batch whatever the bits are; the other words are made where they are needed."""
    words = np.random.default_rng(few).integers(0, few, (4, N)).astype(np.uint32)
    words[:, 5] = 2**32 - 1
    order = sorted(range(N), key=lambda row: (*words[:, row], row))
    for num in (0, 1, 2, 17, N - 1, N):
        assert set(np.flatnonzero(lowest_rows(words, num))) == set(order[:num])


def test_the_probability_of_a_tie():
    """Two rows of any epoch have the same 128 bits."""
    bound = sampling.Shuffled(1000, 100, epochs=3).overflow
    assert 3 * 1000 * 999 / 2 * 2.0**-128 <= bound <= 1e-31


@pytest.mark.parametrize("order", ["fresh", "fixed"])
def test_what_batches_promise_of_an_example_is_kept(order):
    """Once an epoch, and with one order for all epochs always in the same step of it."""
    batches = sampling.Shuffled(N, 10, epochs=3, order=order)
    steps = [set(indices[~padding]) for indices, padding in batches.on_host(KEY)]
    most, separation = batches.limits().limits(batches.num_steps)
    for row in range(N):
        taking_part = [step for step, rows in enumerate(steps) if row in rows]
        assert len(taking_part) == most == 3
        assert min(np.diff(taking_part)) >= separation
    assert separation == (6 if order == "fixed" else 1)
    assert (steps[:6] == steps[6:12]) == (order == "fixed")
