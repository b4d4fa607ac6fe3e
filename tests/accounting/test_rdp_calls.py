"""The moments accountant's calls: shapes, transformations, gradients, fixed-size batches, refusals."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax.accounting import (
    moments_accountant_epsilon,
    rdp_epsilon,
    rdp_subsampled_gaussian,
)
from tests.accounting.test_rdp import SAMPLING, UNIFORM_ORDERS


def test_uniform_epsilon():
    poisson, uniform = (moments_accountant_epsilon(1.3, 256 / 60_000, 3516, 1e-5, sampling=s) for s in SAMPLING)
    assert poisson < uniform < 1.5 * poisson
    full = [moments_accountant_epsilon(2.0, 1.0, 10, 1e-5, sampling=s) for s in SAMPLING]
    assert full[0] == pytest.approx(full[1], rel=1e-10)
    assert moments_accountant_epsilon(1.0, 0.0, 100, 1e-5, sampling="uniform") == 0
    tiny = rdp_subsampled_gaussian(0.02, 0.1, UNIFORM_ORDERS, sampling="uniform")  # the fallback: no cell sum holds it
    assert (tiny >= rdp_subsampled_gaussian(0.02, 0.1, UNIFORM_ORDERS)).all()
    assert np.isfinite(tiny).all()
    traced = jax.jit(lambda s, a: rdp_subsampled_gaussian(s, 0.01, a, sampling="uniform"))(1.1, UNIFORM_ORDERS)
    exact = rdp_subsampled_gaussian(np.float32(1.1), 0.01, UNIFORM_ORDERS, sampling="uniform")  # compiled already
    np.testing.assert_allclose(traced, exact, rtol=1e-5)
    with jax.enable_x64(True):
        up, down = (rdp_subsampled_gaussian(1.1 + x, 0.01, 2.5, sampling="uniform") for x in (1e-5, -1e-5))
        _, gradient = jax.jvp(
            lambda s: rdp_subsampled_gaussian(s, 0.01, 2.5, sampling="uniform"), (jnp.float64(1.1),), (1.0,)
        )
    assert gradient == pytest.approx((up - down) / 2e-5, rel=1e-6)


def test_transformations():
    noise = np.array([0.7, 1.3, 4.0])
    loop = np.array([moments_accountant_epsilon(s, 0.01, 1000, 1e-5) for s in noise])
    many = moments_accountant_epsilon(np.tile(noise, 50), 0.01, 1000, 1e-5)  # more than one chunk
    np.testing.assert_allclose(many, np.tile(loop, 50), rtol=1e-12)
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
        for order in (2.5, 7.0):
            difference = (
                rdp_subsampled_gaussian(1.1 + step, 0.01, order) - rdp_subsampled_gaussian(1.1 - step, 0.01, order)
            ) / (2 * step)
            gradient = jax.grad(lambda s, a=order: rdp_subsampled_gaussian(s, 0.01, a))(jnp.float64(1.1))
            assert gradient == pytest.approx(difference, rel=1e-6)
        up, down = (moments_accountant_epsilon(1.1 + s, 0.01, 1000, 1e-5) for s in (step, -step))
        # forward mode: a third of the compile time of jax.grad
        _, gradient = jax.jvp(lambda s: moments_accountant_epsilon(s, 0.01, 1000, 1e-5), (jnp.float64(1.1),), (1.0,))
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
