"""Ledgers of all kinds of events against closed forms and quadrature."""

import math
from fractions import Fraction

import jax
import numpy as np
import pytest
from scipy import integrate
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from gdpjax import Bounds, Event, Ledger, NeighboringRelation
from gdpjax.accounting import (
    certified,
    delta_bounds,
    epsilon_bounds,
    gdp_delta,
    gdp_epsilon,
    tradeoff_bounds,
    with_overflow,
)
from gdpjax.ledger import (
    ApproximateDPEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    GaussianEvent,
    LaplaceEvent,
    RandomizedResponseEvent,
    UniformEvent,
)
from gdpjax.tradeoff import NoGuarantee
from tests.accounting.closed_forms import gaussian_delta
from tests.refused import refusals

REPLACE_ONE = NeighboringRelation.REPLACE_ONE
RUN = (1.3, 256 / 60_000, 3516)
"""Noise multiplier, sampling probability and number of steps."""


def assert_inside(bounds, truth, width=np.inf):
    """Assert that the truth is in the bracket, and that the bracket is narrow relative to it."""
    assert bounds.lower <= truth * (1 + 1e-12)
    assert truth * (1 - 1e-12) <= bounds.upper
    assert bounds.upper - bounds.lower <= width * truth


def test_gaussian_releases_compose_in_closed_form():
    """Gaussian releases are one of the mu whose square is the sum of theirs."""
    ledger = Ledger([GaussianEvent(2.0, 3), GaussianEvent(5.0)])
    mu = math.sqrt(3 / 4 + 1 / 25)
    assert_inside(delta_bounds(ledger, epsilon=0.7), gdp_delta(0.7, mu), 1e-8)
    assert_inside(epsilon_bounds(ledger, delta=1e-6), gdp_epsilon(1e-6, mu), 1e-8)


def num_truths_and_loss(num_answers, epsilon_of_each):
    """Return the probabilities of 0, 1, ... true answers of randomized response, and the privacy losses."""
    num_truths = np.arange(num_answers + 1)
    probs = binom.pmf(num_truths, num_answers, 1 / (1 + math.exp(-epsilon_of_each)))
    losses = (2 * num_truths - num_answers) * epsilon_of_each
    return probs, losses


@pytest.mark.parametrize(("n", "each"), [(1, 1.0), (10, 0.5), (100, 0.1), (1000, 0.05)])
def test_randomized_response_is_the_binomial_closed_form(n, each):
    """The delta of n answers is a sum over the number of true ones."""
    event = RandomizedResponseEvent(each, num_steps=n)
    probs, losses = num_truths_and_loss(n, each)
    for epsilon in (0.0, 0.3 * n * each, 0.6 * n * each):
        gains = np.maximum(0.0, -np.expm1(epsilon - losses))
        delta = np.sum(probs * gains)
        assert_inside(delta_bounds(event, epsilon=epsilon), delta, 0.05)


def test_one_laplace_release():
    """The delta of one Laplace release is its closed form, and nothing is lost beyond the largest loss."""
    for theta, epsilon in ((1.0, 0.5), (2.0, 0.1), (0.1, 0.05), (1.0, 0.0)):
        delta = 1 - math.exp((epsilon - theta) / 2)
        assert_inside(delta_bounds(LaplaceEvent(theta), epsilon=epsilon), delta, 0.02)
    assert delta_bounds(LaplaceEvent(1.0), epsilon=1.01).upper < 1e-300
    assert delta_bounds(7.4, 0.03, 7, epsilon=5.0).upper < 1e-100, "whose exponential underflows in the contour"
    assert epsilon_bounds(LaplaceEvent(0.5, 4), delta=1e-12).upper <= 2.0 * (1 + 1e-9)


def delta_of_laplace_and_gaussian(theta, mu, epsilon):
    """Return delta of a Laplace and a Gaussian release: the Gaussian's delta, averaged over the Laplace loss.

    The Laplace loss is theta, -theta, or theta - 2y with density e^{-y} / 2.
    """

    def integrand(y):
        return 0.5 * math.exp(-y) * gaussian_delta(epsilon - theta + 2 * y, mu)

    at_largest_loss = 0.5 * gaussian_delta(epsilon - theta, mu)
    at_smallest_loss = 0.5 * math.exp(-theta) * gaussian_delta(epsilon + theta, mu)
    integral, _ = integrate.quad(integrand, 0, theta)
    return at_largest_loss + at_smallest_loss + integral


def test_laplace_and_randomized_response_beside_a_gaussian():
    """The delta of a Gaussian release and another is the Gaussian's, averaged over the loss of the other."""
    theta = 0.5
    mu = 0.8
    epsilon = 1.0
    ledger = Ledger([GaussianEvent(1 / mu), LaplaceEvent(theta)])
    delta = delta_of_laplace_and_gaussian(theta, mu, epsilon)
    assert_inside(delta_bounds(ledger, epsilon=epsilon), delta, 0.02)

    ledger = Ledger([GaussianEvent(1 / mu), RandomizedResponseEvent(theta, num_steps=5)])
    probs, losses = num_truths_and_loss(5, theta)
    delta = np.sum(probs * gaussian_delta(epsilon - losses, mu))
    assert_inside(delta_bounds(ledger, epsilon=epsilon), delta, 0.02)


