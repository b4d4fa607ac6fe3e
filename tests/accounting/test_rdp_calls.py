"""The moments accountant's calls: shapes, transformations, gradients, fixed-size batches, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.accounting import moments_accountant_epsilon, rdp_epsilon, rdp_subsampled_gaussian
from tests.refused import refusals

UNIFORM_ORDERS = np.array([1.1, 1.5, 2.0, 4.5, 16.0, 64.0])


def moments_of_many(noise, prob, steps):
    """Return the moments accountant of three runs fifty times, which is more than one chunk; Poisson sampling."""
    runs = [np.tile(np.broadcast_to(x, 3), 50) for x in (noise, prob, steps)]
    return moments_accountant_epsilon(*runs, 1e-5)


def uniform_moments(noise, prob, steps):
    """Return the moments accountant of three runs with batches of a fixed size."""
    runs = [np.broadcast_to(x, 3) for x in (noise, prob, steps)]
    return moments_accountant_epsilon(*runs, 1e-5, sampling="uniform")


@pytest.mark.parametrize("epsilon_of", [moments_of_many, uniform_moments])
def test_noise_whose_inverse_square_overflows_gives_infinity_not_nan(epsilon_of):
    """The moments overflow, and so does epsilon, unless nobody is sampled."""
    epsilon = epsilon_of([1e-160, 1e-310, 1e-160], [0.01, 0.01, 0.0], 100)
    np.testing.assert_array_equal(epsilon[:3], [np.inf, np.inf, 0.0])


def test_uniform_divergences():
    """Derivatives are differences; the first noise falls back to another bound."""
    noise = np.array([0.02, np.float32(1.1), 1.1 + 1e-5, 1.1 - 1e-5])
    prob = np.array([0.1, 0.01, 0.01, 0.01])

    def divergences(noise):
        return rdp_subsampled_gaussian(noise, prob, UNIFORM_ORDERS, sampling="uniform")

    with jax.enable_x64(True):
        values, slopes = jax.jit(lambda noise: jax.jvp(divergences, (noise,), (jnp.ones(4),)))(noise)
    tiny, _, up, down = np.asarray(values)
    slope = np.asarray(slopes)[2:].mean(axis=0)
    # No cell sum holds the first.
    assert (tiny >= rdp_subsampled_gaussian(0.02, 0.1, UNIFORM_ORDERS)).all()
    assert np.isfinite(tiny).all()
    np.testing.assert_allclose(slope, (up - down) / 2e-5, rtol=1e-6)


def test_transformations():
    """Arrays are evaluated in chunks, and compiled float32 is rounded up."""
    noise = np.array([0.7, 1.3, 4.0])
    loop = np.array([moments_accountant_epsilon(s, 0.01, 1000, 1e-5) for s in noise])
    np.testing.assert_allclose(moments_of_many(noise, 0.01, 1000), np.tile(loop, 50), rtol=1e-12)

    single = np.append(noise, -1.0).astype(np.float32)
    mapped = jax.jit(jax.vmap(lambda s: moments_accountant_epsilon(s, 0.01, 1000, 1e-5)))(single)
    exact = [moments_accountant_epsilon(s, 0.01, 1000, 1e-5) for s in single[:3]]
    assert mapped.dtype == jnp.float32
    assert (np.asarray(mapped[:3], float) >= exact).all()
    np.testing.assert_allclose(mapped[:3], exact, rtol=3e-7)
    assert np.isnan(mapped[3])

    traced = jax.jit(lambda s: rdp_subsampled_gaussian(s, 0.01, [1.5, 2.0]))(np.array([1.0, -1.0]))
    np.testing.assert_array_equal(np.isnan(traced), [[False, False], [True, True]])


def test_reverse_gradients_outside_of_float64():
    """What is transposed after float64 was switched off is a product of numbers: noise, probability and delta alike."""
    point = (1.1, 0.01, 1e-5)
    gradient = jax.grad(lambda s, p, d: moments_accountant_epsilon(s, p, 1000, d), argnums=(0, 1, 2))(*point)
    for place, value in enumerate(point):
        up, down = (moments_accountant_epsilon(*changed(point, place, value * f)) for f in (1 + 1e-6, 1 - 1e-6))
        assert gradient[place] == pytest.approx((up - down) / (2e-6 * value), rel=1e-5)


def changed(point, place, value):
    """The arguments of the moments accountant but for the steps, with one of them replaced."""
    noise, prob, delta = (*point[:place], value, *point[place + 1 :])
    return noise, prob, 1000, delta


test_bad_input = refusals(
    (
        lambda: rdp_subsampled_gaussian(1.0, 0.1, [2.0, 1.0]),
        r"orders must be a Renyi order > 1, got 1.0 at index \(1,\)",
    ),
    (
        lambda: jax.vmap(lambda order: rdp_subsampled_gaussian(1.0, 0.1, order))(UNIFORM_ORDERS),
        "orders must be known before compiling",
    ),
    (
        lambda: rdp_subsampled_gaussian(1.0, 0.1, 2.0, sampling="shuffle"),
        "sampling must be one of poisson, uniform",
    ),
    (lambda: rdp_epsilon([1.0, 1.0], [2.0], 1e-5), "the last axis of rdp must be that of orders"),
    (lambda: rdp_epsilon([1.0], [2.0], 1e-5, conversion="best"), "conversion must be one of tight, classic"),
)
