"""The moments accountant's calls: shapes, transformations, gradients, fixed-size batches, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.accounting import (
    _renyi,
    moments_accountant_epsilon,
    rdp_epsilon,
    rdp_subsampled_gaussian,
)

UNIFORM_ORDERS = np.array([1.1, 1.5, 2.0, 4.5, 16.0, 64.0])


def moments_of_many(noise, prob, steps):
    """The moments accountant of three runs fifty times, which is more than one chunk; Poisson sampling."""
    runs = (np.tile(np.broadcast_to(x, 3), 50) for x in (noise, prob, steps))
    return moments_accountant_epsilon(*runs, 1e-5)


def uniform_moments(noise, prob, steps):
    """The moments accountant of three runs with batches of a fixed size."""
    runs = (np.broadcast_to(x, 3) for x in (noise, prob, steps))
    return moments_accountant_epsilon(*runs, 1e-5, sampling="uniform")


def test_uniform_epsilon():
    runs = [1.3, 2.0, 1.0], [256 / 60_000, 1.0, 0.0], [3516, 10, 100]
    poisson, uniform = moments_of_many(*runs), uniform_moments(*runs)
    assert poisson[0] < uniform[0] < 1.5 * poisson[0]
    assert poisson[1] == pytest.approx(uniform[1], rel=1e-10)
    assert uniform[2] == 0


@pytest.mark.parametrize("epsilon_of", [moments_of_many, uniform_moments])
def test_noise_whose_inverse_square_overflows_gives_infinity_not_nan(epsilon_of):
    epsilon = epsilon_of([1e-160, 1e-310, 1e-160], [0.01, 0.01, 0.0], 100)
    np.testing.assert_array_equal(epsilon[:3], [np.inf, np.inf, 0.0])


def test_uniform_divergences():
    noise = np.array([0.02, np.float32(1.1), 1.1 + 1e-5, 1.1 - 1e-5])
    prob = np.array([0.1, 0.01, 0.01, 0.01])

    @jax.jit
    def values_and_slopes(noise):
        return jax.jvp(
            lambda s: rdp_subsampled_gaussian(s, prob, UNIFORM_ORDERS, sampling="uniform"), (noise,), (jnp.ones(4),)
        )

    with jax.enable_x64(True):
        (tiny, exact, up, down), slopes = map(np.asarray, values_and_slopes(noise))
    # No cell sum holds the first: the fallback.
    assert (tiny >= _renyi.log_moments(np.array(0.02), np.array(0.1), UNIFORM_ORDERS, np) / (UNIFORM_ORDERS - 1)).all()
    assert np.isfinite(tiny).all()
    np.testing.assert_allclose((slopes[2] + slopes[3]) / 2, (up - down) / 2e-5, rtol=1e-6)
    traced = jax.jit(lambda s, a: rdp_subsampled_gaussian(s, 0.01, a, sampling="uniform"))(1.1, UNIFORM_ORDERS)
    np.testing.assert_allclose(traced, exact, rtol=1e-5)


def test_transformations():
    noise = np.array([0.7, 1.3, 4.0])
    loop = np.array([moments_accountant_epsilon(s, 0.01, 1000, 1e-5) for s in noise])
    np.testing.assert_allclose(moments_of_many(noise, 0.01, 1000), np.tile(loop, 50), rtol=1e-12)
    batch = jnp.asarray([*noise, -1.0], jnp.float32)
    single = jax.jit(jax.vmap(lambda s: moments_accountant_epsilon(s, 0.01, 1000, 1e-5)))(batch)
    exact = [moments_accountant_epsilon(np.float32(s), 0.01, 1000, 1e-5) for s in noise]
    assert single.dtype == jnp.float32
    assert (np.asarray(single[:3], float) >= exact).all()  # rounded up
    np.testing.assert_allclose(single[:3], exact, rtol=3e-7)
    assert np.isnan(single[3])
    traced = jax.jit(lambda s: rdp_subsampled_gaussian(s, 0.01, [1.5, 2.0]))(jnp.array([1.0, -1.0]))
    np.testing.assert_array_equal(np.isnan(traced), [[False, False], [True, True]])


def test_gradients():
    step = 1e-5
    with jax.enable_x64(True):
        up, down = rdp_subsampled_gaussian(np.array([1.1 + step, 1.1 - step]), 0.01, [2.5, 7.0])
        gradient = jax.jit(jax.jacrev(lambda s: rdp_subsampled_gaussian(s, 0.01, [2.5, 7.0])))(jnp.float64(1.1))
        np.testing.assert_allclose(gradient, (up - down) / (2 * step), rtol=1e-6)
        up, down = (moments_accountant_epsilon(1.1 + s, 0.01, 1000, 1e-5) for s in (step, -step))
        # forward mode: a third of the compile time of jax.grad
        gradient = jax.jit(jax.jacfwd(lambda s: moments_accountant_epsilon(s, 0.01, 1000, 1e-5)))(jnp.float64(1.1))
        assert gradient == pytest.approx((up - down) / (2 * step), rel=1e-6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rdp_subsampled_gaussian(0.0, 0.1, [2.0]), "noise_multiplier must be a finite number > 0, got 0.0"),
        (lambda: rdp_subsampled_gaussian(1.0, np.nan, [2.0]), "sampling_prob must be"),
        (
            lambda: rdp_subsampled_gaussian(1.0, 0.1, [2.0, 1.0]),
            r"orders must be a Renyi order > 1, got 1.0 at index \(1,\)",
        ),
        (lambda: rdp_subsampled_gaussian(1.0, 0.1, np.full((2, 2), 2.0)), r"one axis, got shape \(2, 2\)"),
        (lambda: rdp_subsampled_gaussian(np.ones(2), np.ones(3), [2.0]), "must broadcast together"),
        (
            lambda: rdp_subsampled_gaussian(1.0, 0.1, 2.0, sampling="shuffle"),
            "sampling must be one of poisson, uniform",
        ),
        (lambda: moments_accountant_epsilon(1.0, 0.1, 9, 0.1, sampling=""), "sampling must be one of poisson, uniform"),
        (lambda: rdp_epsilon([1.0, 1.0], [2.0], 1e-5), "the last axis of rdp must be that of orders"),
        (lambda: rdp_epsilon([-1.0], [2.0], 1e-5), "rdp must be a number >= 0"),
        (lambda: rdp_epsilon([1.0], [2.0], 1e-5, conversion="best"), "conversion must be one of tight, classic"),
        (lambda: moments_accountant_epsilon(1.0, 0.1, 10, 1.0), "delta must be a number in"),
        (lambda: moments_accountant_epsilon(1.0, 0.1, 0, 1e-5), "num_steps must be a whole number >= 1"),
        (lambda: moments_accountant_epsilon(1.0, 0.1, -1, 1e-5), "num_steps must be a whole number >= 1"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
