"""A truncated Poisson batch is a uniformly random part of the drawn rows, the same on the device and on the host."""

import jax
import numpy as np
import pytest
from scipy import stats

from gdpjax import sampling
from gdpjax.sampling import _ranks
from tests.sampling.frequencies import check_frequencies, included

KEY = jax.random.key(3)
NUM_EXAMPLES = 24
SAMPLING_PROB = 0.25
CAPACITY = 5


def scheme(capacity=CAPACITY):
    return sampling.TruncatedPoisson(NUM_EXAMPLES, NUM_EXAMPLES * SAMPLING_PROB, 6, capacity=capacity)


def draw(rounds, num_valid=None, capacity=CAPACITY):
    """Draw a batch with each of many keys."""

    batches = scheme(capacity)

    @jax.jit
    @jax.vmap
    def draw_one(key):
        return batches.sample(key, 0, num_valid=num_valid)

    return draw_one(jax.random.split(KEY, rounds))


def kept_probabilities(num_valid):
    """Return the probabilities that a row is kept, E min(K, B) / n, and that two given rows are."""
    counts = np.arange(num_valid + 1)
    weights = stats.binom.pmf(counts, num_valid, SAMPLING_PROB)
    num_kept = np.minimum(counts, CAPACITY)
    share_of_rows = num_kept / num_valid
    share_of_pairs = num_kept * (num_kept - 1) / (num_valid * (num_valid - 1))
    return weights @ share_of_rows, weights @ share_of_pairs


@pytest.mark.parametrize("num_valid", [pytest.param(NUM_EXAMPLES, marks=pytest.mark.slow), 16])
def test_every_row_is_as_likely_to_stay(num_valid):
    """Rows stay with equal probabilities, alone and in pairs, and the batch is as full as it can be."""
    drawn = draw(20_000, num_valid)
    chosen = included(np.asarray(drawn.indices), np.asarray(drawn.is_padding), NUM_EXAMPLES)
    assert not chosen[:, num_valid:].any()
    marginal, pairwise = kept_probabilities(num_valid)
    check_frequencies(chosen[:, :num_valid], marginal, pairwise)

    # A batch that does not fit is cut to the capacity, which happens often here.
    count = np.asarray(drawn.count)
    np.testing.assert_array_equal(chosen.sum(axis=1), count)
    assert count.max() == CAPACITY
    assert (count == CAPACITY).mean() > 0.1


def test_keeping_the_first_rows_would_be_noticed():
    """The counting above tells a random part from the first rows."""
    drawn = draw(20_000, capacity=NUM_EXAMPLES)

    # Indices ascend, so these are the first rows that were drawn.
    first_rows = np.asarray(drawn.indices)[:, :CAPACITY]
    is_padding = np.asarray(drawn.is_padding)[:, :CAPACITY]
    chosen = included(first_rows, is_padding, NUM_EXAMPLES)
    marginal, pairwise = kept_probabilities(NUM_EXAMPLES)
    with pytest.raises(AssertionError):
        check_frequencies(chosen, marginal, pairwise)


def test_a_batch_that_fits_is_the_poisson_batch():
    """A truncated batch is the Poisson batch where that fits, and a part of it where it does not."""

    @jax.jit
    def draws(key):
        """Return the Poisson batch, and truncated ones of as many slots and of three."""
        key_of_step = jax.random.fold_in(key, 0)
        poisson = sampling.poisson_sample(key_of_step, NUM_EXAMPLES, SAMPLING_PROB, NUM_EXAMPLES)
        return poisson, scheme(NUM_EXAMPLES).sample(key, 0), scheme(3).sample(key, 0)

    for seed in range(5):
        poisson, untruncated, of_three = draws(jax.random.key(seed))
        for expected, field in zip(poisson, untruncated, strict=True):
            np.testing.assert_array_equal(expected, field)
        assert int(of_three.count) == 3 <= int(poisson.count)

        is_real = ~np.asarray(poisson.is_padding)
        drawn_rows = np.asarray(poisson.indices)[is_real]
        assert set(np.asarray(of_three.indices)) <= set(drawn_rows)
        assert (np.diff(of_three.indices) > 0).all()


lowest_rows = jax.jit(_ranks.lowest_rows)


@pytest.mark.parametrize("few", [1, 2, 3])
def test_ties_are_cut_at_the_boundary(few):
    """The rows with the smallest words are taken, and those that tie in all words in their order."""
    words = np.random.default_rng(few).integers(0, few, (4, NUM_EXAMPLES)).astype(np.uint32)
    is_candidate = np.arange(NUM_EXAMPLES) % 3 > 0
    in_order = sorted(np.flatnonzero(is_candidate), key=lambda row: (*words[:, row], row))
    num_candidates = is_candidate.sum()
    for num_rows in (0, 1, 5, num_candidates, num_candidates + 1):
        is_lowest = lowest_rows(words, is_candidate, np.int32(num_rows))
        assert set(np.flatnonzero(is_lowest)) == set(in_order[:num_rows])


def test_bad_arguments():
    """Wrong numbers are refused; traced ones give padding and a count that never fits."""
    too_many = NUM_EXAMPLES + 1
    with pytest.raises(ValueError, match="capacity must be"):
        sampling.TruncatedPoisson(NUM_EXAMPLES, 6, 10)
    with pytest.raises(ValueError, match="capacity"):
        scheme(0)
    with pytest.raises(ValueError, match="num_valid"):
        scheme(4).sample(KEY, 0, num_valid=too_many)

    draw_traced = jax.jit(lambda step, num_valid: scheme(4).sample(KEY, step, num_valid=num_valid))
    for step, num_valid in [(0, too_many), (0, -1), (-1, 3)]:
        sample = draw_traced(step, num_valid)
        assert sample.is_padding.all()
        assert int(sample.count) == np.iinfo(np.int32).max


def test_an_example_takes_the_place_of_another_where_a_batch_is_full():
    full = stats.binom.sf(CAPACITY - 1, NUM_EXAMPLES, SAMPLING_PROB)
    assert scheme().displacing_prob == pytest.approx(full, rel=1e-8)
    assert scheme(NUM_EXAMPLES + 1).displacing_prob == 0
