"""The corners of the duality functions, over their whole ranges."""

import numpy as np
import pytest

from gdpjax.accounting import gdp_delta, gdp_epsilon, gdp_log_delta, gdp_mu


@pytest.fixture(scope="module")
def points():
    """A wide grid of delta, mu and epsilon."""
    rng = np.random.default_rng(0)
    num = 20_000
    tiny, small, near_one = rng.uniform(-300, 0, num), rng.uniform(-12, 0, num), rng.uniform(-9, 0, num)
    delta = np.concatenate([10**tiny, 10**small, 1 - 10**near_one])
    mu = 10 ** rng.uniform(-6, 3.7, 3 * num)
    epsilon = 10 ** rng.uniform(-9, 6, 3 * num)
    return np.clip(delta, 1e-300, 1 - 1e-9), mu, epsilon


def test_residuals_are_at_rounding_level(points):
    """The delta of an answer is the one that was asked for."""
    delta, mu, epsilon = points
    log_delta = np.log(delta)
    found = gdp_epsilon(delta, mu)
    error = np.abs(gdp_log_delta(found, mu) - log_delta)
    # d log delta / d log epsilon of up to 1e5 times the rounding of epsilon itself
    allowed = 1e-15 * (np.maximum(-log_delta, 1) + 1) + 1e-14 * np.abs(log_delta) + 1e-13
    is_positive = found > 0
    assert (error[is_positive] < np.maximum(allowed[is_positive], 1e-11)).all()

    error = np.abs(gdp_log_delta(epsilon, gdp_mu(epsilon, delta)) - log_delta)
    assert error.max() < 1e-11


def test_never_nan():
    """The functions have an answer at the ends of their ranges, too."""
    epsilon = np.array([0.0, 1e-300, 1e-9, 1.0, 1e6, 1e300])[:, None]
    delta = np.array([1e-300, 1e-20, 0.5, 1 - 1e-9])
    mu = np.array([0.0, 1e-300, 1e-20, 1e-6, 1.0, 5e3, 1e200, np.inf])
    assert not np.isnan(gdp_delta(epsilon, mu)).any()
    assert not np.isnan(gdp_log_delta(epsilon, mu)).any()
    assert not np.isnan(gdp_epsilon(delta[:, None], mu)).any()
    assert not np.isnan(gdp_mu(epsilon, delta)).any()
