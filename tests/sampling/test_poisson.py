"""Poisson sampling has the right probability, independence, padding, and the price of a padded batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import gdpjax
from gdpjax import sampling
from tests.sampling.frequencies import check_distribution, check_frequencies, included, rows_of


@given(st.floats(2**-32, 1.0))
def test_dyadic_probability_is_below_and_close(p):
    """The probability that is used is a multiple of 2^-32 and a float32, and never above what was asked for."""
    used = sampling.dyadic_probability(p)
    assert used <= p
    assert p - used <= 2**-32 + p * 2**-23
    assert used * 2**32 == int(used * 2**32)
    assert float(np.float32(used)) == used


def test_small_probabilities_are_not_rounded_up():
    """Trap 32: a float32 uniform is a multiple of 2^-23, so it would include eight times as many at p = 2^-26."""
    p = 2.0**-26
    num_examples = 2**22
    rounds = 32
    count_of = jax.jit(lambda key: sampling.poisson_sample(key, num_examples, p, 64).count)
    total = 0
    for seed in range(rounds):
        total += int(count_of(jax.random.key(seed)))
    expected = p * num_examples * rounds
    assert abs(total - expected) < 5 * np.sqrt(expected)

    # Here a float32 uniform has 9 of 2^23, which is 7 % more.
    threshold = sampling.dyadic_probability(1e-6) * 2**32
    assert int(threshold) == 4294


@pytest.mark.parametrize("p", [0.3, 0.02])
def test_marginal_and_pairwise_inclusion(p):
    """Rows alone, rows in pairs, and the size of the batch have their laws."""
    n = 20
    rounds = 20_000
    keys = jax.random.split(jax.random.key(0), rounds)
    draw = jax.jit(jax.vmap(lambda key: sampling.poisson_sample(key, n, p, n)))
    samples = draw(keys)
    chosen = included(samples.indices, samples.is_padding, n)
    check_frequencies(chosen, p, p**2)

    # The size of a batch is binomial.
    np.testing.assert_array_equal(samples.count, chosen.sum(axis=1))
    counts = np.bincount(samples.count, minlength=n + 1)
    probabilities = stats.binom.pmf(np.arange(n + 1), n, p)
    check_distribution(counts, probabilities)


def test_steps_and_rows_are_independent():
    """Row i of step t and row j of step s are drawn independently with the keys of a run, fold_in of the step."""
    n = 6
    p = 0.5
    num_steps = 3
    rounds = 10_000

    def run(key):
        """Return which rows are in the batch of each step."""
        steps = []
        for step in range(num_steps):
            key_of_step = jax.random.fold_in(key, step)
            sample = sampling.poisson_sample(key_of_step, n, p, n)
            is_drawn = jnp.zeros(n, bool).at[sample.indices].max(~sample.is_padding)
            steps.append(is_drawn)
        return steps

    keys = jax.random.split(jax.random.key(5), rounds)
    steps = jax.jit(jax.vmap(run))(keys)
    check_frequencies(np.concatenate(steps, axis=1), p, p**2)


poisson_sample = jax.jit(sampling.poisson_sample, static_argnums=(1, 2, 3))
"""Compiled once for each size, probability and capacity; ``num_valid`` is traced."""


def test_neighbours_draw_the_same_others():
    """An appended example changes nobody else's coin, whether it is padded to a maximum or not."""
    padded_to_101 = jax.jit(lambda key, n: sampling.poisson_sample(key, 101, 0.4, 128, num_valid=n))
    padded_statically = jax.jit(lambda key: sampling.poisson_sample(key, 101, 0.4, 128, num_valid=100))
    for seed in range(5):
        key = jax.random.key(seed)
        rows_of_101 = rows_of(poisson_sample(key, 101, 0.4, 128))
        rows_of_100 = rows_of(poisson_sample(key, 100, 0.4, 128))
        assert [row for row in rows_of_101 if row != 100] == rows_of_100
        assert rows_of(padded_statically(key)) == rows_of_100
        for num_valid in (0, 1, 100, 101):
            padded = padded_to_101(key, num_valid)
            assert rows_of(padded) == [row for row in rows_of_101 if row < num_valid]
            assert int(padded.count) == len(rows_of(padded))
    assert padded_to_101._cache_size() == 1


@pytest.mark.parametrize(("n", "capacity"), [(1, 5), (31, 1), (32, 5), (33, 32), (1000, 32)])
def test_the_rows_are_those_that_were_drawn(n, capacity):
    """Rows are those of a plain search, within words of 32, at their ends, and where the capacity cuts."""
    generator = np.random.default_rng(n)
    shares = np.array([0.01, 0.5, 0.97])
    drawn = generator.random((3, n)) < shares[:, None]
    drawn[:, -1] |= n % 2 == 1
    sizes = (capacity, n + 3)

    @jax.jit
    @jax.vmap
    def positions(drawn):
        return [sampling._batch.first_positions(drawn, size) for size in sizes]

    for size, all_places in zip(sizes, positions(drawn), strict=True):
        for is_drawn, places in zip(drawn, all_places, strict=True):
            first = np.flatnonzero(is_drawn)[:size]
            expected = np.pad(first, (0, size - len(first)))
            np.testing.assert_array_equal(places, expected)


