"""The central-limit estimates: reference rows, both ends of the noise axis, and the published table."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from gdpjax.accounting import clt_epsilon, clt_mu_poisson, clt_mu_uniform
from gdpjax.ledger import Event, Ledger
from tests.data import MNIST_ROWS, REFERENCE

ROWS = REFERENCE["clt"]


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_reference_rows(sampling):
    noise, prob, steps, delta = (
        np.array([row[key] for row in ROWS]) for key in ("noise_multiplier", "sampling_prob", "num_steps", "delta")
    )
    mu = clt_mu_poisson if sampling == "poisson" else clt_mu_uniform
    np.testing.assert_allclose(mu(noise, prob, steps), [float(row[f"mu_{sampling}"]) for row in ROWS], rtol=2e-15)
    epsilon = clt_epsilon(noise, prob, steps, delta, sampling=sampling)
    np.testing.assert_allclose(epsilon, [float(row[f"epsilon_{sampling}"]) for row in ROWS], rtol=5e-15)


@pytest.mark.parametrize("function", [clt_mu_poisson, clt_mu_uniform])
def test_no_cancellation_for_large_noise(function):
    noise = np.geomspace(0.3, 1e4, 60)
    with mp.workdps(50):
        exact = []
        for s in map(mp.mpf, noise):
            bracket = mp.exp(1 / s**2) - 1
            if function is clt_mu_uniform:
                bracket = 2 * (mp.exp(1 / s**2) * mp.ncdf(1.5 / s) + 3 * mp.ncdf(-0.5 / s) - 2)
            exact.append(float(mp.sqrt(bracket)))
    np.testing.assert_allclose(function(noise, 1.0, 1), exact, rtol=2e-15)


@pytest.mark.parametrize("function", [clt_mu_poisson, clt_mu_uniform])
def test_ends(function):
    assert function(0.01, 0.01, 100) == np.inf
    assert np.isfinite(function(0.03, 0.01, 100))  # e^{1/s^2} itself overflows
    assert function(0.01, 0.0, 100) == 0
    assert clt_epsilon(0.01, 0.01, 100, 1e-5) == np.inf


@pytest.mark.parametrize(("noise", "epochs", "mu", "epsilon", "_"), MNIST_ROWS)
def test_published_rows(noise, epochs, mu, epsilon, _):
    steps = round(epochs * 60_000 / 256)
    assert f"{clt_mu_poisson(noise, 256 / 60_000, steps):.2f}" == mu
    assert clt_epsilon(noise, 256 / 60_000, steps, 1e-5) == pytest.approx(epsilon, abs=0.0051)


def test_transformations():
    noise = np.array([0.7, 1.3, 4.0])
    loop = [clt_epsilon(s, 0.01, 1000, 1e-5) for s in noise]
    np.testing.assert_allclose(clt_epsilon(noise, 0.01, 1000, 1e-5), loop, rtol=1e-14)
    with jax.enable_x64(True):
        np.testing.assert_allclose(jax.vmap(lambda s: clt_epsilon(s, 0.01, 1000, 1e-5))(noise), loop, rtol=1e-14)
        for function in (clt_mu_poisson, clt_mu_uniform):
            for s in (0.7, 5.0):
                gradient = jax.grad(function)(jnp.float64(s), 0.01, 1000)
                step = 1e-5
                difference = (function(s + step, 0.01, 1000) - function(s - step, 0.01, 1000)) / (2 * step)
                assert gradient == pytest.approx(difference, rel=1e-8)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0.0, 0.1, 10), "noise_multiplier must be a finite number > 0, got 0.0"),
        ((np.nan, 0.1, 10), "noise_multiplier must be a finite number > 0, got nan"),
        ((1.0, 1.1, 10), r"sampling_prob must be a number in \[0, 1\], got 1.1"),
        ((1.0, 0.1, 2.5), "num_steps must be a whole number >= 1, got 2.5"),
    ],
)
def test_bad_input(arguments, message):
    for function in (clt_mu_poisson, clt_mu_uniform):
        with pytest.raises(ValueError, match=message):
            function(*arguments)
    with pytest.raises(ValueError, match="sampling must be one of poisson, uniform, got 'shuffle'"):
        clt_epsilon(1.0, 0.1, 10, 1e-5, sampling="shuffle")


def test_a_ledger_is_sent_to_the_certified_bounds():
    """The limit is one of many equal steps, so a Ledger is refused, and so is a call without delta."""
    ledger = Ledger([Event(noise_multiplier=1.0, sampling_prob=0.1, num_steps=10)])
    with pytest.raises(ValueError, match="epsilon_bounds"):
        clt_epsilon(ledger, delta=1e-5)
    with pytest.raises(ValueError, match="delta"):
        clt_epsilon(1.0, 0.1, 10)
