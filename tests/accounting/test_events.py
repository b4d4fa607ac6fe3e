"""Ledgers of all kinds of events against closed forms and quadrature."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import integrate
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import (
    delta_after_overflow,
    delta_bounds,
    epsilon_bounds,
    epsilon_estimate,
    epsilon_with_overflow,
    gdp_delta,
    gdp_epsilon,
    mu_bounds,
    tradeoff_bounds,
)
from gdpjax.ledger import ApproximateDPEvent, GaussianEvent, LaplaceEvent, RandomizedResponseEvent

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
RUN = (1.3, 256 / 60_000, 3516)


def gaussian_delta(epsilon, mu):
    """delta_mu at any real epsilon."""
    return ndtr(mu / 2 - epsilon / mu) - np.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)


def inside(bounds, truth, width=np.inf):
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth * (1 - 1e-12) <= bounds.upper
    assert bounds.upper - bounds.lower <= width * truth


def test_gaussian_releases_compose_in_closed_form():
    ledger = Ledger([GaussianEvent(2.0, 3), GaussianEvent(5.0)])
    mu = math.sqrt(3 / 4 + 1 / 25)
    inside(delta_bounds(ledger, epsilon=0.7), gdp_delta(0.7, mu), 1e-8)
    inside(epsilon_bounds(ledger, delta=1e-6), gdp_epsilon(1e-6, mu), 1e-8)


@pytest.mark.parametrize(("n", "each"), [(1, 1.0), (10, 0.5), (100, 0.1), (1000, 0.05)])
def test_randomized_response_is_the_binomial_closed_form(n, each):
    event, truth = RandomizedResponseEvent(each, num_steps=n), 1 / (1 + math.exp(-each))
    for epsilon in (0.0, 0.3 * n * each, 0.6 * n * each):
        j = np.arange(n + 1)
        gain = np.maximum(0.0, -np.expm1(epsilon - (2 * j - n) * each))
        inside(delta_bounds(event, epsilon=epsilon), np.sum(binom.pmf(j, n, truth) * gain), 0.05)


@pytest.mark.parametrize("k", [2, 3, 100])
def test_one_answer_with_k_categories(k):
    epsilon = 0.4
    truth = (math.e - math.exp(epsilon)) / (math.e + k - 1)
    inside(delta_bounds(RandomizedResponseEvent(1.0, num_categories=k), epsilon=epsilon), truth, 0.02)


def test_one_laplace_release():
    for theta, epsilon in ((1.0, 0.5), (2.0, 0.1), (0.1, 0.05), (1.0, 0.0)):
        inside(delta_bounds(LaplaceEvent(theta), epsilon=epsilon), 1 - math.exp((epsilon - theta) / 2), 0.02)
    assert delta_bounds(LaplaceEvent(1.0), epsilon=1.01).upper < 1e-300
    assert epsilon_bounds(LaplaceEvent(0.5, 4), delta=1e-12).upper <= 2.0 * (1 + 1e-9)


def delta_of_laplace_and_gaussian(theta, mu, epsilon):
    """The Laplace loss is theta, -theta, or theta - 2y with density e^{-y} / 2; the Gaussian's delta is averaged."""

    def density(y):
        return 0.5 * math.exp(-y) * gaussian_delta(epsilon - theta + 2 * y, mu)

    atoms = 0.5 * gaussian_delta(epsilon - theta, mu) + 0.5 * math.exp(-theta) * gaussian_delta(epsilon + theta, mu)
    return atoms + integrate.quad(density, 0, theta)[0]


def test_laplace_and_randomized_response_beside_a_gaussian():
    theta, mu, epsilon = 0.5, 0.8, 1.0
    laplace = delta_of_laplace_and_gaussian(theta, mu, epsilon)
    inside(delta_bounds(Ledger([GaussianEvent(1 / mu), LaplaceEvent(theta)]), epsilon=epsilon), laplace, 0.02)
    n, truth = 5, 1 / (1 + math.exp(-theta))
    j = np.arange(n + 1)
    mixed = np.sum(binom.pmf(j, n, truth) * gaussian_delta(epsilon - (2 * j - n) * theta, mu))
    ledger = Ledger([GaussianEvent(1 / mu), RandomizedResponseEvent(theta, num_steps=n)])
    inside(delta_bounds(ledger, epsilon=epsilon), mixed, 0.02)


def test_a_group_moves_every_release_as_many_times_as_far():
    ledger = Ledger([GaussianEvent(2.0), LaplaceEvent(0.5)])
    inside(delta_bounds(ledger, epsilon=1.0, group_size=3), delta_of_laplace_and_gaussian(1.5, 1.5, 1.0), 0.02)


