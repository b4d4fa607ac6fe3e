"""The moments accountant: exact moments, honesty, the published column, and an independent library."""

import warnings

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpjax.accounting import _renyi, gdp_epsilon, moments_accountant_epsilon, rdp_epsilon, rdp_subsampled_gaussian
from tests.data import MNIST_ROWS, REFERENCE


def exact_rdp(noise, prob, order):
    """The integral at 30 digits, broken at the two places where its mass sits."""
    with mp.workdps(30):
        h, p, a = 1 / mp.mpf(noise), mp.mpf(prob), mp.mpf(order)

        def integrand(u):
            s = p * mp.expm1(h * u - h * h / 2)
            return mp.npdf(u) * ((1 + s) ** a - 1 - a * s)

        points = sorted({-20, -5, 0, 5, float(a * h - 6), float(a * h), float(a * h + 6), float(a * h + 20)})
        return mp.log1p(mp.quad(integrand, points)) / (a - 1)


POINTS = [
    (0.3, 0.004, 1.5),
    (0.5, 1e-4, 1.1),
    (0.5, 0.2, 2.5),
    (1.0, 0.01, 3.0),
    (1.3, 0.004, 17.25),
    (20.0, 1e-5, 1.9),
]


@pytest.mark.parametrize(("noise", "prob", "order"), POINTS)
def test_exact_and_never_below(noise, prob, order):
    excess = float(mp.mpf(float(rdp_subsampled_gaussian(noise, prob, order))) / exact_rdp(noise, prob, order) - 1)
    assert 0 < excess < 1e-9
    traced = jax.jit(lambda a: rdp_subsampled_gaussian(noise, prob, a))(order)  # float32, rounded up
    assert 0 < float(mp.mpf(float(traced)) / exact_rdp(noise, prob, float(np.float32(order))) - 1) < 3e-7


@pytest.mark.parametrize(("noise", "prob", "order"), [(0.1, 0.1, 1.5), (0.3, 0.2, 10.5), (0.7, 0.01, 40.5)])
def test_fallback_is_an_upper_bound_too(noise, prob, order):
    excess = float(mp.mpf(float(rdp_subsampled_gaussian(noise, prob, order))) / exact_rdp(noise, prob, order) - 1)
    assert 0 < excess < 0.5


def test_whole_orders_are_the_binomial_sum():
    with mp.workdps(40):
        for noise, prob, order in [(0.6, 0.01, 2), (1.1, 0.3, 7), (4.0, 1e-6, 64), (50.0, 1e-8, 3)]:
            s, p = mp.mpf(noise), mp.mpf(prob)
            terms = [
                mp.binomial(order, k) * p**k * (1 - p) ** (order - k) * mp.exp((k * k - k) / (2 * s * s))
                for k in range(order + 1)
            ]
            exact = mp.log(sum(terms)) / (order - 1)
            excess = float(mp.mpf(float(rdp_subsampled_gaussian(noise, prob, order))) / exact - 1)
            assert 0 <= excess < 2e-11


def test_without_the_error_terms_the_trapezoid_rule_would_understate(monkeypatch):
    """The certificate matters: at a coarse spacing the bare rule is below the truth, the certified bound is not."""
    monkeypatch.setattr(_renyi, "_NUM_NODES", 12)
    with jax.enable_x64(True):
        orders, h, p = np.array([2.5]), jnp.array([1.0]), jnp.array([0.1])
        certified = float(_renyi._by_trapezoid(h, p, orders, orders)[0])
        monkeypatch.setattr(_renyi, "_trapezoid_error", lambda *_: 0.0)
        bare = [float(_renyi._by_trapezoid(h, p, orders, np.array([x]))[0]) for x in np.linspace(2.5, 4, 7)]
    exact = float(exact_rdp(1.0, 0.1, 2.5) * 1.5)
    assert min(bare) < exact < certified


def test_ends_and_shapes():
    orders = np.array([1.5, 2.0, 64.0, 2000.0])
    np.testing.assert_allclose(rdp_subsampled_gaussian(2.0, 1.0, orders), orders / 8, rtol=1e-10)
    assert (rdp_subsampled_gaussian(2.0, 0.0, orders) == 0).all()
    assert rdp_subsampled_gaussian(np.ones((3, 1)), np.full(2, 0.1), orders).shape == (3, 2, 4)
    assert rdp_subsampled_gaussian(np.ones(3), 0.1, 2.0).shape == (3,)
    below, above = rdp_subsampled_gaussian(1.0, 0.01, [1024.0, 1024.5])  # the two formulas around the last tabulated
    assert below <= above