def test_a_group_moves_every_release_as_many_times_as_far():
    """A group of three has three times the mu and three times the theta."""
    ledger = Ledger([GaussianEvent(2.0), LaplaceEvent(0.5)])
    bounds = delta_bounds(ledger, epsilon=1.0, group_size=3)
    assert_inside(bounds, delta_of_laplace_and_gaussian(1.5, 1.5, 1.0), 0.02)


def test_a_guarantee_fails_with_its_delta_and_is_randomized_response_otherwise():
    """The delta of a guarantee is its failure and, otherwise, that of randomized response."""
    event = ApproximateDPEvent(0.3, 1e-7, num_steps=20)
    failure = -math.expm1(20 * math.log1p(-1e-7))
    bounds = delta_bounds(event, epsilon=2.0)
    rest = delta_bounds(RandomizedResponseEvent(0.3, num_steps=20), epsilon=2.0)
    expected = [failure + (1 - failure) * end for end in rest]
    np.testing.assert_allclose(bounds, expected, rtol=1e-12)
    assert epsilon_bounds(event, delta=0.9 * failure) == (math.inf, math.inf)
    assert epsilon_bounds(event, delta=failure + 1e-9).upper <= 6.0 * (1 + 1e-9)


def test_uniform_events_and_whole_data_releases_under_replace_one():
    """Releases under replace-one add to training with fixed batches, and those of another relation do not."""
    training = UniformEvent(*RUN)
    release = GaussianEvent(10.0, neighboring_relation=REPLACE_ONE)
    bounds = epsilon_bounds(Ledger([training, release]), delta=1e-5)
    alone = epsilon_bounds(*RUN, 1e-5, sampling="uniform")
    assert alone.lower < bounds.lower
    assert alone.upper < bounds.upper
    with pytest.raises(ValueError, match="share one neighboring relation"):
        epsilon_bounds(Ledger([training, GaussianEvent(10.0)]), delta=1e-5)
    correlated = CorrelatedGaussianEvent(3.0, 100, neighboring_relation=REPLACE_ONE)
    with pytest.raises(ValueError, match="share one neighboring relation"):
        epsilon_bounds(Ledger([correlated, GaussianEvent(10.0)]), delta=1e-5)
    laplace = LaplaceEvent(0.3, neighboring_relation=REPLACE_ONE)
    assert epsilon_bounds(laplace, delta=1e-9).upper <= 0.3 * (1 + 1e-9)


def test_two_runs_on_the_same_batches_are_one_joint_event():
    """Trap 86: two runs that share a sampling key release more than two runs with a key each."""
    one_run = {"sampling_prob": 0.01, "num_steps": 1000}
    independent = epsilon_bounds(Ledger([Event(1.0, **one_run)] * 2), delta=1e-5)
    joint = epsilon_bounds(Ledger([Event.joint(1.0, 1.0, **one_run)]), delta=1e-5)
    assert 2.583 < independent.lower < independent.upper < 2.585
    assert 4.479 < joint.lower < joint.upper < 4.482


def test_quantile_clipping_is_a_joint_event():
    """The event of quantile clipping is the joint one, with twice the noise of the count under Poisson sampling."""
    options = {"sampling_prob": 0.01, "num_steps": 10}
    poisson = Event.quantile_clipping(1.0, 5.0, **options)
    assert poisson == Event.joint(1.0, 10.0, **options)
    uniform = UniformEvent.quantile_clipping(1.0, 5.0, **options)
    assert uniform.noise_multiplier == Event.joint(1.0, 5.0, **options).noise_multiplier


test_bad_events_and_calls = refusals(
    (lambda: RandomizedResponseEvent(1.0, num_categories=1), "num_categories must be a whole number >= 2"),
    (lambda: ApproximateDPEvent(1.0, 1.0), "delta must be"),
    (lambda: GaussianEvent(-1.0), "noise_multiplier must be"),
    (lambda: epsilon_bounds(RandomizedResponseEvent(1.0), delta=1e-5, group_size=2), "group_size > 1 is available"),
    (lambda: epsilon_bounds(Event(*RUN, overflow=1e-9), delta=1e-5, group_size=2), "group_size > 1 is available"),
    (lambda: epsilon_bounds(*RUN, 1e-5, sampling="uniform", group_size=2), "available for poisson"),
    (lambda: epsilon_bounds(CyclicPoissonEvent(*RUN, 8), delta=1e-5, group_size=2), "leave group_size out"),
    (lambda: epsilon_bounds(Event(*RUN), delta=1e-5, neighboring_relation=REPLACE_ONE), "leave neighboring_rel"),
)