@pytest.mark.slow
def test_a_group_and_one_kind_of_release():
    inside(delta_bounds(GaussianEvent(2.0), epsilon=0.7, group_size=3), gdp_delta(0.7, 1.5), 1e-8)
    inside(delta_bounds(LaplaceEvent(0.5), epsilon=0.5, group_size=2), 1 - math.exp(-0.25), 0.02)


@pytest.mark.slow
def test_mu_of_a_gaussian_and_randomized_response():
    ledger = Ledger([GaussianEvent(1.25), RandomizedResponseEvent(0.5, num_steps=5)])
    bounds, single = mu_bounds(ledger, failure=1e-6), -2 * ndtri(1 / (1 + math.exp(0.5)))
    assert 0.8 < bounds.lower <= bounds.upper <= math.sqrt(0.8**2 + 5 * single**2) * (1 + 1e-9)
    assert mu_bounds(ApproximateDPEvent(0.3, 1e-7), failure=1e-8) == (math.inf, math.inf)


def test_a_guarantee_fails_with_its_delta_and_is_randomized_response_otherwise():
    event, failure = ApproximateDPEvent(0.3, 1e-7, num_steps=20), -math.expm1(20 * math.log1p(-1e-7))
    response = RandomizedResponseEvent(0.3, num_steps=20)
    rest, bounds = delta_bounds(response, epsilon=2.0), delta_bounds(event, epsilon=2.0)
    np.testing.assert_allclose(bounds, [failure + (1 - failure) * end for end in rest], rtol=1e-12)
    assert epsilon_bounds(event, delta=0.9 * failure) == (math.inf, math.inf)
    assert epsilon_bounds(event, delta=failure + 1e-9).upper <= 6.0 * (1 + 1e-9)


@pytest.mark.slow
def test_the_curve_and_the_estimate_of_a_guarantee():
    event, response = ApproximateDPEvent(0.3, 1e-7, num_steps=20), RandomizedResponseEvent(0.3, num_steps=20)
    curve, clean = tradeoff_bounds(event, alpha=0.1), tradeoff_bounds(response, alpha=0.1)
    np.testing.assert_allclose(curve, clean, rtol=1e-4)
    assert curve.lower < clean.lower
    assert tradeoff_bounds(ApproximateDPEvent(0.3, 0.2), alpha=0.85) == (0.0, 0.0)
    estimate = epsilon_estimate(event, delta=1e-3)
    assert epsilon_bounds(event, delta=1e-3).lower * 0.99 < estimate < epsilon_bounds(event, delta=1e-3).upper * 1.01
    assert epsilon_estimate(event, delta=1e-6) == math.inf


def test_training_with_other_releases_costs_more_than_either_and_less_than_the_sum():
    training, histogram, guarantee = Event(*RUN), LaplaceEvent(0.1, 10), ApproximateDPEvent(0.05, 1e-7)
    alone = epsilon_bounds(training, delta=1e-5)
    both = epsilon_bounds(Ledger([training, histogram]), delta=1e-5)
    assert alone.upper < both.lower
    assert both.upper < alone.lower + 1.0
    all_three = epsilon_bounds(Ledger([training, histogram, guarantee]), delta=1e-5)
    assert both.upper < all_three.lower
    overflowing = Ledger([Event(*RUN, overflow=1e-8), histogram, guarantee])
    paid = epsilon_bounds(overflowing, delta=1e-5)
    assert paid.lower < all_three.lower
    assert all_three.upper < paid.upper


def test_uniform_events_and_whole_data_releases_under_replace_one():
    ledger = Ledger([Event(*RUN, sampling="uniform"), GaussianEvent(10.0, neighboring_relation=REPLACE_ONE)])
    bounds = epsilon_bounds(ledger, delta=1e-5)
    single = epsilon_bounds(*RUN, 1e-5, sampling="uniform")
    assert single.lower < bounds.lower
    assert single.upper < bounds.upper
    with pytest.raises(ValueError, match="share one neighboring relation"):
        epsilon_bounds(Ledger([Event(*RUN, sampling="uniform"), GaussianEvent(10.0)]), delta=1e-5)
    assert epsilon_bounds(LaplaceEvent(0.3, neighboring_relation=REPLACE_ONE), delta=1e-9).upper <= 0.3 * (1 + 1e-9)