@settings(deadline=None, max_examples=40)
@given(st.floats(0.5, 50), st.floats(1e-6, 1), st.floats(0.01, 1))
def test_monotone_in_everything(noise, prob, gap):
    orders = np.array([1.1, 1.7, 2.0, 3.3, 8.0, 33.0])
    base = rdp_subsampled_gaussian(noise, prob, orders)
    slack = 1 + 1e-8
    assert (np.diff(base) >= -1e-8 * base[1:]).all()
    assert (rdp_subsampled_gaussian(noise * (1 + gap), prob, orders) <= base * slack).all()
    assert (rdp_subsampled_gaussian(noise, prob * (1 - 0.5 * gap), orders) <= base * slack).all()
    assert (base <= orders / (2 * noise**2) * slack).all()


@pytest.mark.parametrize(("noise", "epochs", "_mu", "_epsilon", "published"), MNIST_ROWS)
def test_classic_conversion_reproduces_the_published_column(noise, epochs, _mu, _epsilon, published):
    steps = round(epochs * 60_000 / 256)
    classic = moments_accountant_epsilon(noise, 256 / 60_000, steps, 1e-5, conversion="classic")
    assert f"{classic:.2f}" == f"{published:.2f}"
    assert moments_accountant_epsilon(noise, 256 / 60_000, steps, 1e-5) < classic


# The same column recomputed with a library that sums absolute values at fractional orders: valid, up to 2% above.
RECOMPUTED = [1.191, 3.008, 7.102, 13.31, 18.76, 33.03]


def test_classic_conversion_against_the_recomputed_column():
    for (noise, epochs, *_), recomputed in zip(MNIST_ROWS, RECOMPUTED, strict=True):
        classic = moments_accountant_epsilon(
            noise, 256 / 60_000, round(epochs * 60_000 / 256), 1e-5, conversion="classic"
        )
        assert 0.98 * recomputed < classic < recomputed + 0.0005


def test_never_below_the_certified_epsilon():
    rows = [row for row in REFERENCE["subsampled_gaussian"] if row["delta"] > 1e-300]
    columns = (
        np.array([row[key] for row in rows]) for key in ("noise_multiplier", "sampling_prob", "num_steps", "delta")
    )
    bound = moments_accountant_epsilon(*columns)
    assert (bound >= [row["epsilon_lower"] for row in rows]).all()
    # and without subsampling never below the exact Gaussian
    assert moments_accountant_epsilon(2.0, 1.0, 9, 1e-6) > gdp_epsilon(1e-6, 1.5)


def test_whole_orders_against_an_independent_library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant
    orders = np.arange(2.0, 65.0)
    for noise, prob, steps, delta in [(0.7, 0.01, 1000, 1e-5), (1.5, 0.05, 300, 1e-8), (8.0, 1e-3, 10_000, 1e-3)]:
        accountant = RdpAccountant(orders)
        accountant.compose(dp_event.PoissonSampledDpEvent(prob, dp_event.GaussianDpEvent(noise)), steps)
        ours = rdp_epsilon(steps * rdp_subsampled_gaussian(noise, prob, orders), orders, delta)
        assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-9)


def test_conversions():
    rdp, orders = np.array([0.3, np.inf, 1.2]), np.array([2.0, 3.0, 8.0])
    classic = min(0.3 + np.log(1e5), 1.2 + np.log(1e5) / 7)
    assert rdp_epsilon(rdp, orders, 1e-5, conversion="classic") == pytest.approx(classic, rel=1e-14)
    tight = 1.2 + np.log(7 / 8) + (np.log(1e5) - np.log(8)) / 7
    assert rdp_epsilon(rdp, orders, 1e-5) == pytest.approx(tight, rel=1e-14)
    assert rdp_epsilon(np.full(3, 1e-12), orders, 1e-5) == 0
    assert rdp_epsilon(np.full(3, np.inf), orders, 1e-5) == np.inf
    assert rdp_epsilon(np.ones((4, 3)), orders, np.full(4, 1e-5)).shape == (4,)
    assert moments_accountant_epsilon(1.0, 0.0, 100, 1e-5) == 0


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
