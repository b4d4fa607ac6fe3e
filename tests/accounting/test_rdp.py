"""The moments accountant: exact moments, honesty, the published column, and an independent library."""

import warnings

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpjax.accounting import (
    _renyi,
    clt_epsilon,
    epsilon_bounds,
    gdp_epsilon,
    moments_accountant_epsilon,
    rdp_epsilon,
    rdp_subsampled_gaussian,
)
from tests.data import MNIST_ROWS, REFERENCE

SAMPLING = ("poisson", "uniform")


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
        certified = float(_renyi._by_trapezoid(jnp, h, p, orders, orders)[0])
        monkeypatch.setattr(_renyi, "_trapezoid_error", lambda *_: 0.0)
        bare = [float(_renyi._by_trapezoid(jnp, h, p, orders, np.array([x]))[0]) for x in np.linspace(2.5, 4, 7)]
    exact = float(exact_rdp(1.0, 0.1, 2.5) * 1.5)
    assert min(bare) < exact < certified


@pytest.mark.parametrize("conversion", ["tight", "classic"])
def test_one_configuration_is_computed_with_numpy_to_the_same_digits(conversion):
    noise = np.array([1e-160, 0.05, 0.4, 1.3, 40.0, 1e200])
    prob, steps, delta = np.array([[0.0], [1e-9], [0.01], [1.0]]), 700, np.array([[[1e-20]], [[0.3]]])
    many = moments_accountant_epsilon(noise, prob, steps, delta, conversion=conversion)
    rows = zip(*(row.ravel() for row in np.broadcast_arrays(noise, prob, delta)), strict=True)
    ones = [moments_accountant_epsilon(s, p, steps, d, conversion=conversion) for s, p, d in rows]
    np.testing.assert_allclose(ones, many.ravel(), rtol=1e-12)


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


UNIFORM_ORDERS = np.array([1.1, 1.5, 2.0, 4.5, 16.0, 64.0])
# An integral takes half a second: every other order here, and all of them among the slow tests.
UNIFORM = [
    pytest.param(0.6, 0.01, UNIFORM_ORDERS, marks=pytest.mark.slow),
]
for place, point in enumerate([(1.3, 256 / 60_000), (1.0, 0.5), (20.0, 1e-3), (1e4, 1e-6), (0.5, 1e-4)]):
    UNIFORM.append(pytest.param(*point, UNIFORM_ORDERS[place % 2 :: 2]))
    UNIFORM.append(pytest.param(*point, UNIFORM_ORDERS[1 - place % 2 :: 2], marks=pytest.mark.slow))


@pytest.mark.parametrize(("noise", "prob", "orders"), UNIFORM)
def test_uniform_is_its_formula_and_never_below(noise, prob, orders):
    ours = rdp_subsampled_gaussian(noise, prob, orders, sampling="uniform")
    for bound, order in zip(ours, orders, strict=True):
        with mp.workdps(40):
            h, p, a = 1 / mp.mpf(noise), mp.mpf(prob), mp.mpf(float(order))

            def integrand(u, h=h, p=p, a=a):
                r = 1 - p + p * mp.exp(h * u - h * h / 2)
                return mp.npdf(u) * (r**a + r ** (1 - a) - 1 - r)

            edge = float(h / 2)
            points = [edge, edge + 1, edge + 3, *(float(a * h) + x for x in (-3, 0, 3, 8, 40))]
            exact = mp.log1p(mp.quad(integrand, sorted({x for x in points if x >= edge}))) / (a - 1)
        assert 0 <= float(mp.mpf(float(bound)) / exact - 1) < 3e-3