def test_quantile_clipping_is_a_joint_event():
    event = Event.quantile_clipping(1.0, 5.0, sampling_prob=0.01, num_steps=10)
    assert event == Event.joint(1.0, 10.0, sampling_prob=0.01, num_steps=10)
    uniform = Event.quantile_clipping(1.0, 5.0, sampling_prob=0.01, num_steps=10, sampling="uniform")
    assert uniform.noise_multiplier == Event.joint(1.0, 5.0, sampling_prob=0.01, num_steps=10).noise_multiplier


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: RandomizedResponseEvent(1.0, num_categories=1), "num_categories must be a whole number >= 2"),
        (lambda: LaplaceEvent(-1.0), "epsilon must be"),
        (lambda: ApproximateDPEvent(1.0, 1.0), "delta must be"),
        (lambda: GaussianEvent(-1.0), "noise_multiplier must be"),
        (lambda: GaussianEvent(1.0, 1.5), "num_steps must be"),
        (lambda: epsilon_bounds(RandomizedResponseEvent(1.0), delta=1e-5, group_size=2), "group_size > 1 is available"),
        (lambda: epsilon_bounds(Event(*RUN, overflow=1e-9), delta=1e-5, group_size=2), "not available with overflow"),
        (lambda: epsilon_bounds(*RUN, 1e-5, sampling="uniform", group_size=2), "available for poisson"),
        (lambda: epsilon_bounds(*RUN, 1e-5, group_size=0), "group_size must be"),
        (lambda: epsilon_bounds(*RUN, 1e-5, group_size=1000), "between 1 and 64"),
        (lambda: epsilon_estimate(*RUN, 1e-5, sampling="uniform"), "no estimate"),
        (lambda: epsilon_bounds(Event(*RUN), delta=1e-5, neighboring_relation=REPLACE_ONE), "leave it out"),
        (lambda: epsilon_bounds(Event(*RUN), delta=1e-5, sampling="uniform"), "leave it out"),
    ],
)
def test_bad_events_and_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("d", [0.24, 0.012, 0.0078, 1e-5])
def test_a_guarantee_asked_at_its_own_delta_is_not_refuted_by_rounding(d):
    # -expm1(log1p(-d)) is one ulp above d for the first three.
    assert epsilon_bounds(ApproximateDPEvent(0.5, d), delta=d).lower <= 0.5
    assert epsilon_bounds(ApproximateDPEvent(0.5, d), delta=d * (1 + 1e-13)).lower <= 0.5
    bounds = delta_bounds(ApproximateDPEvent(0.5, d), epsilon=0.5)
    assert bounds.lower <= d <= bounds.upper


def test_epsilon_near_zero_where_delta_fixes_it_only_absolutely():
    # mu = 1 at delta(0) (1 - 1e-9): 40 digits of mpmath.
    bounds = epsilon_bounds(1.0, 1.0, 1, 0.38292492216510127)
    assert bounds.lower <= 1.241096762449093e-9 <= bounds.upper


def test_the_curve_below_the_smallest_alpha_that_is_computed():
    for alpha in (1e-306, 1e-302):
        bounds, truth = tradeoff_bounds(1 / 38, 1.0, 1, alpha), ndtr(-ndtri(alpha) - 38.0)
        assert bounds.lower <= truth <= bounds.upper


def test_uniform_steps_so_rare_that_nothing_lies_above_their_threshold():
    # delta(0) is below T p = 2e-12; a component of that weight is outside the window, and u0 = 10 is, too.
    assert epsilon_bounds(0.05, 1e-12, 2, 1e-5, sampling="uniform").upper <= 1e-9


def test_a_whole_float_is_a_group_size():
    assert epsilon_bounds(2.0, 1.0, 1, 1e-5, group_size=2.0) == epsilon_bounds(2.0, 1.0, 1, 1e-5, group_size=2)


def test_one_laplace_release_just_below_its_largest_loss():
    # The line is at theta = 1e12 there, and the Chernoff bound is nearly the truth.
    largest, epsilon = 1e-3, 1e-3 * (1 - 1e-9)
    bounds, truth = delta_bounds(LaplaceEvent(largest), epsilon=epsilon), -math.expm1((epsilon - largest) / 2)
    assert bounds.lower <= truth <= bounds.upper


@pytest.mark.parametrize("delta", [0.24, 0.012, 0.0078, 1e-9])
def test_a_guarantee_at_its_own_delta_is_its_epsilon(delta):
    bounds = epsilon_bounds(ApproximateDPEvent(0.5, delta), delta=delta)
    assert bounds.lower <= 0.5 <= bounds.upper <= 0.5 * (1 + 1e-9)
    assert epsilon_bounds(ApproximateDPEvent(0.5, delta), delta=delta * (1 - 1e-15)).lower == math.inf


