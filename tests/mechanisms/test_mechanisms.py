"""Mechanisms: exact curves against oracles, samplers against the curves they claim, examples with error bars.

The samples are 1e6 draws under both hypotheses; the likelihood-ratio test's empirical errors must lie on the claimed
curve within bands that a correct sampler leaves with probability below 1e-6 a run (keys are fixed, so never).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import binom, chi2, laplace, norm

from gdpjax import accounting
from gdpjax.mechanisms import (
    DiscreteGaussianMechanism,
    DiscreteLaplaceMechanism,
    GaussianMechanism,
    LaplaceMechanism,
    PoissonSubsampled,
    RandomizedResponse,
)
from gdpjax.mechanisms._discrete import _bernoulli_exp, _uniform_from
from gdpjax.tradeoff import ApproximateDP, compose, delta, epsilon

NUM = 1_000_000
QUANTILES = np.array([0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95])


def assert_errors_on_curve(null, alternative, curve):
    """Tests "statistic > c" (the likelihood-ratio test for monotone ratios) at several c."""
    null, alternative = np.asarray(null), np.asarray(alternative)
    thresholds = np.quantile(null, 1 - QUANTILES)
    alpha = np.array([np.mean(null > threshold) for threshold in thresholds])
    beta = np.array([np.mean(alternative <= threshold) for threshold in thresholds])
    assert_on_curve(alpha, beta, len(null), curve)


def assert_on_curve(alpha, beta, num, curve):
    """Both errors are on the curve within five standard errors, at every threshold."""
    aside, above = (5.0 * np.sqrt(np.maximum(error * (1 - error), 1e-6) / num) for error in (alpha, beta))
    low = curve(np.minimum(1.0, alpha + aside)) - above
    high = curve(np.maximum(0.0, alpha - aside)) + above
    assert np.all((low <= beta) & (beta <= high)), (alpha, beta, low, high)


def test_gaussian_errors_lie_on_the_curve():
    mechanism = GaussianMechanism(0.8)
    keys = jax.random.split(jax.random.key(1))
    draw = jax.jit(lambda key, value: mechanism.sample(key, value, sensitivity=2.0))
    null = draw(keys[0], np.zeros(NUM, np.float32))  # every coordinate is one release
    alternative = draw(keys[1], np.full(NUM, 2.0, np.float32))
    assert_errors_on_curve(null, alternative, mechanism.tradeoff())
    with pytest.raises(AssertionError):  # the test sees a claim that is 2 % off
        assert_errors_on_curve(null, alternative, GaussianMechanism(0.8 * 1.02).tradeoff())


def test_laplace_errors_lie_on_the_curve_and_the_noise_is_laplace():
    mechanism = LaplaceMechanism(1.2)
    keys = jax.random.split(jax.random.key(2))
    draw = jax.jit(lambda key, value: mechanism.sample(key, value, sensitivity=3.0))
    null = np.asarray(draw(keys[0], np.zeros(NUM, np.float32)))
    alternative = np.asarray(draw(keys[1], np.full(NUM, 3.0, np.float32)))
    assert_errors_on_curve(null, alternative, mechanism.tradeoff())
    probability = np.array([1e-5, 0.01, 0.3, 0.5, 0.7, 0.999, 0.99999])
    empirical = np.mean(null[:, None] <= laplace.ppf(probability) * 3.0 / 1.2, axis=0)
    np.testing.assert_array_less(np.abs(empirical - probability), 5 * np.sqrt(probability * (1 - probability) / NUM))
    assert np.mean(np.abs(null) < 1e-4) == pytest.approx(1 - np.exp(-1e-4 * 1.2 / 3), rel=0.6)  # fine near zero


def test_composed_release_lies_on_the_composed_curve():
    """Four Laplace releases and a Gaussian one: the sum of log-likelihood ratios against compose's polygons."""
    lap, gauss = LaplaceMechanism(0.6), GaussianMechanism(1.5)
    lower, _ = curve = compose(*[lap.tradeoff()] * 4, gauss.tradeoff())
    num, ratios = 200_000, []

    @jax.jit
    def release(key, at):
        keys = jax.random.split(key)
        x = lap.sample(keys[0], jnp.full((num, 4), at), sensitivity=1.0)
        return x, gauss.sample(keys[1], jnp.full(num, at), sensitivity=1.0)

    for at, seed in ((0.0, 3), (1.0, 4)):
        x, y = (np.asarray(leaf, np.float64) for leaf in release(jax.random.key(seed), np.float32(at)))
        ratios.append(0.6 * np.sum(np.abs(x) - np.abs(x - 1), axis=1) + (2 * y - 1) / (2 * 1.5**2))
    assert_errors_on_curve(*ratios, lower)
    assert np.all(curve.lower(QUANTILES) <= curve.upper(QUANTILES))


