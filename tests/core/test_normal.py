"""Mills ratio, its differences and the compensated arithmetic, against 60 digits."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from gdpjax._core import normal, trees

MILLS_DIFFERENCE = jax.jit(normal.mills_difference)


def mills(y: float) -> mp.mpf:
    """Return the Mills ratio with the digits that mpmath works with."""
    y = mp.mpf(y)
    return mp.sqrt(mp.pi / 2) * mp.exp(y * y / 2) * mp.erfc(y / mp.sqrt(2))


@pytest.fixture(autouse=True)
def _digits():
    """Compute with 60 digits in mpmath, and with float64 in JAX."""
    with mp.workdps(60), jax.enable_x64(True):
        yield


def relative_error(value, exact):
    """Return how far a float is from an exact number, relative to the number."""
    return abs(float(mp.mpf(float(value)) / exact - 1))


def test_mills_ratios():
    """Both ratios are right to a few units in the last place."""
    near_points = np.linspace(-1, 10, 60)
    far_points = np.geomspace(10, 1e3, 20)
    x = np.concatenate([near_points, far_points])
    y = x + 0.5
    at_x, at_y, _ = MILLS_DIFFERENCE(x, y - x, y)
    for points, ratios in ((x, at_x), (y, at_y)):
        for point, ratio in zip(points, ratios, strict=True):
            assert relative_error(ratio, mills(float(point))) < 3e-15


@pytest.mark.parametrize("gap", [1e-12, 1e-6, 1e-3, 0.5, 3.0, 100.0])
def test_mills_difference_does_not_cancel(gap):
    """The difference of two ratios keeps its digits, however close they are."""
    x = np.array([-1.0, -0.3, 0.0, 0.7, 4.0, 30.0, 200.0])
    _, _, differences = MILLS_DIFFERENCE(x, np.full(x.shape, gap), x + gap)
    for difference, start in zip(differences, x, strict=True):
        exact = mills(start) - mills(mp.mpf(start) + mp.mpf(gap))
        assert relative_error(difference, exact) < 4e-15


def test_compensated_arithmetic_survives_the_compiler():
    """The rounding errors of a quotient and of a sum are computed, not simplified away."""
    rng = np.random.default_rng(0)
    first = rng.uniform(1, 1e6, 200)
    second = rng.uniform(1e-3, 1e3, 200)
    quotient_of = jax.jit(functools.partial(normal.exact_quotient, jnp))
    sum_of = jax.jit(trees.two_sum)
    quotients, remainders = quotient_of(first, second)
    totals, errors = sum_of(first, second)
    for i in range(200):
        a = mp.mpf(float(first[i]))
        b = mp.mpf(float(second[i]))
        quotient = mp.mpf(float(quotients[i])) + mp.mpf(float(remainders[i]))
        assert abs(quotient * b / a - 1) < mp.mpf(2) ** -95
        exact_total = mp.mpf(float(totals[i])) + mp.mpf(float(errors[i]))
        assert exact_total == a + b
