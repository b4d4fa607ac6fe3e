"""Tests of how often rows are in a batch, alone and two together, by exact binomial tails."""

import jax
import numpy as np
from scipy import stats

FALSE_ALARM = 1e-6
"""Probability with which a right sampler fails one of these checks; keys are fixed, so it fails always or never."""


def first_batches(batches, rounds, key, num_valid=None):
    """Draw the first batch with each of many keys, by one program."""
    keys = jax.random.split(key, rounds)
    return jax.jit(jax.vmap(lambda key: batches.sample(key, 0, num_valid=num_valid)))(keys)


def rows_of_steps(batches, steps, key):
    """Return which rows are in the batches of these steps, bool[steps, num_examples]."""
    drawn = jax.jit(jax.vmap(lambda step: batches.sample(key, step)))(steps)
    chosen = included(np.asarray(drawn.indices), np.asarray(drawn.is_padding), batches.num_examples)
    np.testing.assert_array_equal(chosen.sum(axis=1), drawn.count)
    return chosen


def rows_of(sample):
    """Return the rows of a batch, without its padding."""
    return np.asarray(sample.indices)[~np.asarray(sample.is_padding)].tolist()


def included(indices, is_padding, num_examples):
    """Return bool[rounds, num_examples] from batches [rounds, slots], and refuse a row that is twice in a batch."""
    times = np.zeros((len(indices), num_examples), int)
    np.add.at(times, (np.arange(len(indices))[:, None], indices), ~np.asarray(is_padding))
    assert times.max() <= 1
    return times.astype(bool)


def check_frequencies(chosen, marginal, pairwise):
    """Check that rows are chosen with probability ``marginal``, and two rows together with ``pairwise``."""
    rounds, num_examples = chosen.shape
    together = chosen.T.astype(float) @ chosen
    pairs = together[np.triu_indices(num_examples, 1)]
    tests = num_examples + len(pairs)
    for counts, prob in [(np.diag(together), marginal), (pairs, pairwise)]:
        tails = np.minimum(
            stats.binom.cdf(counts, rounds, prob),
            stats.binom.sf(counts - 1, rounds, prob),
        )
        assert tails.min() * 2 * tests > FALSE_ALARM, (prob, counts / rounds)


def check_distribution(counts, probabilities):
    """Compare counts of outcomes with their exact probabilities (chi-square; rare outcomes together)."""
    expected = np.asarray(probabilities) * counts.sum()
    rare = expected < 10
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    assert stats.chisquare(counts, expected).pvalue > FALSE_ALARM
