"""Mills ratio, its differences and the compensated arithmetic, against 60 digits."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from gdpjax._core import normal

MILLS_DIFFERENCE = jax.jit(normal.mills_difference)


def mills(y: float) -> mp.mpf:
    """Return the Mills ratio with the digits that mpmath works with."""
    y = mp.mpf(y)
    return mp.sqrt(mp.pi / 2) * mp.exp(y * y / 2) * mp.erfc(y / mp.sqrt(2))


@pytest.fixture(autouse=True)
def _digits():
    with mp.workdps(60), jax.enable_x64(True):
        yield


def test_coefficients_are_the_chebyshev_coefficients_of_the_scaled_ratio():
    """They are means over the Chebyshev nodes of the ratio times y + 4."""
    num_nodes, shift = 64, 4
    angles = [mp.pi * (j + mp.mpf(1) / 2) / num_nodes for j in range(num_nodes)]
    values = []
    for angle in angles:
        y = 2 * (shift - 1) / (1 - mp.cos(angle)) - shift
        values.append((y + shift) * mills(y))
    for k, coefficient in enumerate(normal._COEFFICIENTS):
        terms = [value * mp.cos(k * angle) for value, angle in zip(values, angles, strict=True)]
        factor = 1 if k == 0 else 2
        exact = factor * sum(terms) / num_nodes
        assert abs(mp.mpf(coefficient) - exact) < mp.mpf(10) ** -16 * max(1, abs(exact))


def test_mills_ratio():
    """It is right to a few units in the last place."""
    y = np.concatenate([np.linspace(-1, 10, 60), np.geomspace(10, 1e3, 20)])
    ratios = jax.jit(normal.mills_ratio)(y)
    for ratio, point in zip(ratios, y, strict=True):
        assert abs(float(mp.mpf(float(ratio)) / mills(float(point)) - 1)) < 3e-15


@pytest.mark.parametrize("gap", [1e-12, 1e-6, 1e-3, 0.5, 3.0, 100.0])
def test_mills_difference_does_not_cancel(gap):
    """The difference of two ratios keeps its digits, however close they are."""
    x = np.array([-1.0, -0.3, 0.0, 0.7, 4.0, 30.0, 200.0])
    _, _, differences = MILLS_DIFFERENCE(x, np.full(x.shape, gap), x + gap)
    for difference, start in zip(differences, x, strict=True):
        exact = mills(start) - mills(mp.mpf(start) + mp.mpf(gap))
        assert abs(float(mp.mpf(float(difference)) / exact - 1)) < 4e-15


def test_compensated_arithmetic_survives_the_compiler():
    """What is left over of a quotient and of a sum is not simplified away."""
    rng = np.random.default_rng(0)
    first, second = rng.uniform(1, 1e6, 200), rng.uniform(1e-3, 1e3, 200)
    quotients = jax.jit(functools.partial(normal.exact_quotient, jnp))(first, second)
    sums = jax.jit(normal.exact_sum)(first, second)
    for a, b, *parts in zip(first, second, *quotients, *sums, strict=True):
        high, low, total, error = (mp.mpf(float(part)) for part in parts)
        assert abs((high + low) * mp.mpf(b) / mp.mpf(a) - 1) < mp.mpf(2) ** -95
        assert total + error == mp.mpf(a) + mp.mpf(b)
