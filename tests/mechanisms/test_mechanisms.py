"""Mechanisms: exact curves against oracles, samplers against the curves they claim, examples with error bars.

The samples are 1e6 draws under both hypotheses; the likelihood-ratio test's empirical errors must lie on the claimed
curve within bands that a correct sampler leaves with probability below 1e-6 a run (keys are fixed, so never).
"""

from fractions import Fraction

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
    """Check tests "statistic > c", which are likelihood-ratio tests for monotone ratios, at several c."""
    null, alternative = np.sort(null), np.sort(alternative)
    thresholds = np.quantile(null, 1 - QUANTILES)
    alpha = 1 - np.searchsorted(null, thresholds, side="right") / len(null)
    beta = np.searchsorted(alternative, thresholds, side="right") / len(alternative)
    assert_on_curve(alpha, beta, len(null), curve)


def standard_error(error, num):
    """Return the standard error of a frequency, and not 0 where nothing was seen."""
    return np.sqrt(np.maximum(error * (1 - error), 1e-6) / num)


def assert_on_curve(alpha, beta, num, curve):
    """Both errors are on the curve within five standard errors, at every threshold."""
    aside = 5.0 * standard_error(alpha, num)
    above = 5.0 * standard_error(beta, num)
    low = curve(np.minimum(1.0, alpha + aside)) - above
    high = curve(np.maximum(0.0, alpha - aside)) + above
    assert np.all((low <= beta) & (beta <= high)), (alpha, beta, low, high)


def draw_pair(mechanism, seed, sensitivity):
    """Return a million draws each where the value is 0 and where it is the sensitivity; each is one release."""

    @jax.jit
    def draw(key, value):
        values = jnp.full(NUM, value, jnp.float32)
        return mechanism.sample(key, values, sensitivity=sensitivity)

    null_key, alternative_key = jax.random.split(jax.random.key(seed))
    null = np.asarray(draw(null_key, 0.0))
    alternative = np.asarray(draw(alternative_key, sensitivity))
    return null, alternative


@pytest.fixture(scope="module")
def gaussian_draws():
    """Releases by Gaussian noise of multiplier 0.8 and sensitivity 2."""
    return draw_pair(GaussianMechanism(0.8), seed=1, sensitivity=2.0)


def test_gaussian_errors_lie_on_the_curve(gaussian_draws):
    """The likelihood-ratio test errs as the curve says, and a claim that is 2 % off is seen."""
    assert_errors_on_curve(*gaussian_draws, GaussianMechanism(0.8).tradeoff())
    with pytest.raises(AssertionError):
        assert_errors_on_curve(*gaussian_draws, GaussianMechanism(0.8 * 1.02).tradeoff())


def test_gaussian_tail_reaches_far(gaussian_draws):
    """As many draws are beyond four standard deviations as should be."""
    null, alternative = gaussian_draws
    noise = np.append(null, alternative - 2.0) / (0.8 * 2.0)
    assert np.mean(np.abs(noise) > 4.0) == pytest.approx(2 * norm.sf(4.0), rel=0.3)


def test_laplace_errors_lie_on_the_curve_and_the_noise_is_laplace():
    """The errors are on the curve, the distribution function is Laplace's, and it is fine near zero."""
    mechanism = LaplaceMechanism(1.2)
    null, alternative = draw_pair(mechanism, seed=2, sensitivity=3.0)
    assert_errors_on_curve(null, alternative, mechanism.tradeoff())

    scale = 3.0 / 1.2
    probability = np.array([1e-5, 0.01, 0.3, 0.5, 0.7, 0.999, 0.99999])
    thresholds = laplace.ppf(probability) * scale
    empirical = np.searchsorted(np.sort(null), thresholds, side="right") / NUM
    allowed = 5 * np.sqrt(probability * (1 - probability) / NUM)
    np.testing.assert_array_less(np.abs(empirical - probability), allowed)
    assert np.mean(np.abs(null) < 1e-4) == pytest.approx(1 - np.exp(-1e-4 / scale), rel=0.6)


