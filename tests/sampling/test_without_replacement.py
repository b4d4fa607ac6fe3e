"""Batches of a fixed size hold different rows, and every subset is equally likely, up to a stated error."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.sampling import WithoutReplacement
from gdpjax.sampling._ranks import order_statistic
from tests.sampling.frequencies import check_distribution, check_frequencies, included


def draw(rounds, num_examples, batch_size):
    """Draw a batch with each of many keys; int[rounds, batch_size]."""

    batches = WithoutReplacement(num_examples, batch_size, 10)

    @jax.jit
    @jax.vmap
    def draw_one(key):
        return batches.sample(key, 0).indices

    keys = jax.random.split(jax.random.key(0), rounds)
    return np.asarray(draw_one(keys))


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


def test_batches_are_whole_and_in_range():
    """No row is twice in a batch."""
    for num_examples, batch_size in [(7, 7), (60_000, 256)]:
        sample = WithoutReplacement(num_examples, batch_size, 10).sample(jax.random.key(1), 3)
        assert int(sample.count) == batch_size
        assert not sample.is_padding.any()
        rows = np.asarray(sample.indices)
        assert rows.dtype == np.int32
        assert len(np.unique(rows)) == batch_size
        assert rows.min() >= 0
        assert rows.max() < num_examples


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


def test_order_statistic_of_marked_words():
    """The word of a rank is that of a sort, and so is the number of words below it, with ties and both ends."""
    generator = np.random.default_rng(0)
    words = generator.integers(0, 2**32, 200, dtype=np.uint32)
    words[:40] = words[40:80]
    words[-2:] = 0, 2**32 - 1
    is_marked = generator.random(200) < 0.7
    ordered = np.sort(words[is_marked])
    for rank in [0, 1, len(ordered) // 2, len(ordered) - 1]:
        word, num_below = order_statistic(jnp.asarray(words), jnp.asarray(is_marked), jnp.int32(rank))
        assert int(word) == ordered[rank]
        assert int(num_below) == (ordered < ordered[rank]).sum()


def test_the_bound_on_ties_and_on_the_distance_to_uniform():
    """The derivation holds for all words of 3 bits, with 8 in the place of 2^64, for ties and total variation."""
    num_examples, num_words = 5, 8
    words = np.array(list(itertools.product(range(num_words), repeat=num_examples)))
    ordered = np.sort(words, axis=1)
    weights = 2 ** np.arange(num_examples)
    for batch_size in range(1, num_examples):
        # A tie at the boundary decides which rows are in the batch.
        is_tie = ordered[:, batch_size - 1] == ordered[:, batch_size]
        rows = np.argsort(words, axis=1, kind="stable")[:, :batch_size]
        batches = weights[rows].sum(axis=1)

        subsets, counts = np.unique(batches, return_counts=True)
        distance = np.abs(counts / len(words) - 1 / len(subsets)).sum() / 2
        prob_of_tie_anywhere = 1 - (1 - 1 / num_words) ** num_examples
        assert distance <= is_tie.mean() <= prob_of_tie_anywhere <= num_examples / num_words

        # Without a tie every subset is exactly equally likely, so that the error is an additive delta.
        _, counts = np.unique(batches[~is_tie], return_counts=True)
        assert len(set(counts)) == 1


def test_sampling_error():
    """The sampling error is an upper bound on the formula, and never above one."""
    error = WithoutReplacement(60_000, 256, 3516).overflow
    formula = 60_000 * 3516 / 2**64
    assert error >= formula
    np.testing.assert_allclose(error, formula, rtol=1e-12)


def test_same_eagerly_compiled_mapped_and_scanned():
    """A key gives one batch, eagerly, compiled, mapped, in a scan, and with float64 enabled."""
    keys = jax.random.split(jax.random.key(2), 4)

    def draw_one(key):
        return WithoutReplacement(100, 9, 10).sample(key, 2).indices

    eager = np.stack([draw_one(key) for key in keys])
    np.testing.assert_array_equal(jax.jit(jax.vmap(draw_one))(keys), eager)
    np.testing.assert_array_equal(jax.jit(draw_one)(keys[1]), eager[1])
    _, scanned = jax.lax.scan(lambda _, key: (None, draw_one(key)), None, keys)
    np.testing.assert_array_equal(scanned, eager)
    with jax.enable_x64(True):
        batch = draw_one(keys[2])
        np.testing.assert_array_equal(batch, eager[2])
        assert batch.dtype == jnp.int32


@pytest.mark.parametrize(
    ("num_examples", "batch_size", "message"),
    [
        (0, 1, "num_examples"),
        (5, 6, "at most num_examples=5, got 6"),
        (5, 0, "batch_size"),
        (5, 1.5, "expected_batch_size must be a whole number >= 1, got 1.5"),
    ],
)
def test_bad_input(num_examples, batch_size, message):
    """A wrong size is refused, and the message names the argument."""
    with pytest.raises(ValueError, match=message):
        WithoutReplacement(num_examples, batch_size, 10)
