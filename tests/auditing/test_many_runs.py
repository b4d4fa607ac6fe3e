"""Audits of many runs: exact coverage by enumeration, honest thresholds, tightness, bad input."""

import jax
import numpy as np
import pytest
from scipy import optimize, special, stats

from gdpjax.accounting import gdp_epsilon
from gdpjax.auditing import ErrorRegion, audit_many_runs

KEY = jax.random.key(0)


def test_the_corners_are_clopper_and_pearsons():
    """With Clopper and Pearson's tails U and V at corner j, U_0 = k and V_j U_{j+1} = k; the rates are rounded up."""
    k = optimize.brentq(lambda k: k * (1 - np.log(k)) - 0.05, 1e-9, 0.5)
    for errors, trials in ((0, 1), (0, 40), (3, 40), (39, 40), (500, 100_000)):
        region = ErrorRegion.from_counts(errors, trials, errors, trials, confidence=0.95)
        tail_of_alpha, tail_of_beta = (stats.binom.cdf(errors, trials, rate) for rate in (region.alpha, region.beta))
        np.testing.assert_allclose(tail_of_alpha[0], k, rtol=1e-5)
        np.testing.assert_allclose(tail_of_beta[:-1] * tail_of_alpha[1:], k, rtol=1e-5)
        assert (tail_of_beta[:-1] * tail_of_alpha[1:] <= k * (1 + 1e-12)).all()
    for errors, trials in ((40, 40), (0, 0)):
        region = ErrorRegion.from_counts(errors, trials, 0, 1, confidence=0.95)
        np.testing.assert_array_equal(region.alpha, 1)


def region_of_each_pair(num_runs=50, confidence=0.95):
    """Return the region for every pair of error counts, shape [num_runs + 1, num_runs + 1, corners]."""
    counts = np.arange(num_runs + 1)
    return ErrorRegion.from_counts(counts[:, None], num_runs, counts, num_runs, confidence=confidence)


def prob_of_exceeding(bounds, alpha, beta, truth):
    """Return P(bound > truth) exactly, over both binomial counts."""
    num_runs = len(bounds) - 1
    counts = np.arange(num_runs + 1)
    false_positive_probs = stats.binom.pmf(counts, num_runs, alpha)
    false_negative_probs = stats.binom.pmf(counts, num_runs, beta)
    exceeds = bounds > truth
    return false_positive_probs @ exceeds @ false_negative_probs


def prob_of_covering(region, num_runs, alpha, beta):
    """Return the probability that the region of the observed counts contains the true rates."""
    counts = np.arange(num_runs + 1)
    false_positive_probs = stats.binom.pmf(counts, num_runs, alpha)
    false_negative_probs = stats.binom.pmf(counts, num_runs, beta)
    joint_probs = false_positive_probs[:, None] * false_negative_probs
    is_inside = ((alpha <= region.alpha) & (beta <= region.beta)).any(-1)
    return joint_probs[is_inside].sum()


def test_the_region_covers_every_pair_of_rates():
    """The region contains the true rates with the stated probability, and not with much more."""
    num_runs = 25
    for confidence in (0.6, 0.95):
        region = region_of_each_pair(num_runs, confidence)
        for alpha, beta in np.random.default_rng(0).random((60, 2)) ** 2:
            assert prob_of_covering(region, num_runs, alpha, beta) >= confidence

    # Continuous uniform variables would give 0.6 exactly.
    region = region_of_each_pair(num_runs, 0.6)
    assert prob_of_covering(region, num_runs, 0.5, 0.5) < 0.78


def gaussian_beta(alpha, mu):
    """Return the trade-off curve of the Gaussian mechanism."""
    return special.ndtr(-special.ndtri(alpha) - mu)


@pytest.mark.parametrize("confidence", [0.7, 0.95])
def test_exact_coverage_of_gaussian_mechanisms_at_every_threshold(confidence):
    """The bounds exceed the true mu and epsilon with probability 1 - confidence at most."""
    region = region_of_each_pair(confidence=confidence)
    mu_bounds, epsilon_bounds = region.mu(), region.epsilon(1e-3)
    for mu in (0.0, 0.5, 1.0, 3.0):
        epsilon = gdp_epsilon(1e-3, mu)
        for alpha in np.concatenate([[1e-4, 1 - 1e-4], np.linspace(0.01, 0.99, 25)]):
            beta = gaussian_beta(alpha, mu)
            assert prob_of_exceeding(mu_bounds, alpha, beta, mu * (1 + 1e-12)) <= 1 - confidence
            assert prob_of_exceeding(epsilon_bounds, alpha, beta, epsilon) <= 1 - confidence


