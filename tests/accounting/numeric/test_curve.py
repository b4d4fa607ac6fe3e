"""The trade-off curve and the dominating mu."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri

from gdpjax.accounting import delta_bounds, mu_bounds, tradeoff_bounds
from tests.accounting.closed_forms import gaussian_delta

ALPHA = np.array([1e-6, 1e-3, 0.05, 0.3, 0.5, 0.9, 0.999])


@pytest.mark.parametrize("mu", [0.1, 4.0])
def test_without_sampling_the_curve_is_gaussian(mu):
    truth = ndtr(-ndtri(ALPHA) - mu)
    bounds = tradeoff_bounds(4.0 / mu, 1.0, 16, ALPHA)
    assert np.all((bounds.lower <= truth * (1 + 1e-9)) & (truth * (1 - 1e-9) <= bounds.upper))
    assert np.all(bounds.upper - bounds.lower < 0.15 * truth + 1e-6)


def test_one_step_is_the_symmetrised_subsampled_gaussian():
    """C_p(G_mu): p f + (1 - p) Id up to x*, the chord of slope -1 to f_p(x*), and the inverse after."""
    p, mu = 0.3, 1.25
    star = ndtr(-mu / 2)

    def f_p(x):
        return p * ndtr(-ndtri(x) - mu) + (1 - p) * (1 - x)

    def inverse(y):
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if f_p(middle) > y else (low, middle)
        return low

    for alpha in (1e-5, 0.01, 0.2, 0.3, 0.5, 0.9, 0.99):
        if alpha <= star:
            truth = f_p(alpha)
        elif alpha <= f_p(star):
            truth = star + f_p(star) - alpha
        else:
            truth = inverse(alpha)
        bounds = tradeoff_bounds(1 / mu, p, 1, alpha)
        assert bounds.lower - 1e-12 <= truth <= bounds.upper + 1e-12
        assert bounds.upper - bounds.lower < 0.02


def test_the_curve_obeys_every_epsilon_and_delta():
    run = (1.0, 0.02, 300)
    epsilon = np.array([0.0, 0.5, 1.0, 2.0])
    delta = delta_bounds(*run, epsilon)
    bounds = tradeoff_bounds(*run, ALPHA)
    line = 1 - delta.upper[:, None] - np.exp(epsilon)[:, None] * ALPHA
    mirror = np.exp(-epsilon)[:, None] * (1 - delta.upper[:, None] - ALPHA)
    assert np.all(bounds.upper >= np.maximum(line, mirror).max(0) - 1e-12)
    assert np.all(np.diff(bounds.lower) < 0)
    np.testing.assert_array_equal(tradeoff_bounds(*run, [0.0, 1.0]).upper, [1.0, 0.0])


@pytest.mark.parametrize("failure", [1e-10, 1e-3])
def test_mu_without_sampling(failure):
    bounds = mu_bounds(5.0, 1.0, 25, failure)
    assert bounds.lower <= 1.0
    # The failure probability buys something, so mu may be below 1; the definition is checked directly.
    epsilon = np.linspace(0.0, 12.0, 400)
    assert np.all(
        gaussian_delta(epsilon, 1.0) <= failure + (1 - failure) * gaussian_delta(epsilon, bounds.upper) + 1e-14
    )
    assert bounds.upper < 1.005 * bounds.lower


def test_mu_holds_at_the_upper_end_and_fails_below_the_lower():
    run, failure = (1.1, 0.02, 400), 1e-8
    bounds = mu_bounds(*run, failure)
    epsilon = np.append(np.linspace(0.0, 6.0, 11), 2.75)
    delta = delta_bounds(*run, epsilon)
    assert np.all(delta.lower <= failure + (1 - failure) * gaussian_delta(epsilon, bounds.upper))
    # A hundredth less of mu is too little at epsilon from 2.6 to 2.9.
    fails = delta.upper > failure + (1 - failure) * gaussian_delta(epsilon, 0.99 * bounds.lower)
    assert fails.any()
    assert bounds.upper < 1.005 * bounds.lower
