"""Conversions to (epsilon, delta), to mu and to operational risk."""

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from gdpjax import accounting
from gdpjax.tradeoff import (
    ApproximateDP,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    attack_advantage,
    bayes_error,
    compose,
    convex_conjugate,
    delta,
    dominating_mu,
    epsilon,
    from_delta_curve,
    inverse,
    mixture,
    reconstruction_robustness,
    subsample,
    true_positive_rate,
)

CERTIFIED = compose(Laplace(0.5), times=2)
SKEW = PiecewiseLinear([0.0, 0.1, 0.5, 1.0], [0.95, 0.4, 0.1, 0.0])


def test_gaussian_is_the_accountants_exact_duality():
    grid = np.array([0.0, 0.3, 1.0, 5.0, 20.0])
    np.testing.assert_array_equal(delta(Gaussian(1.3), grid), accounting.gdp_delta(grid, 1.3))
    targets = np.array([1e-300, 1e-20, 1e-5, 0.2, 0.9])
    np.testing.assert_array_equal(epsilon(Gaussian(1.3), targets), accounting.gdp_epsilon(targets, 1.3))
    assert epsilon(Gaussian(1.3), 0.0) == np.inf
    alpha = np.linspace(0, 1, 50)
    np.testing.assert_allclose(Gaussian(1.3)(alpha), accounting.gdp_tradeoff(alpha, 1.3), rtol=1e-14)


def test_laplace_and_pairs_in_closed_form():
    e = np.array([0.0, 0.2, 0.7999, 0.8, 3.0])
    np.testing.assert_allclose(delta(Laplace(0.8), e), np.maximum(0, 1 - np.exp((e - 0.8) / 2)), rtol=1e-12, atol=1e-17)
    assert epsilon(Laplace(0.8), 0.0) == pytest.approx(0.8, rel=1e-13)
    pair = ApproximateDP(0.8, 0.05)
    np.testing.assert_allclose(delta(pair, 0.8), 0.05, rtol=1e-15)
    assert epsilon(pair, 0.05) == pytest.approx(0.8, rel=1e-13)
    assert epsilon(pair, 0.0499) == np.inf
    assert epsilon(pair, 0.5) == 0
    assert delta(ApproximateDP(np.inf, 0.1), 3.0) == pytest.approx(1.0)
    np.testing.assert_array_equal(delta(Identity(), e), 0)


def test_one_subsampled_step_is_the_certified_accountants():
    for sigma, p in ((1.0, 0.3), (0.5, 0.01), (3.0, 0.7)):
        e = np.array([0.1, 0.5, 1.0, 2.0])
        bounds = accounting.delta_bounds(sigma, p, 1, e)
        for curve in (subsample(Gaussian(1 / sigma), p), mixture(Gaussian(1 / sigma), p)):
            got = delta(curve, e)
            assert np.all((bounds.lower <= got) & (got <= bounds.upper))


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 0.9)), min_size=1, max_size=6))
def test_from_delta_curve_is_the_supremum_of_the_statements(statements):
    curve = from_delta_curve(*np.array(statements).T)
    x = np.linspace(0, 1, 101)
    exact = np.max([ApproximateDP(e, d)(x) for e, d in statements], axis=0)
    np.testing.assert_allclose(curve(x), exact, atol=1e-12)
    assert curve.is_symmetric()
    for e, d in statements:
        assert delta(curve, e) <= d + 1e-12


def test_round_trip_through_a_fine_profile():
    e = np.linspace(0, 12, 600)
    curve = from_delta_curve(e, delta(Gaussian(1.0), e))
    x = np.linspace(0.001, 0.999, 99)
    assert np.all(curve(x) <= Gaussian(1.0)(x) + 1e-15)
    np.testing.assert_allclose(curve(x), Gaussian(1.0)(x), atol=2e-5)


def test_dominating_mu_of_known_curves():
    assert dominating_mu(Gaussian(0.7)) == 0.7
    assert dominating_mu(subsample(Gaussian(0.7), 0.1)) == 0.7  # in the extreme tail subsampling buys nothing
    assert dominating_mu(Identity()) == 0
    assert dominating_mu(subsample(Gaussian(0.7), 0.0)) == 0
    for e in (0.1, 1.0, 5.0):  # f_{e,0} >= G_mu iff G_mu passes below the corner
        exact = -2 * norm.ppf(1 / (1 + np.exp(e)))
        assert exact <= dominating_mu(ApproximateDP(e)) <= exact * (1 + 1e-5)
    assert dominating_mu(ApproximateDP(1.0, 1e-6)) == np.inf
    assert dominating_mu(ApproximateDP(1.0, 1e-6), 1e-6) < 1.2321
    assert Gaussian(1.0).mu * (1 - 1e-4) < dominating_mu(Gaussian(1.0), 1e-9) <= 1.0 + 1e-6