def test_uniform_bounds_the_pairs_that_sampling_can_produce():
    """Batches of one from n: the outputs are (1 - p) N(c) + p N(1/2) and (1 - p) N(c) + p N(-1/2) for some c."""
    u = np.linspace(-25, 25, 25_001)[:, None]

    def density(x):
        return np.exp(-0.5 * (u - x) ** 2) / np.sqrt(2 * np.pi)

    for noise, prob in [(1.0, 0.5), (2.0, 0.1), (1.0, 0.01)]:
        shift = np.linspace(-0.5, 0.5, 11) / noise
        a, b = ((1 - prob) * density(shift) + prob * density(x / noise) for x in (0.5, -0.5))
        for order in (1.5, 2.0, 8.0):
            true = np.log(np.sum((u[1] - u[0]) * a * (a / b) ** (order - 1), axis=0)) / (order - 1)
            bound = rdp_subsampled_gaussian(noise, prob, order, sampling="uniform")
            poisson = rdp_subsampled_gaussian(noise, prob, order)
            assert (true <= bound).all()
            assert true[0] == pytest.approx(poisson, rel=1e-6)  # c = -1/2 is Poisson sampling's pair


def test_uniform_against_an_independent_library():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting import NeighboringRelation, dp_event
        from dp_accounting.rdp import RdpAccountant
    orders = np.arange(2.0, 65.0)
    for noise, size, examples, steps in [(1.3, 256, 60_000, 3516), (0.7, 10, 1000, 100), (4.0, 50, 100, 10)]:
        accountant = RdpAccountant(orders, NeighboringRelation.REPLACE_ONE)
        event = dp_event.SampledWithoutReplacementDpEvent(examples, size, dp_event.GaussianDpEvent(noise))
        accountant.compose(event, steps)
        rdp = steps * rdp_subsampled_gaussian(noise, size / examples, orders, sampling="uniform")
        ours = rdp_epsilon(rdp, orders, 1e-5)
        # Theirs is Theorem 27 of arXiv:1808.00087, a weaker bound on the same quantity.
        assert ours <= accountant.get_epsilon(1e-5) <= 3 * ours
        assert ours >= epsilon_bounds(noise, size / examples, steps, 1e-5).lower


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 50), st.floats(1e-6, 1), st.floats(0.01, 1))
def test_uniform_is_monotone_and_between_poisson_and_twice_it(noise, prob, gap):
    orders = np.array([1.1, 1.7, 2.0, 8.0, 33.0])

    def log_moment(*run, **how):
        return (orders - 1) * rdp_subsampled_gaussian(*run, orders, **how)

    poisson, base = log_moment(noise, prob), log_moment(noise, prob, sampling="uniform")
    slack = 1 + 1e-8
    assert (poisson <= base * slack).all()
    assert (base <= (poisson + np.log1p(-np.expm1(-poisson))) * slack).all()  # log(2 A - 1)
    loose = 1 + 3e-3  # as far as the bound may lie above its formula
    assert (log_moment(noise * (1 + gap), prob, sampling="uniform") <= base * loose).all()
    assert (log_moment(noise, prob * (1 - 0.5 * gap), sampling="uniform") <= base * loose).all()


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 20), st.floats(1e-6, 1), st.integers(1, 100_000), st.floats(-12, -1), st.floats(0.01, 1))
@pytest.mark.parametrize("function", [moments_accountant_epsilon, clt_epsilon])
def test_epsilon_is_monotone_in_everything(function, noise, prob, steps, log_delta, gap):
    delta = 10.0**log_delta
    more = np.array([0, 1, 0, 0, 0]), np.array([0, 0, 1, 0, 0]), np.array([0, 0, 0, 1, 0]), np.array([0, 0, 0, 0, 1])
    epsilon = function(
        noise * (1 + gap * more[0]),
        prob * (1 - 0.5 * gap * more[1]),
        np.ceil(steps / (1 + gap * more[2])),
        np.minimum(delta * (1 + gap * more[3]), 0.5),
    )
    assert (epsilon[1:] <= epsilon[0] * (1 + 1e-9)).all()


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


@pytest.mark.parametrize("sampling", ["poisson", "uniform"])
def test_noise_whose_inverse_square_overflows_gives_infinity_not_nan(sampling):
    epsilon = moments_accountant_epsilon([1e-160, 1e-310, 1e-160], [0.01, 0.01, 0.0], 100, 1e-5, sampling=sampling)
    np.testing.assert_array_equal(epsilon, [np.inf, np.inf, 0.0])
