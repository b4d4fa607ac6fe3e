"""Answers of a certified curve about attacks, and the regret of one number, against brute force."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from gdpjax import Bounds, tradeoff
from gdpjax.tradeoff import ApproximateDP, CertifiedCurve, CurveBounds, Gaussian, Laplace, PiecewiseLinear, compose
from tests.tradeoff.dominating import dominating_mu

ALPHA = np.concatenate([[0.0], np.geomspace(1e-9, 1e-3, 2000), np.linspace(1e-3, 1.0, 50_001)])


class Exact(CertifiedCurve):
    """A symmetric curve that is known exactly."""

    def __init__(self, curve):
        self.curve = curve

    def _both(self, value):
        return Bounds(np.asarray(value)[()], np.asarray(value)[()])

    def epsilon(self, delta):
        return self._both(tradeoff.epsilon(self.curve, delta))

    def delta(self, epsilon):
        return self._both(tradeoff.delta(self.curve, epsilon))

    def mu(self, failure=1e-10):
        return self._both(dominating_mu(self.curve, failure))

    def tradeoff(self, alpha):
        return self._both(self.curve(alpha))


def polygon(*corners):
    """Return the polygon through some corners."""
    alpha, beta = zip(*corners, strict=True)
    return PiecewiseLinear(list(alpha), list(beta))


def regret_by_definition(curve, mu):
    """Return the smallest k on a fine grid of alpha at which f(a + k) - k <= G_mu(a) everywhere."""
    gaussian = ndtr(-ndtri(ALPHA) - mu) if mu < np.inf else np.zeros_like(ALPHA)
    grid = np.linspace(0.0, 1.0, 200_001)
    points = np.asarray(curve(grid))

    def is_below(k):
        moved = np.interp(ALPHA + k, grid, points, right=0.0) - k
        return bool(np.all(moved <= gaussian + 1e-12))

    low, high = 0.0, 0.5
    for _ in range(30):
        middle = 0.5 * (low + high)
        if is_below(middle):
            high = middle
        else:
            low = middle
    return high


CURVES = {
    "Gaussian": (Gaussian(1.0), 1.3),
    "randomized response": (ApproximateDP(1.0), 1.4),
    "with a failure": (ApproximateDP(0.8, 0.05), 2.0),
    "Laplace": (Laplace(1.0), 1.2),
    "polygon": (polygon((0, 0.9), (0.1, 0.55), (0.25, 0.25), (0.55, 0.1), (0.9, 0), (1, 0)), 1.5),
}


@pytest.mark.parametrize("name", CURVES)
def test_regret_is_that_of_its_definition(name):
    """The bracket holds the brute force, and is 1 % wide at most."""
    curve, mu = CURVES[name]
    lower, upper = Exact(curve).regret(mu)
    truth = regret_by_definition(curve, mu)
    assert lower - 2e-6 <= truth <= upper + 2e-6
    assert 0 < upper - lower <= 0.011 * upper


def test_regret_of_a_gaussian_is_zero_and_that_of_too_small_a_mu_too():
    """A mu that the curve exceeds asks for nothing."""
    curve = Exact(Gaussian(1.0))
    for mu in (1.0, 0.5):
        lower, upper = curve.regret(mu)
        assert lower == 0
        assert upper < 2e-4
    assert tuple(curve.regret(0.0)) == (0, 0)


def profile(curve, epsilon):
    """Return sup_S A(S) - e^epsilon N(S), at any epsilon."""
    with jax.enable_x64(True):
        return float(curve.profile(jnp.float64(epsilon)))


@pytest.mark.parametrize("name", CURVES)
def test_attacks_are_those_of_the_curve(name):
    """Advantage, true positive rate and Bayes success are those of their definitions, for whoever knows the curve."""
    curve, _ = CURVES[name]
    certified = Exact(curve)
    assert certified.advantage().lower == pytest.approx(profile(curve, 0.0))
    rates = np.array([0.0, 1e-3, 0.3, 1.0])
    lower, upper = certified.tpr(rates)
    truth = 1 - curve(rates)
    assert (lower <= truth).all()
    assert (truth <= upper).all()
    np.testing.assert_allclose(lower, upper, atol=1e-15)

    # An attack on a set S is right with probability prior A(S) + (1 - prior) (1 - N(S)), whose largest value this is.
    for prior in (0.5, 0.03, 0.8):
        lower, upper = certified.bayes_success(prior)
        truth = 1 - prior + prior * profile(curve, np.log((1 - prior) / prior))
        assert lower - 1e-12 <= truth <= upper + 1e-12
        assert upper - lower < 1e-14
    assert certified.bayes_success([0.0, 1.0]).lower.tolist() == [1, 1]
    lower, upper = certified.bayes_success([1e-300, 1e-310])
    assert np.all((lower <= 1) & (upper == 1))


@pytest.fixture(scope="module")
def composed():
    """Eight steps of Laplace noise, between two polygons."""
    return compose(Laplace(0.5), times=8)


def test_bounds_by_polygons_answer_as_their_curves_do(composed):
    """The upper polygon gives the lower ends of epsilon and delta, and the other way round."""
    lower, upper = composed
    assert composed == (lower, upper)
    assert isinstance(composed, CertifiedCurve)
    queries = np.array([1e-3, 0.2])
    epsilons, deltas, errors = composed.epsilon(queries), composed.delta(queries), composed.tradeoff(queries)
    np.testing.assert_allclose(epsilons.lower, tradeoff.epsilon(upper, queries), rtol=1e-9)
    np.testing.assert_allclose(epsilons.upper, tradeoff.epsilon(lower, queries), rtol=1e-9)
    np.testing.assert_allclose(deltas.lower, tradeoff.delta(upper, queries), rtol=1e-9)
    np.testing.assert_allclose(deltas.upper, tradeoff.delta(lower, queries), rtol=1e-9)
    assert np.all(errors.lower <= lower(queries))
    assert np.all(lower(queries) <= upper(queries))
    assert np.all(upper(queries) <= errors.upper)
    assert composed.delta(800.0).lower == 0


def test_the_mu_of_bounds_by_polygons_is_that_of_their_curves():
    """The mu that dominates the upper polygon is the least that can be true."""
    lower, upper = bounds = compose(Laplace(0.5), times=2, num_cells=128)
    mu = bounds.mu()
    assert mu.lower <= dominating_mu(upper, 1e-10) <= mu.upper
    assert mu.upper == pytest.approx(dominating_mu(lower, 1e-10), rel=1e-12)
    narrow = bounds.reported_mu()
    assert mu.lower <= narrow.lower <= narrow.upper <= mu.upper


def test_without_an_epsilon_there_is_no_mu():
    """A curve below 1 at 0 has no epsilon at a smaller delta, and so no mu, but a regret."""
    curve = PiecewiseLinear([0.0, 1.0], [0.9, 0.0])
    bounds = CurveBounds(curve, curve)
    assert tuple(bounds.epsilon(0.05)) == (np.inf, np.inf)
    assert tuple(bounds.mu(0.05)) == (np.inf, np.inf)
    assert bounds.regret().lower <= 0.45 <= bounds.regret().upper + 0.03


@pytest.mark.parametrize("question", ["bayes_success", "delta", "regret"])
def test_questions_inside_compiled_code_are_refused(composed, question):
    """The bounds are known on the host only."""
    with pytest.raises(ValueError, match=r"must|available|outside"):
        jax.jit(getattr(composed, question))(0.5)