def test_invalid_traced_numbers_never_fit():
    """A wrong traced number cannot be refused, so its count is above every capacity."""

    @jax.jit
    def draw(p, n):
        return sampling.poisson_sample(jax.random.key(0), 50, p, 50, num_valid=n).count

    for p, n in [(-0.1, 10), (1.1, 10), (jnp.nan, 10), (0.5, -1), (0.5, 51)]:
        assert int(draw(p, n)) > 50, (p, n)
    assert int(draw(0.5, 50)) <= 50


@pytest.mark.parametrize("p", [0.1, 1e-6, 2**-32])
def test_words_below_the_accounted_threshold_are_included(monkeypatch, p):
    """Trap 32, at the threshold itself: float32(0.1) is above 0.1, so rounding to nearest would include more."""
    threshold = int(sampling.dyadic_probability(p) * 2**32)
    words = np.array([0, threshold - 1, threshold, threshold + 1, threshold + 31, 2**32 - 1], np.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: jnp.asarray(words))
    in_float32 = jnp.float32(sampling.dyadic_probability(p))

    @jax.jit
    def draws(traced):
        """Draw with a probability that is a number, an array, or traced."""
        key = jax.random.key(0)
        return [sampling.poisson_sample(key, 6, prob, 8) for prob in (p, in_float32, traced)]

    for sample in draws(sampling.dyadic_probability(p)):
        assert rows_of(sample) == [0, 1]


@pytest.mark.parametrize("capacity", [99, 100])
def test_a_batch_above_the_capacity_is_never_truncated(capacity):
    """Trap 15: whoever looks at is_padding alone, in a loop of their own, trains on nothing rather than on a part."""

    def draw(p):
        return sampling.poisson_sample(jax.random.key(0), 100, p, capacity)

    draw_known_and_traced = jax.jit(lambda traced: (draw(1.0), draw(traced)))
    for sample in draw_known_and_traced(1.0):
        assert int(sample.count) == 100
        assert sample.indices.shape == (capacity,)
        is_padding = np.asarray(sample.is_padding)
        assert is_padding.all() == is_padding.any() == (capacity < 100)

    # A loop that looks at the padding alone has the sum over all rows, or over none.
    rows = np.ones(100, np.float32)[np.asarray(sample.indices)]
    grad_fn = jax.jit(gdpjax.clipped_grad(lambda w, x: w * x, 1.0))
    total = grad_fn(np.float32(1), rows, is_padding=is_padding)
    assert float(total) == pytest.approx(100 if capacity == 100 else 0, rel=1e-3)


def test_traced_probability_and_x64():
    """Neither a traced probability nor float64 moves a coin."""
    p = sampling.dyadic_probability(0.3)
    key = jax.random.key(3)
    count_traced = jax.jit(lambda key, p: sampling.poisson_sample(key, 1000, p, 400).count)
    count_known = jax.jit(lambda key: sampling.poisson_sample(key, 1000, p, 400).count)
    count = int(count_known(key))
    assert int(count_traced(key, p)) == count
    with jax.enable_x64(True):
        assert int(count_known(key)) == count
        assert int(count_traced(key, p)) == count


def test_overflow_probability_against_the_exact_tail():
    """The probability of overflow is an independent sum of binomial terms, for each step."""
    for n, p, capacity in [(100, 0.1, 30), (60_000, 256 / 60_000, 380), (50, 0.5, 50)]:
        prob_of_size = stats.binom.pmf(np.arange(capacity, n + 1), n, p)
        overflow = sampling.overflow_probability(n, p, 7, capacity)
        np.testing.assert_allclose(overflow, 7 * prob_of_size.sum(), rtol=1e-8)
    assert sampling.overflow_probability(100, 0.5, 1000, 10) == 1.0


def test_chosen_capacity_is_the_smallest():
    """A capacity of one slot less would overflow too often."""
    for n, p, num_steps in [(1437, 64 / 1437, 900), (60_000, 256 / 60_000, 3516), (10, 1.0, 5)]:
        capacity = sampling.choose_capacity(n, p, num_steps)
        assert sampling.overflow_probability(n, p, num_steps, capacity) <= 1e-12
        assert sampling.overflow_probability(n, p, num_steps, capacity - 1) > 1e-12


def test_no_place_out_of_range_is_written_to():
    """Found on a GPU: with deterministic operations its compiler wrote what should be dropped over the first row."""
    lowered = jax.jit(lambda key: sampling.poisson_sample(key, 1000, 0.01, 32)).lower(jax.random.key(0))
    assert "tensor<33xi32>" in lowered.as_text()