def test_subsampled_curve_against_actual_subsampling():
    """Neighbours: zeros, and zeros with one example of the largest norm; both directions, and C_p between."""
    mechanism = PoissonSubsampled(GaussianMechanism(0.5), 0.3)
    without, with_one = jnp.zeros((2, 1)), jnp.array([[0.0], [1.0]])
    draw = jax.jit(jax.vmap(lambda key, data: mechanism.sample(key, data, sensitivity=1.0)[0], in_axes=(0, None)))
    null = np.asarray(draw(jax.random.split(jax.random.key(5), NUM // 4), without))
    alternative = np.asarray(draw(jax.random.split(jax.random.key(6), NUM // 4), with_one))
    assert_errors_on_curve(null, alternative, mechanism.tradeoff("remove"))
    assert_errors_on_curve(-alternative, -null, mechanism.tradeoff("add"))
    both, remove = mechanism.tradeoff(), mechanism.tradeoff("remove")
    assert np.all(both(QUANTILES) <= remove(QUANTILES) + 1e-15)
    middle = np.array([0.3, 0.4])  # on the straight piece neither direction attains C_p
    assert np.all(both(middle) < np.minimum(remove(middle), mechanism.tradeoff("add")(middle)) - 0.005)


def test_randomized_response_counts_and_n_fold_curve():
    mechanism = RandomizedResponse.two_coins()
    assert mechanism.privacy_loss == np.log(3.0)
    n = 10
    draw = jax.jit(lambda key, value: mechanism.sample(key, value))
    zeros = np.asarray(draw(jax.random.key(7), jnp.zeros((NUM // 4, n), jnp.int32))).sum(axis=1)
    ones = np.asarray(draw(jax.random.key(8), jnp.ones((NUM // 4, n), jnp.int32))).sum(axis=1)
    curve = compose(mechanism.tradeoff(), times=n)
    thresholds = np.arange(n)
    alpha, beta = np.mean(zeros[:, None] > thresholds, axis=0), np.mean(ones[:, None] <= thresholds, axis=0)
    assert_on_curve(alpha, beta, NUM // 4, curve)
    np.testing.assert_allclose(curve(binom.sf(thresholds, n, 0.25)), binom.cdf(thresholds, n, 0.75), rtol=1e-12)


@pytest.mark.parametrize("k", [2, pytest.param(3, marks=pytest.mark.slow), 10])
def test_categories_delta_and_frequencies(k):
    mechanism = RandomizedResponse(1.5, k)
    grid = np.array([0.0, 0.5, 1.2, 1.5])
    exact = (np.exp(1.5) - np.exp(grid)) / (np.exp(1.5) + k - 1)
    np.testing.assert_allclose(mechanism.delta(grid), exact, rtol=1e-12, atol=1e-15)
    if k > 2:  # strictly better than its epsilon says
        assert np.all(mechanism.tradeoff()(QUANTILES) >= ApproximateDP(1.5)(QUANTILES) - 1e-15)
        assert mechanism.delta(0.5) < delta(ApproximateDP(1.5), 0.5)
    frequencies = np.arange(1, k + 1) / (k * (k + 1) / 2)
    n, repeats = 1000, 400
    people = np.random.default_rng(9).choice(k, (repeats, n), p=frequencies)
    answers = np.asarray(jax.jit(mechanism.sample)(jax.random.key(10), people))
    counts = np.stack([(answers == i).sum(axis=1) for i in range(k)], axis=1)
    estimate = mechanism.estimate(counts)
    np.testing.assert_allclose(estimate.frequencies.sum(axis=1), 1.0)
    scores = (estimate.frequencies - frequencies) / estimate.standard_errors
    assert np.all(np.abs(scores.mean(axis=0)) < 5 / np.sqrt(repeats))
    assert np.all(np.abs(scores.std(axis=0) - 1) < 5 / np.sqrt(2 * repeats))


def test_with_truth_probability():
    assert RandomizedResponse.with_truth_probability(0.75).privacy_loss == pytest.approx(np.log(3))
    assert RandomizedResponse.with_truth_probability(0.5, 4).truth_probability == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("mechanism", "log_weight"),
    [
        (DiscreteLaplaceMechanism(0.7, 2), lambda x: -0.35 * np.abs(x)),
        (DiscreteGaussianMechanism(1.25, 2), lambda x: -0.5 * (x / 2.5) ** 2),
    ],
    ids=["laplace", "gaussian"],
)
def test_discrete_noise_has_its_law_and_curve(mechanism, log_weight):
    n = 4000
    noise = mechanism.sample(jax.random.key(11), np.zeros(n, np.int64))
    x = np.arange(-300, 301)
    law = np.exp(log_weight(x))
    law /= law.sum()
    inner = np.abs(x) <= 5
    observed = np.array([np.sum(noise == i) for i in x[inner]])
    expected = np.append(n * law[inner], n * law[~inner].sum())
    statistic = np.sum((np.append(observed, n - observed.sum()) - expected) ** 2 / expected)
    assert statistic < chi2.ppf(1 - 1e-6, len(expected) - 1)
    curve = mechanism.tradeoff()
    for c in range(-5, 8):  # the tests "x > c"
        assert curve(law[x > c].sum()) == pytest.approx(law[x <= c - 2].sum(), rel=1e-9)
    np.testing.assert_array_equal(
        mechanism.sample(jax.random.key(3), [[5]]), mechanism.sample(jax.random.key(3), [[5]])
    )


def test_discrete_laplace_of_sensitivity_one_is_the_pair():
    x = np.linspace(0, 1, 50)
    np.testing.assert_allclose(DiscreteLaplaceMechanism(0.9).tradeoff()(x), ApproximateDP(0.9)(x), atol=1e-14)
    gaussian = DiscreteGaussianMechanism(5.0).tradeoff()
    np.testing.assert_allclose(gaussian(x), GaussianMechanism(5.0).tradeoff()(x), atol=2e-3)


def test_discrete_noise_at_tiny_delta():
    """Sums of (A - e^epsilon N)+ with 50 digits (mpmath); a polygon's beta near 1 would give 8.49 for 1e-25."""
    mechanism = DiscreteGaussianMechanism(1.0)
    for d, exact in ((1e-12, 7.384476333286251), (1e-15, 8.279618437330985), (1e-25, 10.498716983918177)):
        assert exact * (1 - 1e-15) <= mechanism.epsilon(d) <= exact * (1 + 1e-11)
        assert mechanism.delta(exact) == pytest.approx(d, rel=1e-9)
    assert mechanism.epsilon(0.0) == np.inf
    assert mechanism.epsilon(0.5) == 0.0
    assert 1.0 <= DiscreteLaplaceMechanism(1.0, 3).epsilon(0.0) <= 1.0 + 1e-12
    np.testing.assert_array_equal(DiscreteLaplaceMechanism(1e-4).delta([1e-4, 1.0]), 0.0)
    assert jax.jit(mechanism.epsilon)(1e-15) == pytest.approx(8.279618437330985, rel=1e-6)
    for d in (0.3, 1e-3, 1e-9):  # where both are right they agree
        assert mechanism.epsilon(d) == pytest.approx(epsilon(mechanism.tradeoff(), d), rel=1e-7)


def test_randomized_response_with_a_large_epsilon():
    curve = RandomizedResponse(40.0, 3).tradeoff()
    lie = 1 / (np.exp(40.0) + 2)
    np.testing.assert_allclose(curve.beta, [1.0, 2 * lie, lie, 0.0], rtol=1e-15)


def test_traced_parameters_out_of_range_give_nan_not_a_bare_value():
    key, value = jax.random.key(0), jnp.ones((2, 1))
    makes = (
        (GaussianMechanism, 0.0), (GaussianMechanism, -1.0), (LaplaceMechanism, np.inf),
        (lambda p: PoissonSubsampled(GaussianMechanism(1.0), p), 2.0),
    )  # fmt: skip
    for make, bad in makes:
        assert np.all(np.isnan(jax.jit(lambda x, make=make: make(x).sample(key, value, 1.0))(bad)))


def test_exact_coins():
    from fractions import Fraction

    uniform = _uniform_from(jax.random.key(12))
    for gamma in (Fraction(1, 3), Fraction(5, 2)):
        mean = np.mean([_bernoulli_exp(gamma, uniform) for _ in range(4000)])
        assert abs(mean - np.exp(-float(gamma))) < 5 * 0.5 / np.sqrt(4000)
    counts = np.bincount([uniform(5) for _ in range(5000)], minlength=5)
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(1000))
    big = [uniform(2**70) for _ in range(50)]
    assert max(big) > 2**68
    assert len(set(big)) == 50


def test_agreement_with_the_accountants():
    mechanism = PoissonSubsampled(GaussianMechanism(1.1), 0.05)
    bounds = accounting.epsilon_bounds(1.1, 0.05, 1, 1e-5)
    assert bounds.lower <= mechanism.epsilon(1e-5) <= bounds.upper
    grid = np.array([0.0, 0.5, 2.0])
    np.testing.assert_array_equal(GaussianMechanism(2.0).delta(grid), accounting.gdp_delta(grid, 0.5))
    assert GaussianMechanism(2.0).mu == 0.5


def test_count_and_histogram_with_error_bars():
    """A person changes one bin by one: l1 and l2 sensitivity 1. Error bars are those of the noise."""
    counts = np.array([1022.0, 371.0, 14.0, 5.0])
    for mechanism, std in ((GaussianMechanism(2.0), 2.0), (LaplaceMechanism(0.5), np.sqrt(2) / 0.5)):
        draw = jax.jit(jax.vmap(lambda key, m=mechanism: m.sample(key, jnp.asarray(counts), sensitivity=1.0)))
        errors = np.asarray(draw(jax.random.split(jax.random.key(13), 4000))) - counts
        np.testing.assert_allclose(errors.std(axis=0), std, rtol=0.08)
        assert np.all(np.abs(errors.mean(axis=0)) < 5 * std / np.sqrt(4000))
        quantile = 1.96 * 2.0 if std == 2.0 else -np.log(0.05) / 0.5
        assert np.mean(np.abs(errors) > quantile) == pytest.approx(0.05, abs=0.01)


def test_pytrees_vmap_and_keys():
    mechanism = GaussianMechanism(1.0)
    tree = {"a": jnp.zeros(3), "b": (jnp.zeros((2, 2)), 0.0)}
    noisy = jax.jit(lambda key: mechanism.sample(key, tree, sensitivity=1.0))(jax.random.key(0))
    assert jax.tree.structure(noisy) == jax.tree.structure(tree)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noisy)])
    assert len(np.unique(flat)) == 8
    assert mechanism.sample(jax.random.key(0), jnp.zeros(3, jnp.bfloat16), 1.0).dtype == jnp.float32
    np.testing.assert_array_equal(mechanism.sample(jax.random.key(0), jnp.ones(3), 0.0), 1.0)
    epsilons = jax.vmap(lambda m: m.epsilon(1e-5))(GaussianMechanism(jnp.array([1.0, 2.0])))
    np.testing.assert_allclose(epsilons, accounting.gdp_epsilon(1e-5, [1.0, 0.5]), rtol=1e-6)
    summed = PoissonSubsampled(LaplaceMechanism(1e6), 1.0).sample(jax.random.key(1), {"x": jnp.ones((5, 2))}, 1.0)
    np.testing.assert_allclose(summed["x"], 5.0, atol=1e-4)
    assert PoissonSubsampled(mechanism, 0.3).sampled_prob <= 0.3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GaussianMechanism(0.0), "noise_multiplier must be a finite number > 0"),
        (lambda: LaplaceMechanism(np.nan), "epsilon must be .* got nan"),
        (lambda: RandomizedResponse(1.0, 1), "num_categories must be"),
        (lambda: RandomizedResponse.with_truth_probability(0.4), "must exceed 1 / 2"),
        (lambda: RandomizedResponse(1.0).sample(jax.random.key(0), jnp.array([2])), "categories from 0 to 1"),
        (lambda: RandomizedResponse(1.0).sample(jax.random.key(0), jnp.array([0.5])), "categories as integers"),
        (lambda: RandomizedResponse(1.0).estimate([1, 2, 3]), "2 entries in its last axis"),
        (lambda: RandomizedResponse(1.0).estimate([0, 0]), "at least one answer"),
        (lambda: GaussianMechanism([1.0, 2.0]).sample(jax.random.key(0), jnp.ones(2), 1.0), "must be one number"),
        (lambda: PoissonSubsampled(RandomizedResponse(1.0), 0.5), "mechanism must add noise"),
        (lambda: PoissonSubsampled(GaussianMechanism(1.0), 1.5), "sampling_prob must be"),
        (lambda: PoissonSubsampled(GaussianMechanism(1.0), 0.5).tradeoff("both"), "direction must be"),
        (lambda: PoissonSubsampled(GaussianMechanism(1.0), 0.5).sample(jax.random.key(0), 1.0, 1.0), "leading axis"),
        (lambda: GaussianMechanism(1.0).sample(jax.random.key(0), 1.0, -1.0), "sensitivity must be"),
        (lambda: GaussianMechanism(1.0).sample(jax.random.key(0), 1j, 1.0), "complex"),
        (lambda: DiscreteLaplaceMechanism(1.0, 1.5), "sensitivity must be a whole number"),
        (lambda: DiscreteLaplaceMechanism(1.0).sample(jax.random.key(0), 1.5), "value must hold integers"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_gaussian_tail_reaches_far():
    noise = np.asarray(GaussianMechanism(1.0).sample(jax.random.key(14), jnp.zeros(4 * NUM), 1.0))
    assert np.mean(np.abs(noise) > 4.0) == pytest.approx(2 * norm.sf(4.0), rel=0.3)


def test_whole_numbers_that_float32_would_round_are_refused():
    key, mechanism = jax.random.key(0), GaussianMechanism(1.0)
    with pytest.raises(ValueError, match="at most 16777216"):
        mechanism.sample(key, np.array([33554435]), 1.0)
    traced = jax.jit(lambda value: mechanism.sample(key, value, 1.0))
    assert np.isnan(traced(jnp.array([33554435]))).all()
    assert np.isfinite(traced(jnp.array([2**24, -5]))).all()


@pytest.mark.parametrize("value", [2**62 + 1, -(2**62) - 1, 2**63])
def test_integers_that_noise_could_push_out_of_int64_are_refused(value):
    mechanism = DiscreteLaplaceMechanism(1.0)
    with pytest.raises(ValueError, match=r"at most 2\^62 in size"):
        mechanism.sample(jax.random.key(0), np.array([value]))
    assert mechanism.sample(jax.random.key(0), np.array([2**62])).dtype == np.int64
