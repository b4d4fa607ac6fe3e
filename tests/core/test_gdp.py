"""The iteration count and the corners of the duality kernels."""

import jax
import numpy as np
import pytest

from gdpjax._core import gdp


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


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


@pytest.fixture(scope="module")
def programs():
    """The kernels, compiled once for the tests of this module."""
    return {
        "delta": jax.jit(gdp.gdp_delta),
        "log_delta": jax.jit(gdp.gdp_log_delta),
        "epsilon": jax.jit(gdp.gdp_epsilon),
        "mu": jax.jit(gdp.gdp_mu),
    }


def test_newton_has_converged_everywhere(monkeypatch, points, programs):
    """A step fewer than we take gives what thirty steps give, and compiled programs give it, too."""
    delta, mu, epsilon = points
    by_numpy = {}
    for num_steps in (gdp._NUM_NEWTON_STEPS - 1, 30):
        monkeypatch.setattr(gdp, "_NUM_NEWTON_STEPS", num_steps)
        with np.errstate(all="ignore"):
            found_epsilon = gdp.epsilon_kernel(np, delta, 1 - delta, mu)
            found_mu = gdp.mu_kernel(np, epsilon, delta)
        by_numpy[num_steps] = found_epsilon, found_mu
    enough_epsilon, enough_mu = by_numpy.pop(30)
    (fewer_epsilon, fewer_mu), *_ = by_numpy.values()
    monkeypatch.undo()

    for found in (fewer_epsilon, programs["epsilon"](delta, mu)):
        np.testing.assert_allclose(found, enough_epsilon, rtol=2e-11, atol=1e-300)
    for found in (fewer_mu, programs["mu"](epsilon, delta)):
        np.testing.assert_allclose(found, enough_mu, rtol=1e-13)


def test_residuals_are_at_rounding_level(points, programs):
    """The delta of an answer is the one that was asked for."""
    delta, mu, epsilon = points
    log_delta = np.log(delta)
    found = np.asarray(programs["epsilon"](delta, mu))
    error = np.abs(programs["log_delta"](found, mu) - log_delta)
    # d log delta / d log epsilon of up to 1e5 times the rounding of epsilon itself
    allowed = 1e-15 * (np.maximum(-log_delta, 1) + 1) + 1e-14 * np.abs(log_delta) + 1e-13
    is_positive = found > 0
    assert (error[is_positive] < np.maximum(allowed[is_positive], 1e-11)).all()

    found = np.asarray(programs["mu"](epsilon, delta))
    error = np.abs(programs["log_delta"](epsilon, found) - log_delta)
    assert error.max() < 1e-11


def test_never_nan(points, programs):
    """The kernels have an answer at the ends of their ranges, too."""
    epsilon = np.array([0.0, 1e-300, 1e-9, 1.0, 1e6, 1e300])
    delta = np.array([1e-300, 1e-20, 0.5, 1 - 1e-9])
    mu = np.array([0.0, 1e-300, 1e-20, 1e-6, 1.0, 5e3, 1e200, np.inf])
    shape = points[0].shape

    def pairs(first, second):
        """Return all pairs of two numbers, and the last ones again up to the size of the compiled programs."""
        grid = np.meshgrid(first, second)
        return (np.concatenate([axis.ravel(), np.full(shape[0] - axis.size, axis.ravel()[-1])]) for axis in grid)

    assert not np.isnan(programs["delta"](*pairs(epsilon, mu))).any()
    assert not np.isnan(programs["log_delta"](*pairs(epsilon, mu))).any()
    assert not np.isnan(programs["epsilon"](*pairs(delta, mu))).any()
    assert not np.isnan(programs["mu"](*pairs(epsilon, delta))).any()