@pytest.mark.parametrize("d", [0.24, 0.012, 0.0078, 1e-9])
def test_a_guarantee_asked_at_its_own_delta_is_its_epsilon(d):
    """The bracket holds epsilon and delta of the guarantee, although its delta is rounded, and is infinite below."""
    event = ApproximateDPEvent(0.5, d)
    # -expm1(log1p(-d)) is one ulp above d for the first three.
    lower, upper = epsilon_bounds(event, delta=d)
    assert lower <= 0.5 <= upper <= 0.5 * (1 + 1e-9)
    assert epsilon_bounds(event, delta=d * (1 - 1e-15)).lower == math.inf
    bounds = delta_bounds(event, epsilon=0.5)
    assert bounds.lower <= d <= bounds.upper


def test_epsilon_near_zero_where_delta_fixes_it_only_absolutely():
    """The bracket contains an epsilon of 1e-9."""
    # mu = 1 at delta(0) (1 - 1e-9): 40 digits of mpmath.
    bounds = epsilon_bounds(1.0, 1.0, 1, 0.38292492216510127)
    assert bounds.lower <= 1.241096762449093e-9 <= bounds.upper


def test_the_curve_below_the_smallest_alpha_that_is_computed():
    """The bracket contains the curve at a tiny alpha."""
    for alpha in (1e-306, 1e-302):
        bounds = tradeoff_bounds(1 / 38, 1.0, 1, alpha)
        beta = ndtr(-ndtri(alpha) - 38.0)
        assert bounds.lower <= beta <= bounds.upper


@pytest.mark.parametrize("sampling", ["poisson", pytest.param("uniform", marks=pytest.mark.slow)])
def test_whoever_is_never_drawn_loses_nothing(sampling):
    """Epsilon is 0 where delta is at least the probability of being drawn, and delta is never above that."""
    assert epsilon_bounds(0.05, 1e-12, 10, 1e-5, sampling=sampling) == (0.0, 0.0)
    prob_of_being_drawn = 1 - 0.99**3
    assert epsilon_bounds(0.5, 0.01, 3, prob_of_being_drawn + 1e-9, sampling=sampling) == (0.0, 0.0)
    assert epsilon_bounds(0.05, 0.01, 3, prob_of_being_drawn - 1e-3, sampling=sampling).lower > 0
    of_one = delta_bounds(0.05, 1e-7, 10, 1e-6)
    assert of_one.upper <= 1e-6 * (1 + 1e-9)
    of_group = delta_bounds(0.05, 1e-7, 10, 1e-6, group_size=4)
    assert 4e-6 * (1 - 1e-4) < of_group.upper <= 4e-6 * (1 + 1e-9)


def test_certified_bounds_refuse_to_be_differentiated():
    """The derivative of a certified bound is an error."""
    with pytest.raises(ValueError, match="have no derivative"):
        jax.grad(lambda sigma: epsilon_bounds(sigma, 0.01, 1000, 1e-5).upper)(1.0)


class Echo(NoGuarantee):
    """A curve whose epsilon is the delta that it is asked at."""

    def epsilon(self, delta):
        return Bounds(delta, delta)


def test_overflow_is_paid_for_on_the_safe_side_everywhere():
    """The epsilon with overflow is that at what is left of delta, which is rounded down."""
    run = (1.0, 0.01, 100)
    delta = 1e-5
    overflow = np.array([0.0, 1e-12, 1e-6, 1e-5 * (1 - 1e-9), 2e-5])
    for prob in overflow[:-1]:
        left = with_overflow(Echo(), prob).epsilon(delta).upper if prob else delta
        of_event = epsilon_bounds(Event(*run, overflow=prob), delta=delta)
        assert of_event.upper == pytest.approx(float(epsilon_bounds(*run, left).upper), rel=1e-9)
        of_curve = with_overflow(certified(*run), prob).epsilon(delta)
        np.testing.assert_allclose(of_curve, of_event, rtol=1e-9)

        exact = (Fraction(delta) - Fraction(prob)) / (1 - Fraction(prob))
        assert not prob or 0 < exact - Fraction(float(left)) < 3e-14 * Fraction(delta)
    assert epsilon_bounds(Event(*run, overflow=overflow[-1]), delta=delta).upper == np.inf


@pytest.mark.parametrize(
    ("event", "largest", "mass"),
    [
        (LaplaceEvent(0.5, 10), 5.0, 0.5**10),
        (RandomizedResponseEvent(1.0, 2, 20), 20.0, (np.e / (np.e + 1)) ** 20),
        (RandomizedResponseEvent(2.0, 5, 3), 6.0, (np.exp(2) / (np.exp(2) + 4)) ** 3),
    ],
)
def test_at_a_tiny_delta_the_largest_loss_alone_decides(event, largest, mass):
    """Epsilon is the largest loss less log(1 - delta / mass): all next to that loss weighs less than delta / mass."""
    for delta in (1e-6, 1e-12, 1e-40):
        bounds = epsilon_bounds(event, delta=delta)
        assert bounds.lower <= bounds.upper
        assert bounds.upper - bounds.lower <= 2 * delta / mass + 5e-12 * largest
        np.testing.assert_allclose(bounds.lower, largest + np.log1p(-delta / mass), rtol=1e-11)
    bounds = delta_bounds(event, epsilon=largest - 1e-9)
    assert mass * 0.99e-9 <= bounds.lower <= bounds.upper
    assert delta_bounds(event, epsilon=largest + 1e-9).lower == 0.0
