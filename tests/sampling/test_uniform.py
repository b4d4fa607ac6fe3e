"""Fixed-size batches: every subset equally likely, the error of that, and nothing but whole different rows."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax import sampling
from gdpjax.sampling._uniform import order_statistic
from tests.sampling.frequencies import check_distribution, check_frequencies, included


def draw(rounds, num_examples, batch_size):
    """int[rounds, batch_size]: a batch for each of many keys."""

    @jax.jit
    @jax.vmap
    def draw_one(key):
        return sampling.uniform_sample(key, num_examples, batch_size)

    return np.asarray(draw_one(jax.random.split(jax.random.key(0), rounds)))


def test_every_subset_is_equally_likely():
    """All twenty subsets of three of six rows."""
    drawn = draw(30_000, 6, 3)
    subsets = list(itertools.combinations(range(6), 3))
    numbers = [36 * a + 6 * b + c for a, b, c in subsets]
    found, counts = np.unique(drawn @ [36, 6, 1], return_counts=True)
    assert list(found) == numbers  # ascending, without repetition, all of them
    check_distribution(counts, np.full(len(subsets), 1 / len(subsets)))


@pytest.mark.parametrize(("num_examples", "batch_size"), [(40, 1), (40, 13)])
def test_marginal_and_pairwise_inclusion(num_examples, batch_size):
    """Rows alone and in pairs, in data of ordinary size."""
    drawn = draw(10_000, num_examples, batch_size)
    chosen = included(drawn, np.zeros(drawn.shape, bool), num_examples)
    marginal = batch_size / num_examples
    pairwise = marginal * (batch_size - 1) / (num_examples - 1)
    check_frequencies(chosen, marginal, pairwise)


def test_batches_are_whole_and_in_range():
    """No row is twice in a batch."""
    for num_examples, batch_size in [(7, 7), (60_000, 256)]:
        rows = np.asarray(sampling.uniform_sample(jax.random.key(1), num_examples, batch_size))
        assert rows.dtype == np.int32
        assert len(np.unique(rows)) == batch_size
        assert rows.min() >= 0
        assert rows.max() < num_examples


@pytest.mark.parametrize("few", [1, 3, 2**32], ids=["all equal", "many ties", "no ties"])
def test_the_rows_with_the_smallest_words_are_taken(monkeypatch, few):
    """Against a sort by (high, low), also where words tie in the high, the low, or both."""
    bits = jax.random.bits

    def with_ties(key, shape, dtype):
        words = bits(key, shape, dtype)
        return words % jnp.uint32(few) if few < 2**32 else words

    monkeypatch.setattr(jax.random, "bits", with_ties)
    # a shape that is not compiled yet
    num_examples = 50 + few % 7
    batch_size = 20
    key = jax.random.key(few % 7)
    high, low = np.asarray(with_ties(key, (2, num_examples), jnp.uint32))
    words = high.astype(np.uint64) << np.uint64(32) | low
    expected = np.nonzero(words <= np.sort(words)[batch_size - 1])[0][:batch_size]
    np.testing.assert_array_equal(sampling.uniform_sample(key, num_examples, batch_size), expected)


def test_order_statistic_of_marked_words():
    """The word of a rank, and how many are below it, with ties and both ends."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2**32, 200, dtype=np.uint32)
    words[:40] = words[40:80]
    words[-2:] = 0, 2**32 - 1
    among = rng.random(200) < 0.7
    ordered = np.sort(words[among])
    for rank in [0, 1, len(ordered) // 2, len(ordered) - 1]:
        word, below = order_statistic(jnp.asarray(words), jnp.asarray(among), jnp.int32(rank))
        assert (int(word), int(below)) == (
            ordered[rank],
            (ordered < ordered[rank]).sum(),
        )


def test_the_bound_on_ties_and_on_the_distance_to_uniform():
    """Words of 3 bits, all of them: the derivation holds with 8 for 2^64, for ties and for total variation."""
    num_examples, num_words = 5, 8
    words = np.array(list(itertools.product(range(num_words), repeat=num_examples)))
    ordered = np.sort(words, axis=1)
    weights = 2 ** np.arange(num_examples)
    for batch_size in range(1, num_examples):
        tie = ordered[:, batch_size - 1] == ordered[:, batch_size]
        taken = np.argsort(words, axis=1, kind="stable")[:, :batch_size]
        subsets, counts = np.unique(weights[taken].sum(1), return_counts=True)
        distance = np.abs(counts / len(words) - 1 / len(subsets)).sum() / 2
        assert distance <= tie.mean() <= 1 - (1 - 1 / num_words) ** num_examples <= num_examples / num_words
        # Without a tie every subset is exactly equally likely: what makes the error an additive delta.
        _, counts = np.unique(weights[taken[~tie]].sum(1), return_counts=True)
        assert len(set(counts)) == 1


def test_sampling_error():
    """An upper bound on the formula, and never above one."""
    error = sampling.uniform_sampling_error(60_000, 3516)
    formula = 60_000 * 3516 / 2**64
    assert error >= formula
    np.testing.assert_allclose(error, formula, rtol=1e-12)
    assert sampling.uniform_sampling_error(2**40, 2**40) == 1.0


def test_same_eagerly_compiled_mapped_and_scanned():
    """And in float64."""
    keys = jax.random.split(jax.random.key(2), 4)

    def one(key):
        return sampling.uniform_sample(key, 100, 9)

    eager = np.stack([one(key) for key in keys])
    np.testing.assert_array_equal(jax.jit(jax.vmap(one))(keys), eager)
    np.testing.assert_array_equal(jax.jit(one)(keys[1]), eager[1])
    _, scanned = jax.lax.scan(lambda _, key: (None, one(key)), None, keys)
    np.testing.assert_array_equal(scanned, eager)
    with jax.enable_x64(True):
        np.testing.assert_array_equal(one(keys[2]), eager[2])
        assert one(keys[2]).dtype == jnp.int32


@pytest.mark.parametrize(
    ("num_examples", "batch_size", "message"),
    [
        (0, 1, "num_examples"),
        (5, 6, "at most num_examples=5"),
        (5, 0, "batch_size"),
        (5, 1.5, "batch_size"),
    ],
)
def test_bad_input(num_examples, batch_size, message):
    """The message names the argument."""
    with pytest.raises(ValueError, match=message):
        sampling.uniform_sample(jax.random.key(0), num_examples, batch_size)
