"""Truncated Poisson batches: a uniformly random part of the drawn rows, the same on the device and on the host."""

import pickle

import jax
import numpy as np
import pytest
from scipy import stats

from gdpjax import sampling
from gdpjax.sampling import _ranks
from tests.sampling.frequencies import check_frequencies, included

KEY = jax.random.key(3)
N, P, CAPACITY = 24, 0.25, 5


def draw(rounds, num_valid=None, capacity=CAPACITY):
    """A batch for each of many keys."""

    @jax.jit
    @jax.vmap
    def draw_one(key):
        return sampling.truncated_poisson_sample(key, N, P, capacity, num_valid=num_valid)

    return draw_one(jax.random.split(KEY, rounds))


def kept_probabilities(num_valid):
    """P(a row is kept) and P(two rows are): E min(K, B) / n, and the same for pairs."""
    counts = np.arange(num_valid + 1)
    weights = stats.binom.pmf(counts, num_valid, P)
    kept = np.minimum(counts, CAPACITY)
    pairs = kept * (kept - 1) / (num_valid * (num_valid - 1))
    return weights @ kept / num_valid, weights @ pairs


@pytest.mark.parametrize("num_valid", [pytest.param(N, marks=pytest.mark.slow), 16])
def test_every_row_is_as_likely_to_stay(num_valid):
    """Alone and in pairs, and the batch is as full as it can be."""
    drawn = draw(20_000, num_valid)
    chosen = included(np.asarray(drawn.indices), np.asarray(drawn.is_padding), N)
    assert not chosen[:, num_valid:].any()
    check_frequencies(chosen[:, :num_valid], *kept_probabilities(num_valid))
    count = np.asarray(drawn.count)
    np.testing.assert_array_equal(chosen.sum(axis=1), np.minimum(count, CAPACITY))
    assert (count > CAPACITY).mean() > 0.1


def test_keeping_the_first_rows_would_be_noticed():
    """The counting above tells a random part from the first rows."""
    drawn = draw(20_000, capacity=N)
    rows = np.asarray(drawn.indices)[:, :CAPACITY]  # ascending: the first that were drawn
    padding = np.asarray(drawn.is_padding)[:, :CAPACITY]
    with pytest.raises(AssertionError):
        check_frequencies(included(rows, padding, N), *kept_probabilities(N))


def test_a_batch_that_fits_is_the_poisson_batch():
    """And a part of it where it does not fit."""

    @jax.jit
    def draws(key):
        """The Poisson batch, and truncated ones of as many slots and of three."""
        whole = sampling.poisson_sample(key, N, P, N)
        part = sampling.truncated_poisson_sample(key, N, P, N)
        few = sampling.truncated_poisson_sample(key, N, P, 3)
        return whole, part, few

    for seed in range(5):
        whole, part, few = draws(jax.random.key(seed))
        for a, b in zip(whole, part, strict=True):
            np.testing.assert_array_equal(a, b)
        assert int(few.count) == int(whole.count) > 3
        rows = np.asarray(whole.indices)[~np.asarray(whole.is_padding)]
        assert set(np.asarray(few.indices)) < set(rows)
        assert (np.diff(few.indices) > 0).all()


lowest_rows = jax.jit(_ranks.lowest_rows)


@pytest.mark.parametrize("few", [1, 2, 3])
def test_ties_are_cut_at_the_boundary(few):
    """The rows with the smallest words, in all words; those that tie in the last one in order."""
    words = np.random.default_rng(few).integers(0, few, (4, N)).astype(np.uint32)
    among = np.arange(N) % 3 > 0
    order = sorted(np.flatnonzero(among), key=lambda row: (*words[:, row], row))
    for num in (0, 1, 5, among.sum(), among.sum() + 1):
        marked = np.flatnonzero(lowest_rows(words, among, np.int32(num)))
        assert set(marked) == set(order[:num])


def test_the_host_draws_the_batches_of_the_device():
    """In any order of the steps, and after pickling."""
    batches = sampling.TruncatedPoissonBatches(KEY, N, P, num_steps=6, capacity=CAPACITY, num_valid=20)
    device = jax.jit(
        lambda t: sampling.truncated_poisson_sample(jax.random.fold_in(KEY, t), N, P, CAPACITY, num_valid=20)
    )
    for t in (5, 0, 3):
        for ours, theirs in zip(batches[t], device(t)[:2], strict=True):
            np.testing.assert_array_equal(ours, theirs)
    again = pickle.loads(pickle.dumps(batches))
    assert [batch.indices.tolist() for batch in again] == [batch.indices.tolist() for batch in batches]
    assert (len(batches), batches.sampling_prob, batches[0].indices.shape) == (
        6,
        P,
        (CAPACITY,),
    )


def test_bad_arguments():
    """Numbers are refused; traced ones give padding and a count that never fits."""
    with pytest.raises(ValueError, match="capacity"):
        sampling.truncated_poisson_sample(KEY, N, P, 0)
    with pytest.raises(ValueError, match="num_valid"):
        sampling.truncated_poisson_sample(KEY, N, P, 4, num_valid=N + 1)
    with pytest.raises(ValueError, match="num_valid must be at most"):
        sampling.TruncatedPoissonBatches(KEY, N, P, num_steps=2, capacity=4, num_valid=N + 1)
    draw = jax.jit(lambda p, n: sampling.truncated_poisson_sample(KEY, N, p, 4, num_valid=n))
    for prob, valid in [(np.nan, 3), (0.5, N + 1), (1.5, 3)]:
        sample = draw(prob, valid)
        assert sample.is_padding.all()
        assert int(sample.count) == np.iinfo(np.int32).max
