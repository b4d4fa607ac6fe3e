"""Batches of a fixed size hold different rows, and every subset is equally likely, up to a stated error."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.sampling import WithoutReplacement
from tests.sampling.frequencies import check_distribution, check_frequencies, first_batches, included


def draw(rounds, num_examples, batch_size):
    """Draw a batch with each of many keys; int[rounds, batch_size]."""
    batches = WithoutReplacement(num_examples, batch_size, 10)
    return np.asarray(first_batches(batches, rounds, jax.random.key(0)).indices)


def test_every_subset_is_equally_likely():
    """All twenty subsets of three of six rows are drawn, equally often."""
    place_values = [36, 6, 1]
    drawn = draw(30_000, 6, 3) @ place_values
    subsets = list(itertools.combinations(range(6), 3))
    expected_numbers = [36 * first + 6 * second + third for first, second, third in subsets]

    # A batch is ascending, without repetition, and all subsets are there.
    numbers, counts = np.unique(drawn, return_counts=True)
    assert list(numbers) == expected_numbers
    check_distribution(counts, np.full(len(subsets), 1 / len(subsets)))


@pytest.mark.parametrize(("num_examples", "batch_size"), [(40, 1), (40, 13)])
def test_marginal_and_pairwise_inclusion(num_examples, batch_size):
    """Rows are drawn with the right probability, alone and in pairs, in data of ordinary size."""
    drawn = draw(10_000, num_examples, batch_size)
    chosen = included(drawn, np.zeros(drawn.shape, bool), num_examples)
    marginal = batch_size / num_examples
    pairwise = marginal * (batch_size - 1) / (num_examples - 1)
    check_frequencies(chosen, marginal, pairwise)


@pytest.mark.parametrize("few", [1, 3, 2**32], ids=["all equal", "many ties", "no ties"])
def test_the_rows_with_the_smallest_words_are_taken(monkeypatch, few):
    """The rows are those of a sort by (high, low); where words tie in both at the boundary the batch does not fit."""
    bits = jax.random.bits

    def with_ties(key, shape, dtype):
        words = bits(key, shape, dtype)
        if few == 2**32:
            return words
        return words % jnp.uint32(few)

    monkeypatch.setattr(jax.random, "bits", with_ties)

    # A shape that is not compiled yet.
    num_examples = 50 + few % 7
    batch_size = 20
    key = jax.random.key(few % 7)
    high, low = np.asarray(with_ties(jax.random.fold_in(key, 1), (2, num_examples), jnp.uint32))
    words = high.astype(np.uint64) << np.uint64(32) | low
    largest_taken = np.sort(words)[batch_size - 1]
    expected = np.flatnonzero(words <= largest_taken)
    sample = WithoutReplacement(num_examples, batch_size, 10).sample(key, 1)
    assert int(sample.count) == len(expected)
    if len(expected) == batch_size:
        np.testing.assert_array_equal(sample.indices, expected)
    else:
        assert sample.is_padding.all()


def test_sampling_error():
    """The sampling error is an upper bound on the formula, and never above one."""
    error = WithoutReplacement(60_000, 256, 3516).overflow
    formula = 60_000 * 3516 / 2**64
    assert error >= formula
    np.testing.assert_allclose(error, formula, rtol=1e-12)