def test_the_formulas_at_known_curves():
    """The rates on a Gaussian curve give its mu and at most its epsilon, and rates at the ends give 0 or infinity."""
    alpha = np.linspace(0.001, 0.9, 50)[:, None]
    beta = gaussian_beta(alpha, 1.5)
    np.testing.assert_allclose(ErrorRegion(alpha, beta).mu(), 1.5, rtol=1e-12)
    np.testing.assert_allclose(ErrorRegion(beta, alpha).mu(), 1.5, rtol=1e-12)

    # A test never shows more than epsilon(delta), and the best one shows it.
    thresholds = np.linspace(-3, 6, 4000)
    alpha = special.ndtr(-thresholds)[:, None]
    beta = special.ndtr(thresholds - 1.5)[:, None]
    for delta in (1e-5, 0.01):
        shown = ErrorRegion(alpha, beta).epsilon(delta)
        assert shown.max() <= gdp_epsilon(delta, 1.5) <= shown.max() + 1e-4

    ends = np.array([[0.0, 0.3], [1.0, 0.3], [0.5, 0.5], [0.7, 0.7], [0.0, 1.0], [1.0, 0.0]])[:, :, None]
    np.testing.assert_array_equal(ErrorRegion(ends[:, 0], ends[:, 1]).mu(), [np.inf, 0, 0, 0, 0, 0])
    ends = np.array([[0.0, 0.3], [1.0, 0.0], [0.5, 0.5], [0.2, 0.7]])[:, :, None]
    epsilon = ErrorRegion(ends[:, 0], ends[:, 1]).epsilon([0, 0, 0, 0.2])
    np.testing.assert_array_equal(epsilon, [np.inf, 0, 0, 0])
    assert ErrorRegion(0.0, 0.5).epsilon(0.5) == 0


def null_rate(audit_scores, repeats):
    """Return how often null scores of 200 runs give a positive bound."""
    included = np.arange(200) % 2 == 0
    is_positive = []
    for seed in range(repeats):
        scores = np.random.default_rng(seed).normal(size=200)
        audit = audit_scores(scores, included, jax.random.key(seed))
        is_positive.append(max(audit.mu, audit.epsilon, audit.epsilon_if_gaussian) > 0)
    return np.mean(is_positive)


@pytest.mark.parametrize("confidence", [0.95, 0.8])
def test_null_scores_give_nothing(confidence):
    """Scores that know nothing give a positive bound with probability 1 - confidence at most."""

    def by_half_of_the_runs(scores, included, key):
        return audit_many_runs(scores, included, key=key, delta=1e-5, confidence=confidence)

    def by_a_fixed_threshold(scores, included, key):
        return audit_many_runs(scores, included, threshold=0.3, delta=1e-5, confidence=confidence)

    allowed = 1 - confidence + 3 * np.sqrt(confidence * (1 - confidence) / 200)
    assert null_rate(by_half_of_the_runs, 200) <= allowed
    assert null_rate(by_a_fixed_threshold, 200) <= allowed


def test_the_best_threshold_on_the_same_scores_would_not_cover():
    """A broken version is seen to fail: at confidence 0.8 more than 0.2 of null audits are positive."""

    def optimistic(scores, included, key):
        audits = [
            audit_many_runs(scores, included, threshold=threshold, delta=1e-5, confidence=0.8)
            for threshold in np.quantile(scores, np.linspace(0.05, 0.95, 19))
        ]
        return max(audits, key=lambda audit: audit.mu)

    assert null_rate(optimistic, 200) > 0.3


def test_it_finds_nearly_all_of_mu_and_either_direction():
    """The bound is 97 % of the true mu, whether high or low scores mean that a canary is included."""
    rng = np.random.default_rng(1)
    included = rng.random(200_000) < 0.5
    scores = included + rng.normal(size=included.size)
    for sign in (1, -1):
        audit = audit_many_runs(sign * scores, included, delta=1e-5, key=KEY)
        assert 0.97 < audit.mu <= 1
        assert audit.low_means_in == (sign < 0)
        assert audit.epsilon <= audit.epsilon_if_gaussian == gdp_epsilon(1e-5, audit.mu) <= gdp_epsilon(1e-5, 1.0)
        assert audit.standing == "empirical lower"
        assert audit.num_runs == 100_000
    fixed = audit_many_runs(scores, included, delta=1e-5, threshold=0.5)
    assert fixed.num_runs == 200_000
    np.testing.assert_allclose([fixed.alpha, fixed.beta], special.ndtr(-0.5), rtol=0.02)


def test_ties_and_infinities_have_no_favourite_side():
    """Tied scores show nothing, and infinite scores that tell everything give finite bounds."""
    included = np.arange(400) % 2 == 0
    for tied_scores in (np.zeros(400), np.full(400, -np.inf)):
        assert audit_many_runs(tied_scores, included, delta=0.0, key=KEY).mu == 0
    certain_scores = np.where(included, np.inf, -np.inf)
    audit = audit_many_runs(certain_scores, included, delta=0.0, key=KEY)
    assert 3 < audit.mu < 6
    assert audit.epsilon_if_gaussian > audit.epsilon > 3
    assert np.isfinite(audit[:7]).all()


COINS = np.arange(100) % 2 == 0


def test_one_kind_of_run_only_shows_nothing():
    """Runs that all include the canary, or all leave it out, show nothing."""
    for included in (np.zeros(50), np.ones(50)):
        audit = audit_many_runs(np.arange(50.0), included, delta=1e-5, key=KEY)
        assert audit.mu == audit.epsilon == audit.epsilon_if_gaussian == 0
    assert audit_many_runs([1.0], [True], delta=1e-5, key=KEY).mu == 0


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        (np.full(100, np.nan), {"key": KEY}, "must not be NaN"),
        (np.zeros(100), {}, "exactly one of threshold"),
        (np.zeros(100), {"key": KEY, "threshold": 0.0}, "exactly one of threshold"),
        (np.zeros(98), {"key": KEY}, "equal length"),
    ],
)
def test_bad_input(scores, options, message):
    """Scores and options that are no audit are refused with a message."""
    all_options = {"delta": 1e-5, **options}
    with pytest.raises(ValueError, match=message):
        audit_many_runs(scores, COINS, **all_options)