def test_composed_release_lies_on_the_composed_curve():
    """Four Laplace releases and a Gaussian one: the sum of log-likelihood ratios against compose's polygons."""
    laplace_mechanism, gaussian_mechanism = LaplaceMechanism(0.6), GaussianMechanism(1.5)
    curves = [laplace_mechanism.tradeoff()] * 4 + [gaussian_mechanism.tradeoff()]
    composed = compose(*curves)
    num = 200_000

    @jax.jit
    def release(key, value):
        keys = jax.random.split(key)
        four = laplace_mechanism.sample(keys[0], jnp.full((num, 4), value), sensitivity=1.0)
        one = gaussian_mechanism.sample(keys[1], jnp.full(num, value), sensitivity=1.0)
        return four, one

    log_ratios = []
    for value, seed in ((0.0, 3), (1.0, 4)):
        four, one = release(jax.random.key(seed), np.float32(value))
        four, one = np.asarray(four, np.float64), np.asarray(one, np.float64)
        of_laplace = 0.6 * np.sum(np.abs(four) - np.abs(four - 1), axis=1)
        of_gaussian = (2 * one - 1) / (2 * 1.5**2)
        log_ratios.append(of_laplace + of_gaussian)
    assert_errors_on_curve(*log_ratios, composed.lower)
    assert np.all(composed.lower(QUANTILES) <= composed.upper(QUANTILES))


def test_subsampled_curve_against_actual_subsampling():
    """Neighbours: zeros, and zeros with one example of the largest norm; both directions, and C_p between."""
    mechanism = PoissonSubsampled(GaussianMechanism(0.5), 0.3)
    num = NUM // 4

    @jax.jit
    def draw(key, data):
        keys = jax.random.split(key, num)
        return jax.vmap(lambda key: mechanism.sample(key, data, sensitivity=1.0)[0])(keys)

    without, with_one = np.zeros((2, 1), np.float32), np.array([[0.0], [1.0]], np.float32)
    null = np.asarray(draw(jax.random.key(5), without))
    alternative = np.asarray(draw(jax.random.key(6), with_one))
    remove, add = mechanism.tradeoff("remove"), mechanism.tradeoff("add")
    assert_errors_on_curve(null, alternative, remove)
    assert_errors_on_curve(-alternative, -null, add)

    both = mechanism.tradeoff()
    assert np.all(both(QUANTILES) <= remove(QUANTILES) + 1e-15)
    # On the straight piece neither direction attains C_p.
    middle = np.linspace(0.3, 0.4, len(QUANTILES))
    assert np.all(both(middle) < np.minimum(remove(middle), add(middle)) - 0.005)


def test_randomized_response_counts_and_n_fold_curve():
    """The number of answers "yes" of ten people is the statistic of their composition."""
    mechanism = RandomizedResponse.two_coins()
    assert mechanism.privacy_loss == np.log(3.0)
    n, num = 10, NUM // 4
    draw = jax.jit(mechanism.sample)
    null = np.asarray(draw(jax.random.key(7), np.zeros((num, n), np.int32))).sum(axis=1)
    alternative = np.asarray(draw(jax.random.key(8), np.ones((num, n), np.int32))).sum(axis=1)
    curve = compose(mechanism.tradeoff(), times=n).exact

    thresholds = np.arange(n)
    alpha = np.mean(null[:, None] > thresholds, axis=0)
    beta = np.mean(alternative[:, None] <= thresholds, axis=0)
    assert_on_curve(alpha, beta, num, curve)
    exact_alpha, exact_beta = binom.sf(thresholds, n, 0.25), binom.cdf(thresholds, n, 0.75)
    np.testing.assert_allclose(curve(exact_alpha), exact_beta, rtol=1e-12)


