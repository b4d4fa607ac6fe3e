"""The Edgeworth estimates: cumulants, the certified rows, the Gaussian case, and never a NaN."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from gdpjax.accounting import _edgeworth, clt_epsilon, edgeworth_delta, edgeworth_epsilon, gdp_delta, gdp_epsilon
from tests.data import REFERENCE

ROWS = [row for row in REFERENCE["subsampled_gaussian"] if row["sampling_prob"] < 1]
NAMES = ("noise_multiplier", "sampling_prob", "num_steps", "delta")
COLUMNS = [np.array([row[name] for row in ROWS]) for name in NAMES]
TRUTH = np.array([row["epsilon_lower"] for row in ROWS])  # the bracket is 1e-3 wide at most
NUM_RUNS = 300


def in_one_program(function, *columns, order=2):
    """Return ``function`` of rows of numbers, always of as many, so that it is compiled once for each order."""
    columns = np.broadcast_arrays(*columns)
    size = columns[0].size
    assert size <= NUM_RUNS
    padded = [np.pad(column, (0, NUM_RUNS - size), mode="edge") for column in columns]
    return function(*padded, order=order)[:size]


def epsilon_of(*columns, order=2):
    """Return the estimates of epsilon."""
    return in_one_program(edgeworth_epsilon, *columns, order=order)


def delta_of(*columns, order=2):
    """Return the estimates of delta."""
    return in_one_program(edgeworth_delta, *columns, order=order)


@jax.jit
def both_cumulants(noise, prob):
    return _edgeworth._cumulants(noise, prob)[1]


def cumulants(noise, prob):
    """Return the first four cumulants of a step's loss in the two directions."""
    with jax.enable_x64(True):
        both = both_cumulants(np.asarray(noise, np.float64), np.asarray(prob, np.float64))
        return np.moveaxis(np.array(both), 1, 0)


@functools.cache
def skewness():
    remove, _ = cumulants(*COLUMNS[:2])
    return np.abs(remove[2]) / remove[1] ** 1.5 / np.sqrt(COLUMNS[2])


@pytest.mark.parametrize(
    ("noise", "prob"),
    [
        pytest.param(0.5, 1e-4, marks=pytest.mark.slow),
        (1.0, 0.01),
        pytest.param(3.0, 0.3, marks=pytest.mark.slow),
        (0.7, 1.0),
    ],
)
def test_cumulants(noise, prob):
    """They are those of integrals with 25 digits, in both directions."""
    with mp.workdps(25):
        h, p = 1 / mp.mpf(noise), mp.mpf(prob)
        points = [-14, -4, 0, h, 4 * h, 5 * h + 4, 5 * h + 14]

        def moment(power, sign, center=0):
            def integrand(u):
                ratio = 1 - p + p * mp.exp(h * u - h * h / 2)
                weight = ratio if sign > 0 else 1
                return mp.npdf(u) * weight * (sign * mp.log(ratio) - center) ** power

            return mp.quad(integrand, points)

        for found, sign in zip(cumulants(noise, prob), (1, -1), strict=True):
            mean = moment(1, sign)
            second, third, fourth = (moment(power, sign, mean) for power in (2, 3, 4))
            exact = [mean, second, third, fourth - 3 * second**2]
            # p = 1 has no skewness or kurtosis.
            scale = min(mean, second, second**1.5, second**2)
            np.testing.assert_allclose(found, np.array(exact, float), rtol=1e-8, atol=float(scale * 1e-9))


@pytest.mark.parametrize("order", [1, 2])
def test_delta_is_the_integral_over_the_edgeworth_density(order):
    """The density is a normal one times Hermite polynomials with the cumulants of all steps."""
    noise, prob, steps = 1.0, 0.02, 300
    epsilons = np.array([0.0, 0.4, 2.0])
    expected = []
    for mean, variance, third, fourth in cumulants(noise, prob):
        skew = third / variance**1.5 / np.sqrt(steps)
        kurtosis = fourth / variance**2 / steps
        weights = [1, 0, 0, skew / 6]
        if order == 2:
            weights += [kurtosis / 24, 0, skew**2 / 72]
        center, spread = steps * mean, np.sqrt(steps * variance)
        loss = epsilons[:, None] + np.linspace(0, 40 * spread, 400_001)
        z = (loss - center) / spread
        normal = np.exp(-z * z / 2) / np.sqrt(2 * np.pi) / spread
        density = normal * np.polynomial.hermite_e.hermeval(z, weights)
        lost = -np.expm1(epsilons[:, None] - loss)
        expected.append(np.trapezoid(lost * density, loss, axis=1))
    found = delta_of(noise, prob, steps, epsilons, order=order)
    np.testing.assert_allclose(found, np.max(expected, axis=0), rtol=1e-7)


