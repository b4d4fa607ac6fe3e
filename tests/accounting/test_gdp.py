"""The exact duality against 60 digits, its properties, and its behaviour under transformations."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from gdpjax.accounting import gdp_compose, gdp_delta, gdp_epsilon, gdp_log_delta, gdp_mu
from tests.data import REFERENCE

ROWS = REFERENCE["gdp"]
MU = np.array([row["mu"] for row in ROWS], float)
EPSILON = np.array([row["epsilon"] for row in ROWS], float)
with mp.workdps(50):
    EXACT = [mp.mpf(row["delta"]) for row in ROWS]

mus = st.floats(1e-4, 1e3)
deltas = st.floats(-600, -0.01).map(np.exp)


def relative_errors(found, exact):
    """Return how far numbers are from the exact ones, relative to them."""
    with mp.workdps(50):
        return [abs(float(mp.mpf(float(number)) / truth - 1)) for number, truth in zip(found, exact, strict=True)]


def test_delta_against_sixty_digits():
    """A delta that is a normal number is right to a few units in the last place."""
    errors = relative_errors(gdp_delta(EPSILON, MU), EXACT)
    normal = [error for error, exact in zip(errors, EXACT, strict=True) if exact > mp.mpf("2.3e-308")]
    assert max(normal) < 2e-15


def test_log_delta_against_sixty_digits():
    """The logarithm is right even where delta is far below what float64 holds, 1e-2156 here."""
    with mp.workdps(60):
        exact = [float(mp.log(delta)) for delta in EXACT]
        tail = mp.log(mp.ncdf(mp.mpf("-99.5")) - mp.exp(100) * mp.ncdf(mp.mpf("-100.5")))
    np.testing.assert_allclose(gdp_log_delta(EPSILON, MU), exact, rtol=4e-15, atol=1e-25)
    assert gdp_log_delta(100.0, 1.0) == pytest.approx(float(tail), rel=1e-15)


def test_inversions_against_sixty_digits():
    """Mu and epsilon are as exact as one rounding of delta allows for."""
    delta = np.array([float(exact) for exact in EXACT])
    usable = (delta > 1e-305) & (delta < 1)
    # All rows go through the programs, which are compiled for so many; the others have a harmless delta.
    safe_delta = np.where(usable, delta, 0.5)
    found_mu = gdp_mu(EPSILON, safe_delta)
    found_epsilon = gdp_epsilon(safe_delta, MU)
    slope_in_mu = norm.pdf(EPSILON / MU - MU / 2) * MU / safe_delta
    step = 1e-6
    slope_in_epsilon = (gdp_log_delta(EPSILON, MU) - gdp_log_delta(EPSILON + step, MU)) / step

    error = np.abs(found_mu / MU - 1)[usable]
    np.testing.assert_array_less(error, 1e-13 + 4e-16 / slope_in_mu[usable])
    error = np.abs(found_epsilon - EPSILON)[usable]
    np.testing.assert_array_less(error, 1e-13 * EPSILON[usable] + 1e-15 / slope_in_epsilon[usable])


def test_edges():
    """No leakage, all of it, and deltas at which nothing is asked for."""
    np.testing.assert_array_equal([gdp_delta(0.0, 0.0), gdp_delta(1.0, 0.0), gdp_delta(1.0, np.inf)], [0, 0, 1])
    assert gdp_log_delta(0.0, 0.0) == -np.inf
    assert gdp_epsilon(0.5, 1.0) == 0  # delta(0) = 0.383
    assert gdp_epsilon(1e-5, 0.0) == 0
    assert gdp_epsilon(1e-5, np.inf) == np.inf
    assert gdp_delta(0.0, 1.0) == pytest.approx(2 * norm.cdf(0.5) - 1, rel=1e-15)
    assert gdp_mu(0.0, 1e-12) == pytest.approx(1e-12 * np.sqrt(2 * np.pi), rel=1e-14)
    assert gdp_mu(0.0, 0.5) == pytest.approx(2 * norm.ppf(0.75), rel=1e-14)


@settings(deadline=None, max_examples=150)
@given(mus, deltas)
def test_epsilon_round_trip(mu, delta):
    epsilon = gdp_epsilon(delta, mu)
    assert epsilon >= 0
    if epsilon > 0:
        assert gdp_log_delta(epsilon, mu) == pytest.approx(np.log(delta), abs=1e-11)
    else:
        assert gdp_delta(0.0, mu) <= delta * (1 + 1e-14)


def test_compose():
    """Mu adds up in squares over independent releases."""
    mu = np.array([[3.0, 4.0], [1e200, 1e200], [0.0, 0.0], [np.inf, 1.0]])
    np.testing.assert_allclose(gdp_compose(mu), [5.0, np.sqrt(2) * 1e200, 0.0, np.inf])
    np.testing.assert_allclose(gdp_compose(mu[:1], axis=0), [3.0, 4.0])
    assert gdp_compose(np.zeros(0)) == 0
    assert np.isfinite(jax.jit(jax.grad(gdp_compose))(np.zeros(2, np.float32))).all()
    with pytest.raises(ValueError, match="axis 1"):
        gdp_compose([1.0, 2.0], axis=1)


FUNCTIONS = {
    "delta": (gdp_delta, (0.7, 1.3)),
    "log_delta": (gdp_log_delta, (30.0, 1.3)),
    "epsilon": (gdp_epsilon, (1e-5, 1.3)),
    "mu": (gdp_mu, (2.0, 1e-5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_is_loop_jit_is_eager_gradient_is_finite_difference(name):
    """Arrays, mapped or not, have the values of eager calls one by one, and derivatives are difference quotients."""
    function, point = FUNCTIONS[name]
    # So many as the rows above, for which the functions of arrays are compiled.
    first, second = (np.linspace(x, 1.5 * x, len(ROWS)) for x in point)
    loop = [function(*values) for values in zip(first, second, strict=True)]
    np.testing.assert_allclose(function(first, second), loop, rtol=1e-14)
    with jax.enable_x64(True):
        wide = jax.jit(jax.vmap(function))(first, second)
        gradients = jax.grad(function, argnums=(0, 1))(*map(jnp.float64, point))
    assert wide.dtype == jnp.float64
    np.testing.assert_allclose(wide, loop, rtol=1e-14)

    for index, gradient in enumerate(gradients):
        step = np.zeros(2)
        step[index] = 1e-5 * point[index]
        difference = function(*(point + step)) - function(*(point - step))
        assert gradient == pytest.approx(difference / (2 * step[index]), rel=1e-7)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_without_x64_results_are_rounded_to_float32(name):
    """The computation is in float64 all the same."""
    function, point = FUNCTIONS[name]
    rounded = np.array(point, np.float32)
    compiled = jax.jit(function)
    single = compiled(*rounded)
    assert single.dtype == jnp.float32
    np.testing.assert_allclose(single, function(*rounded.astype(np.float64)), rtol=1e-7)
    # What is traced cannot be inspected: out of range it is NaN.
    assert np.isnan(compiled(np.float32(-0.1), rounded[1]))


def test_bad_traced_input_is_nan_element_by_element():
    """The other elements of an array have their answers."""
    deltas = jax.jit(gdp_delta)(np.array([1.0, -1.0]), 1.0)
    np.testing.assert_array_equal(np.isnan(deltas), [False, True])