@pytest.mark.parametrize("k", [2, pytest.param(3, marks=pytest.mark.slow), 10])
def test_categories_delta_and_frequencies(k):
    """delta is its formula, and estimates of frequencies err by their standard errors."""
    mechanism = RandomizedResponse(1.5, k)
    grid = np.array([0.0, 0.5, 1.2, 1.5])
    deltas = mechanism.delta(grid)
    exact = (np.exp(1.5) - np.exp(grid)) / (np.exp(1.5) + k - 1)
    np.testing.assert_allclose(deltas, exact, rtol=1e-12, atol=1e-15)
    # More categories are strictly better than their epsilon says.
    if k > 2:
        pair = ApproximateDP(1.5)
        assert np.all(mechanism.tradeoff()(QUANTILES) >= pair(QUANTILES) - 1e-15)
        assert deltas[1] < delta(pair, 0.5)

    frequencies = np.arange(1, k + 1) / (k * (k + 1) / 2)
    num_people, repeats = 1000, 400
    people = np.random.default_rng(9).choice(k, (repeats, num_people), p=frequencies)
    answers = np.asarray(jax.jit(mechanism.sample)(jax.random.key(10), people))
    counts = np.stack([(answers == i).sum(axis=1) for i in range(k)], axis=1)
    estimate = mechanism.estimate(counts)
    np.testing.assert_allclose(estimate.frequencies.sum(axis=1), 1.0)
    scores = (estimate.frequencies - frequencies) / estimate.standard_errors
    assert np.all(np.abs(scores.mean(axis=0)) < 5 / np.sqrt(repeats))
    assert np.all(np.abs(scores.std(axis=0) - 1) < 5 / np.sqrt(2 * repeats))


def test_with_truth_probability():
    """The epsilon is that of answering truthfully so often."""
    assert RandomizedResponse.with_truth_probability(0.75).privacy_loss == pytest.approx(np.log(3))
    assert RandomizedResponse.with_truth_probability(0.5, 4).truth_probability == pytest.approx(0.5)


def laplace_log_weight(x):
    return -0.35 * np.abs(x)


def gaussian_log_weight(x):
    return -0.5 * (x / 2.5) ** 2


@pytest.mark.parametrize(
    ("mechanism", "log_weight"),
    [
        (DiscreteLaplaceMechanism(0.7, 2), laplace_log_weight),
        (DiscreteGaussianMechanism(1.25, 2), gaussian_log_weight),
    ],
    ids=["laplace", "gaussian"],
)
def test_discrete_noise_has_its_law_and_curve(mechanism, log_weight):
    """A chi-squared test finds no other law, and the curve passes through the tests "x > c"."""
    x = np.arange(-300, 301)
    weight = np.exp(log_weight(x))
    law = weight / weight.sum()

    # Counts of single numbers, and of all others together.
    num = 4000
    noise = mechanism.sample(jax.random.key(11), np.zeros(num, np.int64))
    inner = np.abs(x) <= 5
    observed = np.array([np.sum(noise == i) for i in x[inner]])
    observed = np.append(observed, num - observed.sum())
    expected = num * np.append(law[inner], law[~inner].sum())
    statistic = np.sum((observed - expected) ** 2 / expected)
    assert statistic < chi2.ppf(1 - 1e-6, len(expected) - 1)

    curve = mechanism.tradeoff()
    for c in range(-5, 8):
        alpha, beta = law[x > c].sum(), law[x <= c - 2].sum()
        assert curve(alpha) == pytest.approx(beta, rel=1e-9)


def test_discrete_noise_is_determined_by_its_key():
    """The same key gives the same noise."""
    mechanism = DiscreteLaplaceMechanism(0.7, 2)
    first = mechanism.sample(jax.random.key(3), [[5]])
    again = mechanism.sample(jax.random.key(3), [[5]])
    np.testing.assert_array_equal(first, again)


def test_discrete_laplace_of_sensitivity_one_is_the_pair():
    """Its curve is that of randomized response, and that of wide discrete Gaussian noise is nearly G_mu."""
    x = np.linspace(0, 1, 50)
    np.testing.assert_allclose(DiscreteLaplaceMechanism(0.9).tradeoff()(x), ApproximateDP(0.9)(x), atol=1e-14)
    gaussian = DiscreteGaussianMechanism(5.0).tradeoff()
    np.testing.assert_allclose(gaussian(x), GaussianMechanism(5.0).tradeoff()(x), atol=2e-3)


