"""Mills ratio, its differences and the compensated arithmetic, against 60 digits."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from gdpjax._core import normal


def mills(y: float) -> mp.mpf:
    y = mp.mpf(y)
    return mp.sqrt(mp.pi / 2) * mp.exp(y * y / 2) * mp.erfc(y / mp.sqrt(2))


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60), jax.enable_x64(True):
        yield


def test_coefficients_are_the_chebyshev_coefficients_of_the_scaled_ratio():
    n, b = 64, 4
    angles = [mp.pi * (j + mp.mpf(1) / 2) / n for j in range(n)]
    heights = [2 * (b - 1) / (1 - mp.cos(a)) - b for a in angles]
    values = [(y + b) * mills(y) for y in heights]
    for k, coefficient in enumerate(normal._COEFFICIENTS):
        exact = sum(v * mp.cos(k * a) for v, a in zip(values, angles, strict=True)) * (1 if k == 0 else 2) / n
        assert abs(mp.mpf(coefficient) - exact) < mp.mpf(10) ** -16 * max(1, abs(exact))


def test_mills_ratio():
    y = np.concatenate([np.linspace(-1, 10, 60), np.geomspace(10, 1e3, 20)])
    got = jax.jit(normal.mills_ratio)(jnp.asarray(y))
    assert max(abs(float(mp.mpf(float(g)) / mills(float(v)) - 1)) for g, v in zip(got, y, strict=True)) < 3e-15


@pytest.mark.parametrize("gap", [1e-12, 1e-6, 1e-3, 0.5, 3.0, 100.0])
def test_mills_difference_does_not_cancel(gap):
    x = np.array([-1.0, -0.3, 0.0, 0.7, 4.0, 30.0, 200.0])
    got = jax.jit(normal.mills_difference)(jnp.asarray(x), jnp.full(x.shape, gap), jnp.asarray(x + gap))[2]
    for value, start in zip(got, x, strict=True):
        exact = mills(start) - mills(mp.mpf(start) + mp.mpf(gap))
        assert abs(float(mp.mpf(float(value)) / exact - 1)) < 4e-15


def test_compensated_arithmetic_survives_the_compiler():
    rng = np.random.default_rng(0)
    a, b = rng.uniform(1, 1e6, 200), rng.uniform(1e-3, 1e3, 200)
    hi, lo = jax.jit(functools.partial(normal.exact_quotient, jnp))(jnp.asarray(a), jnp.asarray(b))
    total, error = jax.jit(normal.exact_sum)(jnp.asarray(a), jnp.asarray(b))
    for i in range(200):
        assert abs((mp.mpf(float(hi[i])) + mp.mpf(float(lo[i]))) * mp.mpf(b[i]) / mp.mpf(a[i]) - 1) < mp.mpf(2) ** -95
        assert mp.mpf(float(total[i])) + mp.mpf(float(error[i])) == mp.mpf(a[i]) + mp.mpf(b[i])
