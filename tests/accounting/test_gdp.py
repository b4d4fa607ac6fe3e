"""The exact duality against 60 digits, its properties, and its behaviour under transformations."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from gdpjax.accounting import gdp_compose, gdp_delta, gdp_epsilon, gdp_group, gdp_log_delta, gdp_mu, gdp_tradeoff
from tests.data import REFERENCE

ROWS = REFERENCE["gdp"]
MU = np.array([row["mu"] for row in ROWS], float)
EPSILON = np.array([row["epsilon"] for row in ROWS], float)
with mp.workdps(50):
    EXACT = [mp.mpf(row["delta"]) for row in ROWS]

mus = st.floats(1e-4, 1e3)
epsilons = st.floats(0, 1e3)
deltas = st.floats(-600, -0.01).map(np.exp)


def relative_errors(got, exact):
    with mp.workdps(50):
        return [abs(float(mp.mpf(float(g)) / e - 1)) for g, e in zip(got, exact, strict=True)]


def test_delta_against_sixty_digits():
    normal = np.array([e > mp.mpf("2.3e-308") for e in EXACT])
    got = gdp_delta(EPSILON, MU)
    assert max(relative_errors(got[normal], [e for e, n in zip(EXACT, normal, strict=True) if n])) < 2e-15


def test_the_textbook_difference_would_fail_that_test():
    with np.errstate(all="ignore"):
        naive = norm.cdf(-EPSILON / MU + MU / 2) - np.exp(EPSILON) * norm.cdf(-EPSILON / MU - MU / 2)
    wrong = [not error < 1e-12 for error in relative_errors(np.nan_to_num(naive), EXACT)]
    assert sum(wrong) >= 20


def test_log_delta_against_sixty_digits():
    with mp.workdps(50):
        exact = [float(mp.log(e)) for e in EXACT]
    np.testing.assert_allclose(gdp_log_delta(EPSILON, MU), exact, rtol=4e-15, atol=1e-25)
    with mp.workdps(60):  # far beyond float64: delta near 1e-2156
        tail = mp.log(mp.ncdf(mp.mpf("-99.5")) - mp.exp(100) * mp.ncdf(mp.mpf("-100.5")))
    assert gdp_log_delta(100.0, 1.0) == pytest.approx(float(tail), rel=1e-15)


def test_inversions_against_sixty_digits():
    delta = np.array([float(e) for e in EXACT])
    usable = (delta > 1e-305) & (delta < 1)
    mu, epsilon, delta = MU[usable], EPSILON[usable], delta[usable]
    # What one rounding of delta, in relative terms, does to the answer: nothing can be better than that.
    slope_mu = norm.pdf(epsilon / mu - mu / 2) * mu / delta
    np.testing.assert_array_less(np.abs(gdp_mu(epsilon, delta) / mu - 1), 1e-13 + 4e-16 / slope_mu)
    step = 1e-6
    slope_epsilon = (gdp_log_delta(epsilon, mu) - gdp_log_delta(epsilon + step, mu)) / step
    np.testing.assert_array_less(np.abs(gdp_epsilon(delta, mu) - epsilon), 1e-13 * epsilon + 1e-15 / slope_epsilon)


def test_edges():
    assert gdp_delta(0.0, 0.0) == 0
    assert gdp_delta(1.0, 0.0) == 0
    assert gdp_delta(1.0, np.inf) == 1
    assert gdp_log_delta(0.0, 0.0) == -np.inf
    assert gdp_epsilon(0.5, 1.0) == 0  # delta(0) = 0.383
    assert gdp_epsilon(1e-5, 0.0) == 0
    assert gdp_epsilon(1e-5, np.inf) == np.inf
    assert gdp_delta(0.0, 1.0) == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-15)
    np.testing.assert_allclose(gdp_mu(0.0, [1e-12, 0.5]), [1e-12 * np.sqrt(2 * np.pi), 2 * norm.ppf(0.75)], rtol=1e-14)


@settings(deadline=None, max_examples=150)
@given(epsilons, mus, st.floats(1e-6, 1.0))
def test_delta_is_monotone(epsilon, mu, gap):
    base = gdp_log_delta(epsilon, mu)
    slack = 1e-14 * max(1, -base)
    assert base <= 0
    assert gdp_log_delta(epsilon * (1 + gap), mu) <= base + slack
    assert gdp_log_delta(epsilon, mu * (1 + gap)) >= base - slack


@settings(deadline=None, max_examples=150)
@given(st.floats(0, 1e5), deltas)
def test_mu_round_trip(epsilon, delta):
    mu = gdp_mu(epsilon, delta)
    slack = 1e-13 * max(1, -np.log(delta))  # the rounding of mu moves log delta by up to x^2 of it
    assert gdp_log_delta(epsilon, mu) == pytest.approx(
        np.log(delta), abs=slack * (1 + 1e-2 * np.sqrt(epsilon)), rel=1e-13
    )


@settings(deadline=None, max_examples=150)
@given(mus, deltas)
def test_epsilon_round_trip(mu, delta):
    epsilon = gdp_epsilon(delta, mu)
    assert epsilon >= 0
    if epsilon > 0:
        assert gdp_log_delta(epsilon, mu) == pytest.approx(np.log(delta), abs=1e-11)
    else:
        assert gdp_delta(0.0, mu) <= delta * (1 + 1e-14)


def test_tradeoff_curve():
    alpha = np.array([0.0, 1e-12, 0.05, 0.5, 0.9, 1.0])
    expected = norm.sf(norm.ppf(alpha) + 1.5)
    np.testing.assert_allclose(gdp_tradeoff(alpha, 1.5), expected, rtol=1e-13)
    np.testing.assert_allclose(gdp_tradeoff(gdp_tradeoff(alpha[2:-1], 1.5), 1.5), alpha[2:-1], rtol=1e-12)
    np.testing.assert_allclose(gdp_tradeoff(alpha, 0.0), 1 - alpha, rtol=1e-14)
    assert (gdp_tradeoff(alpha, np.inf) == 0).all()
    # delta is the conjugate of the curve: sup over alpha of 1 - f - e^epsilon alpha
    fine = np.linspace(0, 1, 200_001)
    assert np.max(1 - gdp_tradeoff(fine, 1.5) - np.exp(0.7) * fine) == pytest.approx(gdp_delta(0.7, 1.5), rel=1e-8)


def test_compose_and_group():
    mu = np.array([[3.0, 4.0], [1e200, 1e200], [0.0, 0.0], [np.inf, 1.0]])
    np.testing.assert_allclose(gdp_compose(mu), [5.0, np.sqrt(2) * 1e200, 0.0, np.inf])
    np.testing.assert_allclose(gdp_compose(mu[:1], axis=0), [3.0, 4.0])
    assert gdp_compose(np.zeros(0)) == 0
    assert gdp_group(0.25, 4) == 1
    assert np.isfinite(jax.grad(gdp_compose)(jnp.zeros(2))).all()
    with pytest.raises(ValueError, match=r"axis 1 .* shape \(2,\)"):
        gdp_compose([1.0, 2.0], axis=1)


FUNCTIONS = {
    "delta": (gdp_delta, (0.7, 1.3)),
    "log_delta": (gdp_log_delta, (30.0, 1.3)),
    "epsilon": (gdp_epsilon, (1e-5, 1.3)),
    "mu": (gdp_mu, (2.0, 1e-5)),
    "tradeoff": (gdp_tradeoff, (0.2, 1.3)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_equals_finite_difference(name):
    function, point = FUNCTIONS[name]
    with jax.enable_x64(True):
        gradients = jax.grad(function, argnums=(0, 1))(*map(jnp.float64, point))
    for index, gradient in enumerate(gradients):
        step = 1e-5 * point[index]
        up, down = ([x + s * (i == index) for i, x in enumerate(point)] for s in (step, -step))
        assert gradient == pytest.approx((function(*up) - function(*down)) / (2 * step), rel=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_is_loop_and_jit_is_eager(name):
    function, point = FUNCTIONS[name]
    batch = [np.linspace(x, 1.5 * x, 7) for x in point]
    loop = [function(*values) for values in zip(*batch, strict=True)]
    np.testing.assert_allclose(function(*batch), loop, rtol=1e-14)
    single = jax.vmap(function)(*(jnp.asarray(b, jnp.float32) for b in batch))
    assert single.dtype == jnp.float32
    with jax.enable_x64(True):
        wide = jax.jit(jax.vmap(function))(*batch)
    assert wide.dtype == jnp.float64
    np.testing.assert_allclose(wide, loop, rtol=1e-14)
    rounded = [function(*(np.float32(v) for v in values)) for values in zip(*batch, strict=True)]
    np.testing.assert_allclose(single, rounded, rtol=1e-7)


def test_x64_flag_is_left_alone():
    before = jax.config.jax_enable_x64
    value = gdp_epsilon(1e-5, 1.0)
    assert jax.config.jax_enable_x64 == before
    assert value.dtype == np.float64
    with jax.enable_x64(not before):
        assert gdp_epsilon(1e-5, 1.0) == value


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (gdp_delta, (-1.0, 1.0), "epsilon must be a finite number >= 0, got -1.0"),
        (gdp_delta, (np.nan, 1.0), "epsilon must be a finite number >= 0, got nan"),
        (gdp_log_delta, (1.0, [1.0, -2.0]), r"mu must be .* got -2.0 at index \(1,\)"),
        (gdp_epsilon, (0.0, 1.0), "delta must be a number in"),
        (gdp_epsilon, (1e-310, 1.0), "delta must be a number in"),
        (gdp_mu, (1.0, 1.0), "delta must be a number in"),
        (gdp_tradeoff, (1.5, 1.0), r"alpha must be a number in \[0, 1\], got 1.5"),
        (gdp_group, (1.0, 1.5), "k must be a whole number >= 1, got 1.5"),
        (gdp_delta, (np.ones(2), np.ones(3)), "must broadcast together"),
    ],
)
def test_bad_input(function, arguments, message):
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_bad_traced_input_is_nan():
    assert np.isnan(jax.jit(gdp_epsilon)(-0.1, 1.0))
    np.testing.assert_array_equal(np.isnan(jax.jit(gdp_delta)(jnp.array([1.0, -1.0]), 1.0)), [False, True])