@pytest.mark.parametrize(
    ("curve", "failure"),
    [(Laplace(1.0), 0.0), (SKEW, 0.1), (mixture(Gaussian(1.5), 0.3), 1e-10), (Laplace(0.01), 0.0)],
    ids=["laplace", "asymmetric", "mixture", "small"],
)
def test_dominating_mu_dominates_and_is_least(curve, failure):
    mu = dominating_mu(curve, failure)
    e = np.linspace(0, min(epsilon(curve, failure) * 1.1, 30), 20_001)
    needed = delta(curve, e)
    assert np.all(needed <= failure + (1 - failure) * delta(Gaussian(mu), e) + 1e-15)
    smaller = failure + (1 - failure) * delta(Gaussian(mu * (1 - 1e-4)), e)
    assert np.any(needed > smaller)


def test_dominating_mu_is_the_certified_accountants():
    bounds = accounting.mu_bounds(1.0, 0.3, 1, failure=1e-10)
    assert bounds.lower <= dominating_mu(subsample(Gaussian(1.0), 0.3), 1e-10) <= bounds.upper


def test_profile_of_an_inverse_mixture_of_nearly_everybody():
    slope = -np.exp(60.0)
    exact = convex_conjugate(Gaussian(20.0), slope)
    assert exact > -1e-10
    assert convex_conjugate(inverse(mixture(Gaussian(20.0), 1.0)), slope) == pytest.approx(exact, rel=1e-12)


def test_operational_risk():
    assert attack_advantage(Gaussian(1.0)) == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-14)
    np.testing.assert_allclose(attack_advantage(Laplace([0.5, 1.0])), 1 - np.exp([-0.25, -0.5]))
    x = np.linspace(0, 1, 20_001)
    for curve in (Gaussian(1.0), Laplace(0.7), SKEW, subsample(Gaussian(1.0), 0.2)):
        values = curve(x)
        assert attack_advantage(curve) == pytest.approx(np.max(1 - x - values), abs=1e-5)
        np.testing.assert_allclose(true_positive_rate(curve, x[::100]), 1 - values[::100])
        np.testing.assert_allclose(reconstruction_robustness(curve, x[::100]), 1 - values[::100])
        for prior in (0.02, 0.5, 0.8):
            assert bayes_error(curve, prior) == pytest.approx(np.min(prior * x + (1 - prior) * values), abs=1e-5)
        assert bayes_error(curve, 0.5) == pytest.approx((1 - attack_advantage(curve)) / 2, rel=1e-12)
    assert jax.grad(lambda mu: attack_advantage(Gaussian(mu)))(1.0) == pytest.approx(norm.pdf(0.5), rel=1e-6)


@pytest.mark.parametrize("direction", [subsample, mixture])
def test_epsilon_of_a_subsampled_gaussian_at_a_delta_next_to_the_sampling_probability(direction):
    mu, p, delta = 1 / 0.06550539077477337, 0.004881538677046087, 0.004881538677045111
    curve = direction(Gaussian(mu), p)
    truth = 0.3342401669091329  # at 60 digits
    assert epsilon(curve, delta) == pytest.approx(truth, rel=1e-12)
    assert epsilon(inverse(curve), delta) == pytest.approx(truth, rel=1e-12)
    assert epsilon(curve, p) == 0
    assert epsilon(curve, 0.0) == np.inf


def test_gradients_of_epsilon_and_bayes_error():
    for make, point in ((Laplace, 1.0), (Gaussian, 1.0), (lambda mu: subsample(Gaussian(mu), 0.3), 1.5)):
        step = 1e-6
        for function in (lambda c: epsilon(c, 0.01), lambda c: bayes_error(c, 0.3)):
            finite = (function(make(point + step)) - function(make(point - step))) / (2 * step)
            assert jax.grad(lambda x, f=function, m=make: f(m(x)))(point) == pytest.approx(finite, rel=1e-5, abs=1e-8)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dominating_mu(Gaussian(1.0), 1.0), r"failure must be a number in \[0, 1\)"),
        (lambda: dominating_mu(Laplace([1.0, 2.0])), "takes one curve"),
        (lambda: jax.jit(lambda e: dominating_mu(Laplace(e)))(1.0), "outside compiled code"),
        (lambda: dominating_mu(mixture(Gaussian(1.0), 0.5)), "needs failure > 0"),
        (lambda: from_delta_curve([0.0, 1.0], [0.1]), "equal length"),
        (lambda: from_delta_curve([-1.0], [0.1]), "epsilon must be"),
        (lambda: from_delta_curve([0.0, 800.0], [0.3, 0.1]), "epsilon must be at most 700"),
        (lambda: bayes_error(Gaussian(1.0), 0.0), "strictly between 0 and 1"),
        (lambda: true_positive_rate(Gaussian(1.0), -0.1), "false_positive_rate must be"),
        (lambda: epsilon(Gaussian(1.0), 1.0), r"delta must be a number in \[0, 1\)"),
        (lambda: attack_advantage(None), "f must be a trade-off curve"),
        (lambda: attack_advantage(CERTIFIED), r"methods of its own: curve\.advantage\(\)"),
        (lambda: true_positive_rate(CERTIFIED, 0.1), r"curve\.tpr\(alpha\)"),
        (lambda: Gaussian(1.0).replaced(nu=2.0), "replaced has no argument 'nu'; it takes mu"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