@pytest.mark.parametrize("sampling", ["poisson", pytest.param("uniform", marks=pytest.mark.slow)])
def test_whoever_is_never_drawn_loses_nothing(sampling):
    assert epsilon_bounds(0.05, 1e-12, 10, 1e-5, sampling=sampling) == (0.0, 0.0)
    assert epsilon_bounds(0.5, 0.01, 3, 1 - 0.99**3 + 1e-9, sampling=sampling) == (0.0, 0.0)
    assert epsilon_bounds(0.05, 0.01, 3, 1 - 0.99**3 - 1e-3, sampling=sampling).lower > 0
    assert delta_bounds(0.05, 1e-7, 10, 1e-6).upper <= 1e-6 * (1 + 1e-9)
    assert 4e-6 * (1 - 1e-4) < delta_bounds(0.05, 1e-7, 10, 1e-6, group_size=4).upper <= 4e-6 * (1 + 1e-9)


def test_certified_bounds_refuse_to_be_differentiated():
    with pytest.raises(ValueError, match="have no derivative"):
        jax.grad(lambda sigma: epsilon_bounds(sigma, 0.01, 1000, 1e-5).upper)(1.0)


def test_events_refuse_what_is_no_number():
    with pytest.raises(ValueError, match="outside compiled code"):
        jax.jit(lambda sigma: Event(sigma, 0.1, 3).num_steps)(1.0)
    with pytest.raises(ValueError, match="num_steps must be"):
        Event(1.0, 0.1, 10**400)
    for relation in ("foo", None):
        with pytest.raises(ValueError, match="must be one of ADD_OR_REMOVE_ONE"):
            LaplaceEvent(1.0, neighboring_relation=relation)
    with pytest.raises(ValueError, match="add-or-remove-one neighbours, got REPLACE_ONE"):
        Ledger([GaussianEvent(1.0, neighboring_relation=REPLACE_ONE)]).to_dp_event()


def test_overflow_is_paid_for_on_the_safe_side_everywhere():
    run, delta, overflow = (1.0, 0.01, 100), 1e-5, np.array([0.0, 1e-12, 1e-6, 1e-5 * (1 - 1e-9), 2e-5])
    bounds = epsilon_with_overflow(lambda left: epsilon_bounds(*run, left), delta, overflow)
    event = epsilon_bounds(Event(*run, overflow=1e-6), delta=delta)
    np.testing.assert_allclose((bounds.lower[2], bounds.upper[2]), event, rtol=1e-9)
    np.testing.assert_allclose((bounds.lower[0], bounds.upper[0]), epsilon_bounds(*run, delta), rtol=1e-9)
    assert bounds.upper[-1] == np.inf
    for tau in overflow[:-1]:
        exact = (Fraction(delta) - Fraction(tau)) / (1 - Fraction(tau))
        assert 0 < exact - Fraction(float(delta_after_overflow(delta, tau))) < 3e-14 * Fraction(delta)
    with pytest.raises(ValueError, match="delta must exceed"):
        delta_after_overflow(delta, overflow)


@pytest.mark.parametrize(
    ("event", "largest", "mass"),
    [
        (LaplaceEvent(0.5, 10), 5.0, 0.5**10),
        (RandomizedResponseEvent(1.0, 2, 20), 20.0, (np.e / (np.e + 1)) ** 20),
        (RandomizedResponseEvent(2.0, 5, 3), 6.0, (np.exp(2) / (np.exp(2) + 4)) ** 3),
    ],
)
def test_at_a_tiny_delta_the_largest_loss_alone_decides(event, largest, mass):
    """What is next to the largest loss weighs less than delta / mass there."""
    for delta in (1e-6, 1e-12, 1e-40):
        lower, upper = epsilon_bounds(event, delta=delta)
        assert lower <= upper
        assert upper - lower <= 2 * delta / mass + 5e-12 * largest
        np.testing.assert_allclose(lower, largest + np.log1p(-delta / mass), rtol=1e-11)
    below, above = delta_bounds(event, epsilon=largest - 1e-9)
    assert mass * 0.99e-9 <= below <= above
    assert delta_bounds(event, epsilon=largest + 1e-9).lower == 0.0


def test_a_single_laplace_release_is_inside_its_bracket_at_any_delta():
    for delta in (0.1, 1e-3, 1e-9, 1e-15):
        lower, upper = epsilon_bounds(LaplaceEvent(1.0), delta=delta)
        assert lower <= 1.0 + 2.0 * np.log1p(-delta) <= upper
