"""Poisson sampling: the right probability, independence, padding, and the price of a padded batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import gdpjax
from gdpjax import sampling
from tests.sampling.frequencies import check_distribution, check_frequencies, included


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
    """Trap 32: a float32 uniform is a multiple of 2^-23, so it would include eight times as many at p = 2^-26."""
    p, num_examples, rounds = 2.0**-26, 2**22, 32
    draw = jax.jit(lambda k: sampling.poisson_sample(k, num_examples, p, 64).count)
    total = sum(int(draw(jax.random.key(i))) for i in range(rounds))
    expected = p * num_examples * rounds
    assert abs(total - expected) < 5 * np.sqrt(expected)
    assert int(sampling.dyadic_probability(1e-6) * 2**32) == 4294  # where a float32 uniform has 9 of 2^23, 7% more


@pytest.mark.parametrize("p", [0.3, 0.02])
def test_marginal_and_pairwise_inclusion(p):
    n, rounds = 20, 20_000
    keys = jax.random.split(jax.random.key(0), rounds)
    samples = jax.jit(jax.vmap(lambda k: sampling.poisson_sample(k, n, p, n)))(keys)
    chosen = included(samples.indices, samples.is_padding, n)
    check_frequencies(chosen, p, p**2)
    np.testing.assert_array_equal(samples.count, chosen.sum(1))
    check_distribution(np.bincount(samples.count, minlength=n + 1), stats.binom.pmf(np.arange(n + 1), n, p))


def test_steps_and_rows_are_independent():
    """Row i of step t and row j of step s, with the keys of a run: fold_in of the step."""
    n, p, num_steps, rounds = 6, 0.5, 3, 10_000

    def run(key):
        drawn = [sampling.poisson_sample(jax.random.fold_in(key, t), n, p, n) for t in range(num_steps)]
        return [jnp.zeros(n, bool).at[s.indices].max(~s.is_padding) for s in drawn]

    steps = jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(5), rounds))
    check_frequencies(np.concatenate(steps, axis=1), p, p**2)


def test_neighbours_draw_the_same_others():
    """An appended example changes nobody else's coin, whether it is padded to a maximum or not."""
    compiled = jax.jit(lambda key, n: sampling.poisson_sample(key, 101, 0.4, 128, num_valid=n))
    for seed in range(5):
        key = jax.random.key(seed)
        larger, smaller = (rows_of(sampling.poisson_sample(key, n, 0.4, 128)) for n in (101, 100))
        assert [row for row in larger if row != 100] == smaller
        for num_valid in (0, 1, 100, 101):
            padded = compiled(key, num_valid)
            assert rows_of(padded) == [row for row in larger if row < num_valid]
            assert int(padded.count) == len(rows_of(padded))
        assert rows_of(sampling.poisson_sample(key, 101, 0.4, 128, num_valid=100)) == smaller
    assert compiled._cache_size() == 1


def rows_of(sample):
    return np.asarray(sample.indices)[~np.asarray(sample.is_padding)].tolist()


@pytest.mark.parametrize("n", [1, 31, 32, 33, 100, 1000])
@pytest.mark.parametrize("p", [0.01, 0.5, 0.97])
def test_the_rows_are_those_that_were_drawn(n, p):
    """Places within words of 32, at the ends too, and where the capacity cuts: those of a plain search."""
    first = jax.jit(sampling._padding.first_positions, static_argnums=1)
    draw = np.random.default_rng(n)
    for size in (1, 5, 32, n + 3):
        drawn = draw.random(n) < p
        drawn[-1] |= n % 2 == 1
        expected = np.zeros(size, np.int32)
        found = np.flatnonzero(drawn)[:size]
        expected[: len(found)] = found
        np.testing.assert_array_equal(first(jnp.asarray(drawn), size), expected)


def test_a_mapped_draw_is_a_loop():
    keys = jax.random.split(jax.random.key(1), 5)
    probs, valid = jnp.linspace(0.0, 1.0, 5), jnp.array([0, 10, 30, 49, 50])
    mapped = jax.vmap(lambda k, p, n: sampling.poisson_sample(k, 50, p, 50, num_valid=n))(keys, probs, valid)
    for i in range(5):
        alone = sampling.poisson_sample(keys[i], 50, float(probs[i]), 50, num_valid=int(valid[i]))
        for one, other in zip(jax.tree.map(lambda x, i=i: x[i], mapped), alone, strict=True):
            np.testing.assert_array_equal(one, other)


def test_invalid_traced_numbers_never_fit():
    draw = jax.jit(lambda p, n: sampling.poisson_sample(jax.random.key(0), 50, p, 50, num_valid=n).count)
    for p, n in [(-0.1, 10), (1.1, 10), (jnp.nan, 10), (0.5, -1), (0.5, 51)]:
        assert int(draw(p, n)) > 50, (p, n)
    assert int(draw(0.5, 50)) <= 50


@pytest.mark.parametrize("p", [0.1, 0.3, 1e-6, 256 / 60_000, 2**-32])
def test_words_below_the_accounted_threshold_are_included(monkeypatch, p):
    """Trap 32, at the threshold itself: float32(0.1) is above 0.1, so rounding to nearest would include more."""
    threshold = int(sampling.dyadic_probability(p) * 2**32)
    words = jnp.asarray([0, threshold - 1, threshold, threshold + 1, threshold + 31, 2**32 - 1], jnp.uint32)
    monkeypatch.setattr(jax.random, "bits", lambda key, shape, dtype: words)
    for prob in (p, jnp.float32(sampling.dyadic_probability(p))):
        assert rows_of(sampling.poisson_sample(jax.random.key(0), 6, prob, 8)) == [0, 1]
    traced = jax.jit(lambda prob: sampling.poisson_sample(jax.random.key(0), 6, prob, 8))
    assert rows_of(traced(sampling.dyadic_probability(p))) == [0, 1]


@pytest.mark.parametrize(("p", "count"), [(0.0, 0), (1.0, 100)])
def test_ends(p, count):
    sample = sampling.poisson_sample(jax.random.key(0), 100, p, 128)
    assert int(sample.count) == count
    assert int((~sample.is_padding).sum()) == count


@pytest.mark.parametrize("capacity", [10, 99, 100])
def test_a_batch_above_the_capacity_is_never_truncated(capacity):
    """Trap 15: whoever looks at is_padding alone, in a loop of their own, trains on nothing rather than on a part."""
    draw = lambda p: sampling.poisson_sample(jax.random.key(0), 100, p, capacity)  # noqa: E731
    for sample in (draw(1.0), jax.jit(draw)(1.0)):
        assert int(sample.count) == 100
        assert sample.indices.shape == (capacity,)
        assert sample.is_padding.all() == sample.is_padding.any() == (capacity < 100)
    grad_fn = gdpjax.clipped_grad(lambda w, x: w * x, 1.0)
    total = grad_fn(jnp.ones(()), jnp.ones(100)[sample.indices], is_padding=sample.is_padding)
    assert float(total) == pytest.approx(100 if capacity == 100 else 0, rel=1e-3)


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