def test_much_closer_than_the_central_limit_theorem_on_easy_points():
    """Each order is closer to the certified bracket than the one before where the skewness is small."""
    easy = skewness() < 0.1
    assert easy.sum() >= 20
    clt = np.abs(clt_epsilon(*COLUMNS) / TRUTH - 1)[easy]
    first = np.abs(epsilon_of(*COLUMNS, order=1) / TRUTH - 1)[easy]
    second = np.abs(epsilon_of(*COLUMNS, order=2) / TRUTH - 1)[easy]
    width = 3e-4  # of the reference bracket
    assert (first < 0.9 * clt + width).all()
    assert (second < 0.25 * clt + width).all()
    assert (first < 0.02).all()
    assert (second < 0.009).all()
    assert (second[skewness()[easy] < 0.04] < 0.0025).all()


def test_it_is_not_a_bound():
    """On hard points it understates like the central limit theorem, and the docstring says so."""
    hard = skewness() > 1
    assert (epsilon_of(*COLUMNS)[hard] < 0.6 * TRUTH[hard]).all()


@pytest.mark.parametrize("order", [1, 2])
def test_without_subsampling_it_is_exact(order):
    """The loss of Gaussian noise is normal, so there is nothing to correct."""
    mu = np.geomspace(0.01, 8, len(ROWS))
    epsilon = epsilon_of(3 / mu, 1.0, 9, 1e-6, order=order)
    np.testing.assert_allclose(epsilon, gdp_epsilon(1e-6, mu), rtol=1e-8)
    delta = delta_of(3 / mu, 1.0, 9, 0.3, order=order)
    np.testing.assert_allclose(delta, gdp_delta(0.3, mu), rtol=1e-6, atol=1e-200)


def test_delta_and_epsilon_agree():
    """The delta of an epsilon is the one that was asked for."""
    easy = skewness() < 0.1
    delta = delta_of(*COLUMNS[:3], epsilon_of(*COLUMNS))
    np.testing.assert_allclose(delta[easy], COLUMNS[3][easy], rtol=1e-6)


@pytest.mark.parametrize("first", [0, *(pytest.param(300 * k, marks=pytest.mark.slow) for k in range(1, 11))])
@pytest.mark.parametrize("order", [1, 2])
def test_never_nan_nor_negative(order, first):
    """Three hundred of the corners of a wide grid."""
    noise = np.array([1e-3, 1 / 400, 0.01, 0.1, 0.3, 0.5, 1.0, 4.0, 50.0, 1e4, 1e8])
    prob = np.array([0.0, 1e-200, 1e-20, 1e-10, 1e-5, 0.004, 0.1, 0.9, 1 - 1e-12, 1.0])
    steps = np.array([1, 10, 1e3, 1e6, 1e12])
    delta = np.array([3e-308, 1e-50, 1e-5, 0.01, 0.5, 0.999])
    chosen = np.random.default_rng(0).permutation(3300)[first : first + 300]
    noise, prob, steps, delta = (axis.ravel()[chosen] for axis in np.meshgrid(noise, prob, steps, delta))
    epsilon = epsilon_of(noise, prob, steps, delta, order=order)
    assert (epsilon >= 0).all()
    assert np.isfinite(epsilon[(noise > 2e-3) | (prob == 0)]).all()
    implied = delta_of(noise, prob, steps, 20 * delta, order=order)
    assert (implied >= 0).all()
    assert (implied <= 1).all()


def test_transformations():
    """vmap and jit are a loop, rounded to float32, and NaN out of range."""
    noise = np.array([0.7, 1.3, 4.0], np.float32)
    exact = epsilon_of(noise.astype(np.float64), 0.01, 1000, 1e-5)
    assert edgeworth_epsilon(noise[0], 0.01, 1000, 1e-5) == pytest.approx(exact[0], rel=1e-12)
    mapped = jax.jit(jax.vmap(lambda s: edgeworth_epsilon(s, 0.01, 1000, 1e-5)))(np.append(noise, np.float32(-1.0)))
    assert mapped.dtype == jnp.float32
    np.testing.assert_allclose(mapped[:3], exact, rtol=1e-6)
    assert np.isnan(mapped[3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: edgeworth_epsilon(0.0, 0.1, 10, 1e-5), "noise_multiplier must be a finite number > 0, got 0.0"),
        (lambda: edgeworth_epsilon(1.0, np.nan, 10, 1e-5), "sampling_prob must be"),
        (lambda: edgeworth_epsilon(1.0, 0.1, 1.5, 1e-5), "num_steps must be a whole number >= 1"),
        (lambda: edgeworth_epsilon(1.0, 0.1, 10, 0.0), "delta must be"),
        (lambda: edgeworth_epsilon(1.0, 0.1, 10, 1e-5, order=3), "order must be 1 or 2, got 3"),
        (lambda: edgeworth_delta(1.0, 0.1, 10, 0.5, order=True), "order must be 1 or 2, got True"),
        (lambda: edgeworth_delta(1.0, 0.1, 10, -1.0), "epsilon must be"),
        (lambda: edgeworth_delta(np.ones(2), np.ones(3), 10, 1.0), "must broadcast together"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
