"""A truncated Poisson batch is a uniformly random part of the drawn rows, the same on the device and on the host."""

import jax
import numpy as np
import pytest
from scipy import stats

from gdpjax import sampling
from tests.sampling.frequencies import check_frequencies, first_batches, included

KEY = jax.random.key(3)
NUM_EXAMPLES = 24
SAMPLING_PROB = 0.25
CAPACITY = 5


def scheme(capacity=CAPACITY):
    return sampling.TruncatedPoisson(NUM_EXAMPLES, NUM_EXAMPLES * SAMPLING_PROB, 6, capacity=capacity)


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
    drawn = first_batches(scheme(), 20_000, KEY, num_valid)
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
    drawn = first_batches(scheme(NUM_EXAMPLES), 20_000, KEY)

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


def test_an_example_takes_the_place_of_another_where_a_batch_is_full():
    full = stats.binom.sf(CAPACITY - 1, NUM_EXAMPLES, SAMPLING_PROB)
    assert scheme().displacing_prob == pytest.approx(full, rel=1e-8)
    assert scheme(NUM_EXAMPLES + 1).displacing_prob == 0
