"""Poisson sampling: the right probability, independence, padding, and the price of a padded batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from gdpjax import sampling


@given(st.floats(2**-32, 1.0))
def test_dyadic_probability_is_below_and_close(p):
    used = sampling.dyadic_probability(p)
    assert used <= p
    assert p - used <= 2**-32 + p * 2**-23
    assert used * 2**32 == int(used * 2**32)
    assert float(np.float32(used)) == used


@pytest.mark.parametrize("p", [0.0, 1.0, 0.5, 2**-32])
def test_dyadic_probability_exact_points(p):
    assert sampling.dyadic_probability(p) == p


def test_small_probabilities_are_not_rounded_up():
    """Trap 32: with a float32 uniform the frequency at p = 1e-6 is 7% too large."""
    p, num_examples, rounds = 1e-6, 2**22, 60
    draw = jax.jit(lambda k: sampling.poisson_sample(k, num_examples, p, 64).count)
    total = sum(int(draw(jax.random.key(i))) for i in range(rounds))
    expected = p * num_examples * rounds
    assert abs(total - expected) < 5 * np.sqrt(expected)
    used = sampling.dyadic_probability(p)
    threshold = int(used * 2**32)
    assert threshold == 4294  # of 2^32: floor(1e-6 * 2^32), where a float32 uniform has 9 of 2^23 multiples below p


def test_marginal_and_pairwise_inclusion():
    p, n, rounds = 0.3, 12, 20_000
    keys = jax.random.split(jax.random.key(0), rounds)
    samples = jax.jit(jax.vmap(lambda k: sampling.poisson_sample(k, n, p, n)))(keys)
    rows = jnp.arange(rounds)[:, None]
    included = np.zeros((rounds, n))
    np.add.at(included, (np.broadcast_to(rows, samples.indices.shape), samples.indices), ~samples.is_padding)
    assert set(np.unique(included)) == {0.0, 1.0}
    assert np.abs(included.mean(0) - p).max() < 5 * np.sqrt(p * (1 - p) / rounds)
    correlation = np.corrcoef(included.T) - np.eye(n)
    assert np.abs(correlation).max() < 5 / np.sqrt(rounds)
    counts = np.bincount(np.asarray(samples.count), minlength=n + 1)
    expected = stats.binom.pmf(np.arange(n + 1), n, p) * rounds
    keep = expected > 5
    assert stats.chisquare(counts[keep], expected[keep] * counts[keep].sum() / expected[keep].sum()).pvalue > 1e-4


@pytest.mark.parametrize(("p", "count"), [(0.0, 0), (1.0, 100)])
def test_ends(p, count):
    sample = sampling.poisson_sample(jax.random.key(0), 100, p, 128)
    assert int(sample.count) == count
    assert int((~sample.is_padding).sum()) == count


def test_overflow_shows_in_the_count():
    sample = sampling.poisson_sample(jax.random.key(0), 100, 1.0, 10)
    assert int(sample.count) == 100 > sample.indices.shape[0]
    assert not sample.is_padding.any()


def test_traced_probability_and_x64():
    draw = jax.jit(lambda k, p: sampling.poisson_sample(k, 1000, p, 400).count)
    p = sampling.dyadic_probability(0.3)
    eager = sampling.poisson_sample(jax.random.key(3), 1000, p, 400).count
    assert int(draw(jax.random.key(3), p)) == int(eager)
    with jax.enable_x64(True):
        assert int(sampling.poisson_sample(jax.random.key(3), 1000, p, 400).count) == int(eager)


def test_overflow_probability_against_the_exact_tail():
    for n, p, capacity in [(100, 0.1, 30), (60_000, 256 / 60_000, 380), (50, 0.5, 50)]:
        terms = stats.binom.pmf(np.arange(capacity, n + 1), n, p)
        np.testing.assert_allclose(sampling.overflow_probability(n, p, 7, capacity), 7 * terms.sum(), rtol=1e-8)
    assert sampling.overflow_probability(100, 0.5, 1000, 10) == 1.0


def test_chosen_capacity_is_the_smallest():
    for n, p, steps in [(1437, 64 / 1437, 900), (60_000, 256 / 60_000, 3516), (10, 1.0, 5)]:
        capacity = sampling.choose_capacity(n, p, steps)
        assert sampling.overflow_probability(n, p, steps, capacity) <= 1e-12
        assert sampling.overflow_probability(n, p, steps, capacity - 1) > 1e-12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(num_examples=0), "num_examples"),
        (dict(sampling_prob=1.1), "sampling_prob"),
        (dict(sampling_prob=float("nan")), "sampling_prob"),
        (dict(capacity=0), "capacity"),
    ],
)
def test_bad_input(options, message):
    arguments = {"num_examples": 10, "sampling_prob": 0.5, "capacity": 5, **options}
    with pytest.raises(ValueError, match=message):
        sampling.poisson_sample(jax.random.key(0), **arguments)


def test_probability_below_the_resolution_is_refused():
    with pytest.raises(ValueError, match="2\\^-32"):
        sampling.dyadic_probability(1e-12)
