"""Poisson batches where one example is replaced by any other."""

import numpy as np
import pytest
import scipy

from gdpjax import Event, Ledger, NeighboringRelation
from gdpjax.accounting import certified, epsilon_bounds, moments_accountant_epsilon
from gdpjax.ledger import LaplaceEvent, UniformEvent
from tests.refused import refusals

REPLACE = NeighboringRelation.REPLACE_ONE


def steps(noise_multiplier, sampling_prob, num_steps, **fields):
    return Event(noise_multiplier, sampling_prob, num_steps, REPLACE, **fields)


@pytest.mark.parametrize("run", [(1.0, 0.1, 0.3), (0.5, 0.3, 1.0), (0.3, 0.01, 2.0), (2.0, 0.9, 0.0)])
def test_one_step_is_an_integral(run):
    """delta of one step, by quadrature of the positive part of P - e^epsilon Q."""
    noise_multiplier, prob, epsilon = run
    half = 0.5 / noise_multiplier

    def density(u, at):
        return (1 - prob) * scipy.stats.norm.pdf(u) + prob * scipy.stats.norm.pdf(u, at)

    u = np.linspace(-12, 12 + half, 2_000_001)
    excess = np.maximum(density(u, half) - np.exp(epsilon) * density(u, -half), 0.0)
    bounds = certified(steps(noise_multiplier, prob, 1)).delta(epsilon)
    assert bounds.lower <= np.trapezoid(excess, u) * (1 + 1e-9)
    assert bounds.upper >= np.trapezoid(excess, u) * (1 - 1e-9)
    assert bounds.upper < 1.002 * bounds.lower


def test_the_figure_of_another_library():
    lower, upper = epsilon_bounds(1.0, 0.01, 1000, 1e-5, neighboring_relation=REPLACE)
    assert 0.998 * 1.206 < lower < upper <= 1.206


@pytest.mark.parametrize("run", [(0.5, 0.01, 100), (0.05, 0.01, 100), (0.004, 0.02, 50), (3.0, 0.5, 300)])
def test_replacing_reveals_more_than_by_a_null_example(run):
    """And at most -T log(1 - p) more epsilon; the noise is relative to twice the sensitivity."""
    noise_multiplier, prob, num_steps = run
    replaced = epsilon_bounds(*run, 1e-5, neighboring_relation=REPLACE)
    special = epsilon_bounds(2 * noise_multiplier, prob, num_steps, 1e-5)
    assert special.lower <= replaced.upper
    assert replaced.lower <= special.upper - num_steps * np.log1p(-prob)
    assert 0 < replaced.upper < 1.01 * replaced.lower


def test_arrays_phases_and_all_questions():
    noises = np.array([0.6, 1.0, 3.0])
    curve = certified(noises, 0.02, 200, neighboring_relation=REPLACE)
    for row, noise in enumerate(noises):
        one = certified(steps(noise, 0.02, 200))
        halves = certified(Ledger([steps(noise, 0.02, 120), steps(noise, 0.02, 80)]))
        for ask, at in (("epsilon", 1e-6), ("delta", 0.7), ("tradeoff", 0.05), ("mu", 1e-8)):
            together = [end[row] for end in getattr(curve, ask)(at)]
            np.testing.assert_allclose(getattr(one, ask)(at), together, rtol=1e-8)
            lower, upper = getattr(halves, ask)(at)
            assert lower <= together[1]
            assert together[0] <= upper
    assert curve.tradeoff(0.05).lower[0] < curve.tradeoff(0.05).lower[2]


def test_in_a_ledger():
    """Beside Laplace noise, with an overflow, and steps without noise."""
    alone = epsilon_bounds(steps(1.0, 0.01, 1000), delta=1e-5)
    with_laplace = epsilon_bounds(
        Ledger([steps(1.0, 0.01, 1000), LaplaceEvent(0.5, neighboring_relation=REPLACE)]), delta=1e-5
    )
    assert alone.upper < with_laplace.lower < with_laplace.upper < alone.upper + 0.5
    overflowing = epsilon_bounds(steps(1.0, 0.01, 1000, overflow=1e-7, announced=True), delta=1e-5)
    assert alone.lower < overflowing.upper < 1.01 * alone.upper
    bare = certified(steps(0.0, 0.01, 3)).delta(2.0)
    np.testing.assert_allclose(bare, 1 - 0.99**3, rtol=1e-9)


test_what_is_not_known_is_refused = refusals(
    (lambda: epsilon_bounds(1.0, 0.1, 3, 1e-5, neighboring_relation=REPLACE, group_size=2), "group_size > 1"),
    (lambda: certified(Ledger([steps(1.0, 0.1, 3), UniformEvent(1.0, 0.1, 3)])), "got both"),
    (lambda: moments_accountant_epsilon(steps(1.0, 0.1, 3), delta=1e-5), "does not know Event"),
)


@pytest.mark.parametrize("noise_multiplier", [0.004, 0.0075])
def test_hardly_any_noise_against_the_integral(noise_multiplier):
    """In one step that nearly always draws the example, not to draw it is rare on both sides, by log(1 - p)."""
    prob, half = 0.999, 0.5 / noise_multiplier
    u = np.linspace(half - 8, half + 8, 400_001)

    def log_ratio(u):
        return np.logaddexp(np.log1p(-prob), np.log(prob) + half * (u - 0.5 * half))

    loss = log_ratio(u) - log_ratio(-u)
    density = prob * scipy.stats.norm.pdf(u, half)  # of the mixture; its other part is far below these losses

    def delta(epsilon):
        return np.trapezoid(density * -np.expm1(np.minimum(epsilon - loss, 0.0)), u)

    expected = scipy.optimize.brentq(lambda epsilon: delta(epsilon) - 1e-5, loss[0], loss[-1])
    bounds = epsilon_bounds(noise_multiplier, prob, 1, 1e-5, neighboring_relation=REPLACE)
    assert bounds.lower <= expected <= bounds.upper * (1 + 1e-9)
    assert bounds.upper < 1.01 * bounds.lower
