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
    delta, mu, epsilon = grid()
    results = []
    for steps in (9, gdp._NUM_NEWTON_STEPS, 30):
        monkeypatch.setattr(gdp, "_NUM_NEWTON_STEPS", steps)
        results.append(
            (
                jax.jit(lambda d, m: gdp.gdp_epsilon(d, m))(delta, mu),
                jax.jit(lambda e, d: gdp.gdp_mu(e, d))(epsilon, delta),
            )
        )
    for fewer in results[:2]:
        np.testing.assert_allclose(fewer[0], results[2][0], rtol=2e-11, atol=1e-300)
        np.testing.assert_allclose(fewer[1], results[2][1], rtol=1e-13)


def test_residuals_are_at_rounding_level():
    delta, mu, epsilon = grid()
    found = gdp.gdp_epsilon(jnp.asarray(delta), jnp.asarray(mu))
    positive = np.asarray(found) > 0
    allowed = 1e-15 * (np.maximum(-np.log(delta), 1) + 1) + 1e-14 * np.abs(np.log(delta)) + 1e-13
    error = np.abs(gdp.gdp_log_delta(found, jnp.asarray(mu)) - np.log(delta))
    # d log delta / d log epsilon of up to 1e5 times the rounding of epsilon itself
    assert (error[positive] < np.maximum(allowed[positive], 1e-11)).all()
    error = np.abs(
        gdp.gdp_log_delta(jnp.asarray(epsilon), gdp.gdp_mu(jnp.asarray(epsilon), jnp.asarray(delta))) - np.log(delta)
    )
    assert error.max() < 1e-11


@pytest.mark.parametrize("mu", [0.0, 1e-300, 1e-20, 1e-6, 1.0, 5e3, 1e200, np.inf])
def test_never_nan(mu):
    epsilon = jnp.array([0.0, 1e-300, 1e-9, 1.0, 1e6, 1e300])
    delta = jnp.array([1e-300, 1e-20, 0.5, 1 - 1e-9])

    @jax.jit
    def everything(mu):
        forward = gdp.gdp_delta(epsilon, mu), gdp.gdp_log_delta(epsilon, mu)
        return *forward, gdp.gdp_epsilon(delta, mu), gdp.gdp_mu(epsilon[:, None], delta)

    for value in everything(jnp.float64(mu)):
        assert not jnp.isnan(value).any()
