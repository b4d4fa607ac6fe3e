"""The iteration count and the corners of the duality kernels."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax._core import gdp


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


def grid():
    rng = np.random.default_rng(0)
    n = 20_000
    delta = np.concatenate(
        [10 ** rng.uniform(-300, 0, n), 10 ** rng.uniform(-12, 0, n), 1 - 10 ** rng.uniform(-9, 0, n)]
    )
    return np.clip(delta, 1e-300, 1 - 1e-9), 10 ** rng.uniform(-6, 3.7, 3 * n), 10 ** rng.uniform(-9, 6, 3 * n)


def test_newton_has_converged_everywhere(monkeypatch):
    """A step fewer than we take gives what thirty steps give."""
    delta, mu, epsilon = grid()
    results = []
    for steps in (gdp._NUM_NEWTON_STEPS - 1, 30):
        monkeypatch.setattr(gdp, "_NUM_NEWTON_STEPS", steps)
        results.append(
            (
                jax.jit(lambda d, m: gdp.gdp_epsilon(d, m))(delta, mu),
                jax.jit(lambda e, d: gdp.gdp_mu(e, d))(epsilon, delta),
            )
        )
    fewer, enough = results
    np.testing.assert_allclose(fewer[0], enough[0], rtol=2e-11, atol=1e-300)
    np.testing.assert_allclose(fewer[1], enough[1], rtol=1e-13)


def test_residuals_are_at_rounding_level():
    delta, mu, epsilon = grid()

    # The programs are those of the answers alone, and of what undoes them.
    find_epsilon, find_mu = jax.jit(gdp.gdp_epsilon), jax.jit(gdp.gdp_mu)
    log_delta = jax.jit(gdp.gdp_log_delta)
    found = find_epsilon(delta, mu)
    positive = np.asarray(found) > 0
    allowed = 1e-15 * (np.maximum(-np.log(delta), 1) + 1) + 1e-14 * np.abs(np.log(delta)) + 1e-13
    error = np.abs(log_delta(found, mu) - np.log(delta))
    # d log delta / d log epsilon of up to 1e5 times the rounding of epsilon itself
    assert (error[positive] < np.maximum(allowed[positive], 1e-11)).all()
    error = np.abs(log_delta(epsilon, find_mu(epsilon, delta)) - np.log(delta))
    assert error.max() < 1e-11


def test_never_nan():
    epsilon = np.array([0.0, 1e-300, 1e-9, 1.0, 1e6, 1e300])
    delta = np.array([1e-300, 1e-20, 0.5, 1 - 1e-9])

    @jax.jit
    def everything(mu):
        forward = gdp.gdp_delta(epsilon, mu), gdp.gdp_log_delta(epsilon, mu)
        return *forward, gdp.gdp_epsilon(delta, mu), gdp.gdp_mu(epsilon[:, None], delta)

    for mu in [0.0, 1e-300, 1e-20, 1e-6, 1.0, 5e3, 1e200, np.inf]:
        for value in everything(jnp.float64(mu)):
            assert not np.isnan(value).any(), mu
