"""Random allocation puts each row into one step of each block, all equally likely, on the device and on the host."""

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

from gdpjax import sampling
from tests.sampling.frequencies import check_distribution, included, rows_of_steps

KEY = jax.random.key(7)
N = 60


def blocks_of(steps_per_epoch, num_selected):
    """Return the steps of each block, the longer blocks first."""
    lengths = [len(part) for part in np.array_split(np.arange(steps_per_epoch), num_selected)]
    ends = np.cumsum(lengths)
    return [range(end - length, end) for end, length in zip(ends, lengths, strict=True)]


def scheme(steps_per_epoch, n=N, capacity=None, num_selected=1, **options):
    """Return the batches of two epochs of so many steps, which fit unless there is a capacity."""
    size = n * num_selected / steps_per_epoch
    options = {"epochs": 2, "capacity": capacity or n + 1, "num_selected": num_selected, **options}
    return sampling.RandomAllocation(n, max(size, 1.0), **options)


def epochs_of(key, num_epochs, steps_per_epoch, n=N, **options):
    """Return which rows are in which step, bool[num_epochs, steps_per_epoch, n]."""
    chosen = rows_of_steps(scheme(steps_per_epoch, n, **options), np.arange(num_epochs * steps_per_epoch), key)
    return chosen.reshape(num_epochs, steps_per_epoch, n)


FRESH = scheme(7, capacity=50, num_selected=2)


@jax.jit
def draw(step, num_valid):
    """Draw one batch of seven steps an epoch, of which each row is in two."""
    return FRESH.sample(KEY, step, num_valid=num_valid)


BINS_AND_SIZES = [("fresh", 7, 2), ("fresh", 7, 7), ("fresh", 60, 1), ("fixed", 7, 3)]


@pytest.mark.parametrize(("bins", "steps", "selected"), BINS_AND_SIZES)
def test_every_row_is_in_one_step_of_each_block(bins, steps, selected):
    """Fixed bins repeat from epoch to epoch, and fresh ones do not."""
    chosen = epochs_of(KEY, 3, steps, num_selected=selected, bins=bins)
    for block in blocks_of(steps, selected):
        assert (chosen[:, list(block)].sum(axis=1) == 1).all()
    assert (chosen.sum(axis=1) == selected).all()
    if bins == "fixed":
        assert (chosen == chosen[0]).all()
    elif steps > selected:
        assert (chosen[0] != chosen[1]).any()


@pytest.mark.parametrize(("steps", "selected"), [(5, 1), (8, 3)])
def test_all_steps_of_a_block_are_equally_likely(steps, selected):
    """Places are independent over rows, blocks and epochs, and every pair of places is as likely as another."""
    chosen = epochs_of(KEY, 4000, steps, num_selected=selected, n=6)
    blocks = [list(block) for block in blocks_of(steps, selected)]
    for block in blocks:
        place = chosen[:, block].argmax(axis=1)  # [epochs, rows]
        length = len(block)
        uniform = np.full(length, 1 / length)
        uniform_pairs = np.full(length**2, 1 / length**2)
        for row in range(6):
            counts = np.bincount(place[:, row], minlength=length)
            check_distribution(counts, uniform)

        # Pairs of rows, and epochs that follow each other.
        for one, other in itertools.combinations(range(6), 2):
            both = place[:, one] * length + place[:, other]
            check_distribution(np.bincount(both, minlength=length**2), uniform_pairs)
        following = place[:-1] * length + place[1:]
        counts = np.bincount(following[::2].reshape(-1), minlength=length**2)
        check_distribution(counts, uniform_pairs)

    # The first and the last block of an epoch.
    if selected > 1:
        first = chosen[:, blocks[0]].argmax(axis=1)
        last = chosen[:, blocks[-1]].argmax(axis=1)
        num_pairs = len(blocks[0]) * len(blocks[-1])
        both = (first * len(blocks[-1]) + last).reshape(-1)
        counts = np.bincount(both, minlength=num_pairs)
        check_distribution(counts, np.full(num_pairs, 1 / num_pairs))


def test_the_step_of_a_row_does_not_depend_on_how_many_there_are():
    """Adding an example moves no other one, whichever step is drawn, as the accounting supposes."""

    def batches(num_valid):
        samples = [draw(step, num_valid) for step in range(21)]
        indices = np.stack([sample.indices for sample in samples])
        is_padding = np.stack([sample.is_padding for sample in samples])
        return included(indices, is_padding, N)

    more = batches(N)
    fewer = batches(40)
    assert more[:, 40:].any()
    np.testing.assert_array_equal(more[:, :40], fewer[:, :40])
    assert not fewer[:, 40:].any()
    assert not batches(0).any()


remainder = jax.jit(sampling._allocation._modulo)


@pytest.mark.parametrize("length", [1, 2, 3, 10, 255, 256, 65521, 65536])
def test_the_remainder_of_128_bits(length):
    """The remainder is that of the whole numbers of Python."""
    words = np.random.default_rng(length).integers(0, 2**32, (4, 50), dtype=np.uint32)
    words[:, 0] = 2**32 - 1
    remainders = []
    for highest, high, low, lowest in words.T.tolist():
        number = (highest << 96) + (high << 64) + (low << 32) + lowest
        remainders.append(number % length)
    found = remainder(words, np.uint32(length))
    assert np.asarray(found).tolist() == remainders


@pytest.mark.parametrize(("steps", "selected"), [(4, 1), (7, 2), (3, 3)])
def test_the_probability_of_overflow(steps, selected):
    """The union bound over steps is at least the probability of one more row, and about that of the shortest block."""
    capacity, n = 12, 40
    batches = scheme(steps, n, 1000, num_selected=selected, epochs=1)
    object.__setattr__(batches, "capacity", capacity)  # also one that a plan would refuse
    bound = batches.overflow
    shortest = steps // selected
    exact = steps * stats.binom.sf(capacity - 1, n, 1 / shortest)  # others alone fill the batch
    assert min(1.0, exact) <= bound <= min(1.0, exact * (1 + 1e-6) + 1e-30)
    if steps == 4:
        chosen = epochs_of(KEY, 2000, steps, n=n)
        share = (chosen.sum(axis=2) >= capacity).any(axis=1).mean()
        assert share < bound + 5 * np.sqrt(bound / 2000)


def test_the_error_of_the_remainder():
    """The error is at least that of the derivation, and part of the probability of overflow."""
    batches = scheme(5, 10, epochs=20)
    assert batches.num_steps == 100
    assert 100 * 2.0**-128 <= batches.overflow < 101 * 2.0**-128


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bins": "poisson"}, "bins"),
        ({"num_examples": 2**18, "expected_batch_size": 1}, "at most 65536 steps times num_selected=1"),
        ({"epochs": None, "num_steps": 7}, "whole epochs, of 5 steps each with this batch size, got 7"),
    ],
)
def test_refusals(change, message):
    """A wrong number is refused by name."""
    with pytest.raises(ValueError, match=message):
        sampling.RandomAllocation(**{"num_examples": N, "expected_batch_size": 12, "epochs": 2} | change)