def test_discrete_noise_at_tiny_delta():
    """Sums of (A - e^epsilon N)+ with 50 digits (mpmath); a polygon's beta near 1 would give 8.49 for 1e-25."""
    mechanism = DiscreteGaussianMechanism(1.0)
    deltas = np.array([1e-12, 1e-15, 1e-25])
    exact = np.array([7.384476333286251, 8.279618437330985, 10.498716983918177])
    large_deltas = np.array([0.3, 1e-3, 1e-9])
    found = mechanism.epsilon(np.concatenate([deltas, [0.0, 0.5], large_deltas]))
    assert np.all(exact * (1 - 1e-15) <= found[:3])
    assert np.all(found[:3] <= exact * (1 + 1e-11))
    np.testing.assert_array_equal(found[3:5], [np.inf, 0.0])
    np.testing.assert_allclose(mechanism.delta(exact), deltas, rtol=1e-9)

    # Where the polygon is right, too, they agree.
    np.testing.assert_allclose(found[5:], epsilon(mechanism.tradeoff(), large_deltas), rtol=1e-7)
    assert jax.jit(mechanism.epsilon)(1e-15) == pytest.approx(exact[1], rel=1e-6)


def test_discrete_laplace_at_the_ends():
    """Its epsilon is known at delta 0, and its delta is 0 from there on."""
    assert 1.0 <= DiscreteLaplaceMechanism(1.0, 3).epsilon(0.0) <= 1.0 + 1e-12
    np.testing.assert_array_equal(DiscreteLaplaceMechanism(1e-4).delta([1e-4, 1.0, 1.0]), 0.0)


def test_randomized_response_with_a_large_epsilon():
    """The corners of its curve have the digits of the probability of a lie."""
    curve = RandomizedResponse(40.0, 3).tradeoff()
    lie = 1 / (np.exp(40.0) + 2)
    np.testing.assert_allclose(curve.beta, [1.0, 2 * lie, lie, 0.0], rtol=1e-15)


def test_traced_parameters_out_of_range_give_nan_not_a_bare_value():
    """A noise multiplier or probability that cannot be checked must not release the value without noise."""
    key, value = jax.random.key(0), np.ones((2, 1), np.float32)

    @jax.jit
    def releases(noise_multiplier, epsilon, sampling_prob):
        subsampled = PoissonSubsampled(GaussianMechanism(1.0), sampling_prob)
        return (
            GaussianMechanism(noise_multiplier).sample(key, value, 1.0),
            LaplaceMechanism(epsilon).sample(key, value, 1.0),
            subsampled.sample(key, value, 1.0),
        )

    for bad in ((0.0, np.inf, 2.0), (-1.0, np.inf, 2.0)):
        for released in releases(*bad):
            assert np.isnan(released).all()
    for released in releases(1.0, 1.0, 0.5):
        assert np.isfinite(released).all()


def test_exact_coins():
    """Coins of probability e^-gamma and whole numbers below a bound are drawn without rounding."""
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
    """Mechanisms and accountants answer alike about one step."""
    mechanism = PoissonSubsampled(GaussianMechanism(1.1), 0.05)
    bounds = accounting.epsilon_bounds(1.1, 0.05, 1, 1e-5)
    assert bounds.lower <= mechanism.epsilon(1e-5) <= bounds.upper
    grid = np.array([0.0, 0.5, 2.0])
    np.testing.assert_array_equal(GaussianMechanism(2.0).delta(grid), accounting.gdp_delta(grid, 0.5))
    assert GaussianMechanism(2.0).mu == 0.5


