"""Conversions to (epsilon, delta), to mu and to the risk of attacks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from gdpjax import accounting
from gdpjax.tradeoff import (
    ApproximateDP,
    Gaussian,
    Identity,
    Laplace,
    PiecewiseLinear,
    compose,
    delta,
    epsilon,
    group,
    subsample,
    symmetrize,
)
from tests.refused import refusals
from tests.tradeoff.dominating import dominating_mu, one_direction

CERTIFIED = compose(Laplace(0.5), times=2)
SKEW = PiecewiseLinear([0.0, 0.1, 0.5, 1.0], [0.95, 0.4, 0.1, 0.0])


def test_gaussian_is_the_accountants_exact_duality():
    """delta and epsilon of a Gaussian curve are those of the accountant."""
    curve = Gaussian(1.3)
    grid = np.array([0.0, 0.3, 1.0, 5.0, 20.0])
    np.testing.assert_array_equal(delta(curve, grid), accounting.gdp_delta(grid, 1.3))
    targets = np.array([1e-300, 1e-20, 1e-5, 0.2, 0.9])
    *found, without_delta = epsilon(curve, np.append(targets, 0.0))
    np.testing.assert_array_equal(found, accounting.gdp_epsilon(targets, 1.3))
    assert without_delta == np.inf


def test_laplace_in_closed_form():
    """delta is 1 - e^((epsilon - theta) / 2) below theta, and 0 from there on."""
    curve = Laplace(0.8)
    grid = np.array([0.0, 0.2, 0.7999, 0.8, 3.0])
    exact = np.maximum(0, 1 - np.exp((grid - 0.8) / 2))
    np.testing.assert_allclose(delta(curve, grid), exact, rtol=1e-12, atol=1e-17)
    assert epsilon(curve, 0.0) == pytest.approx(0.8, rel=1e-13)
    np.testing.assert_array_equal(delta(Identity(), grid), 0)


def test_pairs_in_closed_form():
    """A pair of epsilon and delta is exactly that private."""
    pair = ApproximateDP(0.8, 0.05)
    assert delta(pair, 0.8) == pytest.approx(0.05, rel=1e-15)
    exact, below, above = epsilon(pair, np.array([0.05, 0.0499, 0.5]))
    assert exact == pytest.approx(0.8, rel=1e-13)
    assert below == np.inf
    assert above == 0
    assert delta(ApproximateDP(np.inf, 0.1), 3.0) == pytest.approx(1.0)


@pytest.mark.parametrize("e", [0.1, 1.0, 5.0])
def test_dominating_mu_of_randomized_response(e):
    """f_{e, 0} >= G_mu if and only if G_mu passes below the corner."""
    exact = -2 * norm.ppf(1 / (1 + np.exp(e)))
    assert exact <= dominating_mu(ApproximateDP(e)) <= exact * (1 + 1e-5)


@pytest.mark.parametrize(
    ("curve", "failure"),
    [(Laplace(1.0), 0.0), (SKEW, 0.1), (one_direction(Gaussian(1.5), 0.3), 1e-10), (Laplace(0.01), 0.0)],
    ids=["laplace", "asymmetric", "mixture", "small"],
)
def test_dominating_mu_dominates_and_is_least(curve, failure):
    """delta is below that of G_mu with the failure everywhere, and no longer with a mu that is 1e-4 smaller."""
    mu = dominating_mu(curve, failure)
    end = min(epsilon(curve, failure) * 1.1, 30)
    grid = np.linspace(0, end, 4001)
    needed = delta(curve, grid)
    allowed = failure + (1 - failure) * delta(Gaussian(mu), grid)
    assert np.all(needed <= allowed + 1e-15)
    smaller = failure + (1 - failure) * delta(Gaussian(mu * (1 - 1e-4)), grid)
    assert np.any(needed > smaller)


def test_profile_of_an_inverse_mixture_of_nearly_everybody():
    """The profile keeps its digits at a sampling probability of 1, where the formula for rare sampling would cancel."""
    with jax.enable_x64(True):
        exact = float(Gaussian(20.0).profile(jnp.float64(60.0)))
        found = float(one_direction(Gaussian(20.0), 1.0).inverse().profile(jnp.float64(60.0)))
    assert exact > 1 - 1e-10
    assert found == pytest.approx(exact, rel=1e-12)


def assert_around(bounds, exact):
    """Assert that narrow brackets hold what was found to 1e-5."""
    assert np.all(bounds.lower - 1e-5 <= exact)
    assert np.all(exact <= bounds.upper + 1e-5)
    assert np.max(bounds.upper - bounds.lower) < 1e-3


@pytest.mark.parametrize(
    "curve",
    [
        Gaussian(1.0),
        Laplace(0.7),
        SKEW,
        subsample(Laplace(1.0), 0.2),
        pytest.param(subsample(Gaussian(1.0), 0.2), marks=pytest.mark.slow),
    ],
    ids=["gaussian", "laplace", "asymmetric", "subsampled", "subsampled_gaussian"],
)
def test_attack_risk_is_that_of_its_definition(curve):
    """Advantage and Bayes success are extremes over the curve of both orders, and the rates are its values."""
    x = np.linspace(0, 1, 20_001)
    values = symmetrize(curve)(x)
    certified = compose(curve)
    advantage = np.max(1 - x - values)
    assert delta(curve, 0.0) == pytest.approx(advantage, abs=1e-5)
    assert_around(certified.advantage(), advantage)
    assert_around(certified.tpr(x), 1 - values)

    # The probability of the null hypothesis is one less the prior.
    priors = np.array([0.02, 0.5, 0.8])
    risks = (1 - priors[:, None]) * x + priors[:, None] * values
    assert_around(certified.bayes_success(priors), 1 - np.min(risks, axis=1))


def test_advantage_in_closed_form():
    """It is 2 Phi(mu / 2) - 1 of a Gaussian, with its derivative, and 1 - e^(-theta / 2) of Laplace noise."""
    np.testing.assert_allclose(delta(Laplace([0.5, 1.0]), 0.0), 1 - np.exp([-0.25, -0.5]))
    assert delta(Gaussian(1.0), 0.0) == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-14)
    slope = jax.jit(jax.grad(lambda mu: delta(Gaussian(mu), 0.0)))(1.0)
    assert slope == pytest.approx(norm.pdf(0.5), rel=1e-6)


@pytest.mark.parametrize("direction", [subsample, one_direction])
def test_epsilon_of_a_subsampled_gaussian_at_a_delta_next_to_the_sampling_probability(direction):
    """A search with the profile would round away how close the two are."""
    mu, p = 1 / 0.06550539077477337, 0.004881538677046087
    curve = direction(Gaussian(mu), p)
    deltas = np.array([0.004881538677045111, p, 0.0])
    truth = 0.3342401669091329  # at 60 digits
    found, at_p, without_delta = epsilon(curve, deltas)
    assert found == pytest.approx(truth, rel=1e-12)
    assert at_p == 0
    assert without_delta == np.inf
    assert epsilon(curve.inverse(), deltas)[0] == pytest.approx(truth, rel=1e-12)


def subsampled_gaussian(mu):
    return subsample(Gaussian(mu), 0.3)


@pytest.mark.parametrize(("make", "point"), [(Laplace, 1.0), (Gaussian, 1.0), (subsampled_gaussian, 1.5)])
def test_gradients_of_epsilon_and_delta(make, point):
    """They are difference quotients of the values."""

    def answers(parameter):
        curve = make(parameter)
        return epsilon(curve, 0.01), delta(curve, 0.3)

    step = 1e-6
    finite = (np.array(answers(point + step)) - np.array(answers(point - step))) / (2 * step)
    slopes = jax.jit(jax.jacrev(answers))(point)
    np.testing.assert_allclose(slopes, finite, rtol=1e-5, atol=1e-8)


def test_groups_claim_no_epsilon_where_their_curve_is_rounding():
    """A curve that was worked out with rounding says nothing below the smallest probability that it resolves."""
    none, nothing, some = epsilon(group(ApproximateDP(0.5, 1e-6), 3), np.array([1e-16, 0.0, 1e-3]))
    assert none == nothing == np.inf
    assert 0 < some < 1.6


test_bad_input = refusals(
    (lambda: epsilon(Gaussian(1.0), 1.0), r"delta must be a number in \[0, 1\)"),
    (lambda: delta(None, 0.0), "f must be a trade-off curve"),
    (lambda: delta(CERTIFIED, 0.0), "methods of its own"),
    (lambda: epsilon(CERTIFIED, 0.1), r"curve\.tpr\(alpha\)"),
    (lambda: Gaussian(1.0).replaced(nu=2.0), "replaced has no argument 'nu'; it takes mu"),
)