def test_count_and_histogram_with_error_bars():
    """A person changes one bin by one: l1 and l2 sensitivity 1. Error bars are those of the noise."""
    counts = np.array([1022.0, 371.0, 14.0, 5.0], np.float32)
    gaussian, laplacian = GaussianMechanism(2.0), LaplaceMechanism(0.5)
    repeats = 4000

    @jax.jit
    def draw(key):
        many = jnp.broadcast_to(counts, (repeats, counts.size))
        return gaussian.sample(key, many, sensitivity=1.0), laplacian.sample(key, many, sensitivity=1.0)

    # The standard deviations, and the half widths of 95 % error bars.
    deviations = 2.0, np.sqrt(2) / 0.5
    half_widths = 1.96 * 2.0, -np.log(0.05) / 0.5
    releases = draw(jax.random.key(13))
    for released, deviation, half_width in zip(releases, deviations, half_widths, strict=True):
        errors = np.asarray(released) - counts
        np.testing.assert_allclose(errors.std(axis=0), deviation, rtol=0.08)
        assert np.all(np.abs(errors.mean(axis=0)) < 5 * deviation / np.sqrt(repeats))
        assert np.mean(np.abs(errors) > half_width) == pytest.approx(0.05, abs=0.01)


def test_pytrees_and_dtypes():
    """Every leaf gets noise of its own, low precision is widened, and sensitivity 0 needs no noise."""
    mechanism = GaussianMechanism(1.0)
    tree = {"a": np.zeros(3, np.float32), "b": (np.zeros((2, 2), np.float32), 0.0)}

    @jax.jit
    def releases(key):
        low_precision = mechanism.sample(key, jnp.zeros(3, jnp.bfloat16), 1.0)
        public = mechanism.sample(key, jnp.ones(3), 0.0)
        return mechanism.sample(key, tree, sensitivity=1.0), low_precision, public

    noisy, low_precision, public = releases(jax.random.key(0))
    assert jax.tree.structure(noisy) == jax.tree.structure(tree)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(noisy)])
    assert len(np.unique(flat)) == 8
    assert low_precision.dtype == np.float32
    np.testing.assert_array_equal(public, 1.0)


def test_mechanisms_are_mapped_over():
    """vmap over mechanisms is a loop."""
    epsilon_of_one = np.array([1.0, 2.0])
    epsilons = jax.jit(jax.vmap(lambda mechanism: mechanism.epsilon(1e-5)))(LaplaceMechanism(epsilon_of_one))
    np.testing.assert_allclose(epsilons, epsilon_of_one + 2 * np.log1p(-1e-5), rtol=1e-6)


def test_subsampling_sums_pytrees():
    """With probability 1 and next to no noise the release is the sum over the examples."""
    mechanism = PoissonSubsampled(LaplaceMechanism(1e6), 1.0)
    data = {"x": np.ones((5, 2), np.float32)}
    summed = jax.jit(lambda key: mechanism.sample(key, data, 1.0))(jax.random.key(1))
    np.testing.assert_allclose(summed["x"], 5.0, atol=1e-4)
    assert PoissonSubsampled(GaussianMechanism(1.0), 0.3).sampled_prob <= 0.3


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


def test_whole_numbers_that_float32_would_round_are_refused():
    """A rounded value would have another sensitivity."""
    key, mechanism = jax.random.key(0), GaussianMechanism(1.0)
    with pytest.raises(ValueError, match="at most 16777216"):
        mechanism.sample(key, np.array([33554435]), 1.0)
    traced = jax.jit(lambda value: mechanism.sample(key, value, 1.0))
    assert np.isnan(traced(np.array([33554435, 33554435]))).all()
    assert np.isfinite(traced(np.array([2**24, -5]))).all()


@pytest.mark.parametrize("value", [2**62 + 1, -(2**62) - 1, 2**63])
def test_integers_that_noise_could_push_out_of_int64_are_refused(value):
    mechanism = DiscreteLaplaceMechanism(1.0)
    with pytest.raises(ValueError, match=r"at most 2\^62 in size"):
        mechanism.sample(jax.random.key(0), np.array([value]))
    assert mechanism.sample(jax.random.key(0), np.array([2**62])).dtype == np.int64
