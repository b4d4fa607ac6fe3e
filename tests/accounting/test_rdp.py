"""The moments accountant: exact moments, honesty, the published column, and an independent library."""

import functools
import warnings

import jax
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

ORDERS = np.array([1.1, 1.5, 1.7, 2.0, 3.0, 3.3, 4.5, 5.0, 8.0, 16.0, 33.0, 64.0])
"""What most tests here ask for, of three steps at once: one program is compiled for each kind of sampling."""
WHOLE = np.floor(ORDERS) == ORDERS


def rdp_of_three(noise, prob, sampling="poisson"):
    """Return the divergences of three steps at ORDERS, shape [3, K]."""
    noise = np.broadcast_to(noise, 3)
    prob = np.broadcast_to(prob, 3)
    return rdp_subsampled_gaussian(noise, prob, ORDERS, sampling=sampling)


def moments_in_fives(*arguments, **keywords):
    """Return the moments accountant of any number of runs, by the program of five."""
    columns = [column.ravel() for column in np.broadcast_arrays(*arguments)]
    num_runs = columns[0].size
    padded = [np.pad(column, (0, -num_runs % 5), mode="edge").reshape(-1, 5) for column in columns]
    found = [moments_accountant_epsilon(*five, **keywords) for five in zip(*padded, strict=True)]
    return np.concatenate(found)[:num_runs]


@functools.cache
def exact_rdp(noise, prob, order):
    """Return the integral at 30 digits, broken at the two places where its mass sits."""
    with mp.workdps(30):
        h, p, a = 1 / mp.mpf(noise), mp.mpf(prob), mp.mpf(order)

        def integrand(u):
            s = p * mp.expm1(h * u - h * h / 2)
            return mp.npdf(u) * ((1 + s) ** a - 1 - a * s)

        tilted_mean = float(a * h)
        points = {-20, -5, 0, 5, tilted_mean - 6, tilted_mean, tilted_mean + 6, tilted_mean + 20}
        return mp.log1p(mp.quad(integrand, sorted(points))) / (a - 1)


# Noise multiplier, sampling probability and order; at the last three the answer is a looser bound.
POINTS = np.array([
    (0.3, 0.004, 1.5),
    (0.5, 1e-4, 1.1),
    (0.5, 0.2, 2.5),
    (1.0, 0.01, 3.0),
    (1.3, 0.004, 17.25),
    (20.0, 1e-5, 1.9),
    (0.1, 0.1, 1.5),
    (0.3, 0.2, 10.5),
    (0.7, 0.01, 40.5),
])  # fmt: skip


def excess(bounds, points):
    """Return by how much bounds exceed the integrals at points, relative to them."""
    ratios = [mp.mpf(float(bound)) / exact_rdp(*point) for bound, point in zip(bounds, points.tolist(), strict=True)]
    return np.array([float(ratio - 1) for ratio in ratios])


@pytest.fixture(scope="module")
def excesses():
    """By how much the answers at POINTS exceed the integrals: of concrete orders, and of traced ones."""
    noise, prob, orders = POINTS.T
    concrete = rdp_subsampled_gaussian(noise, prob, orders)
    rounded = orders[:6].astype(np.float32)
    # Traced answers are float32, rounded up.
    traced = jax.jit(lambda orders: rdp_subsampled_gaussian(noise, prob, orders))(rounded)
    of_concrete = excess(np.diagonal(concrete), POINTS)
    of_traced = excess(np.diagonal(traced), np.stack([noise[:6], prob[:6], rounded], axis=1))
    return of_concrete, of_traced


def test_exact_and_never_below(excesses):
    """The bounds are next to the integrals, from above."""
    concrete, traced = excesses[0][:6], excesses[1]
    assert (concrete > 0).all()
    assert (concrete < 1e-9).all()
    assert (traced > 0).all()
    assert (traced < 3e-7).all()


def test_fallback_is_an_upper_bound_too(excesses):
    """Where the quadrature does not apply the bound is looser."""
    fallback = excesses[0][6:]
    assert (fallback > 0).all()
    assert (fallback < 0.5).all()


def binomial_sum(noise, prob, order):
    """Return the divergence at a whole order with the digits that mpmath works with."""
    s, p = mp.mpf(noise), mp.mpf(prob)
    total = mp.mpf(0)
    for k in range(order + 1):
        weight = mp.binomial(order, k) * p**k * (1 - p) ** (order - k)
        total += weight * mp.exp((k * k - k) / (2 * s * s))
    return mp.log(total) / (order - 1)


def test_whole_orders_are_the_binomial_sum():
    """The moment of a whole order is a finite sum."""
    noise, prob = np.array([0.6, 4.0, 50.0]), np.array([0.3, 1e-6, 1e-8])
    bounds = rdp_of_three(noise, prob)
    with mp.workdps(40):
        for row, n, q in zip(bounds, noise, prob, strict=True):
            for order in (2, 3, 8, 64):
                (bound,) = row[order == ORDERS]
                exact = binomial_sum(n, q, order)
                assert 0 <= float(mp.mpf(float(bound)) / exact - 1) < 2e-11


def test_without_the_error_terms_the_trapezoid_rule_would_understate(monkeypatch):
    """The certificate matters: at a coarse spacing the bare rule is below the truth, the certified bound is not."""
    monkeypatch.setattr(_renyi, "_NUM_NODES", 12)
    orders, h, p = np.array([2.5]), np.array([1.0]), np.array([0.1])
    certified = float(_renyi._by_trapezoid(np, h, p, orders, orders)[0])
    monkeypatch.setattr(_renyi, "_trapezoid_error", lambda *_: 0.0)
    bare = []
    for exponent in np.linspace(2.5, 4, 7):
        (moment,) = _renyi._by_trapezoid(np, h, p, orders, np.array([exponent]))
        bare.append(float(moment))
    exact = float(exact_rdp(1.0, 0.1, 2.5) * 1.5)
    assert min(bare) < exact < certified


@pytest.mark.parametrize("conversion", ["tight", pytest.param("classic", marks=pytest.mark.slow)])
def test_one_configuration_is_computed_with_numpy_to_the_same_digits(conversion):
    """Arrays are compiled, and one run is not."""
    noise = np.array([1e-160, 0.05, 0.4, 1.3, 40.0, 1e200])
    prob = np.array([0.0, 1e-9, 0.01, 1.0])
    delta = np.array([1e-20, 0.3])
    noise, prob, delta = (axis.ravel() for axis in np.meshgrid(noise, prob, delta))
    many = moments_in_fives(noise, prob, 700, delta, conversion=conversion)
    rows = zip(noise, prob, delta, strict=True)
    ones = [moments_accountant_epsilon(s, p, 700, d, conversion=conversion) for s, p, d in rows]
    np.testing.assert_allclose(ones, many, rtol=1e-12)


def test_ends_and_shapes():
    """Nobody and everybody sampled, and the last tabulated order."""
    orders = np.array([1.5, 2.0, 64.0, 1024.0, 1024.5, 2000.0])
    rdp = rdp_subsampled_gaussian(np.array([[1.0], [2.0]]), np.array([0.0, 0.01, 1.0]), orders)
    assert rdp.shape == (2, 3, 6)
    np.testing.assert_allclose(rdp[1, 2], orders / 8, rtol=1e-10)
    assert (rdp[:, 0] == 0).all()
    # The two formulas around the last tabulated order.
    below, above = rdp[0, 1, 3:5]
    assert below <= above
    assert rdp_subsampled_gaussian(np.ones(3), 0.1, 2.0).shape == (3,)


@settings(deadline=None, max_examples=40)
@given(st.floats(0.5, 50), st.floats(1e-6, 1), st.floats(0.01, 1))
def test_monotone_in_everything(noise, prob, gap):
    """The divergence grows with the order, and falls with noise and rarer sampling."""
    noises, probs = noise * np.array([1, 1 + gap, 1]), prob * np.array([1, 1, 1 - 0.5 * gap])
    base, noisier, rarer = rdp_of_three(noises, probs)
    slack = 1 + 1e-8
    assert (np.diff(base) >= -1e-8 * base[1:]).all()
    assert (noisier <= base * slack).all()
    assert (rarer <= base * slack).all()
    assert (base <= ORDERS / (2 * noise**2) * slack).all()


@pytest.mark.parametrize(("noise", "epochs", "_mu", "_epsilon", "published"), MNIST_ROWS)
def test_classic_conversion_reproduces_the_published_column(noise, epochs, _mu, _epsilon, published):
    """The paper's column is of the classic conversion; the tight one is better."""
    steps = round(epochs * 60_000 / 256)
    classic = moments_accountant_epsilon(noise, 256 / 60_000, steps, 1e-5, conversion="classic")
    assert f"{classic:.2f}" == f"{published:.2f}"
    assert moments_accountant_epsilon(noise, 256 / 60_000, steps, 1e-5) < classic


# The same column recomputed with a library that sums absolute values at fractional orders: valid, up to 2% above.
RECOMPUTED = [1.191, 3.008, 7.102, 13.31, 18.76, 33.03]


def test_classic_conversion_against_the_recomputed_column():
    """Ours is at most theirs, and 2 % below it at most."""
    for (noise, epochs, *_), recomputed in zip(MNIST_ROWS, RECOMPUTED, strict=True):
        steps = round(epochs * 60_000 / 256)
        classic = moments_accountant_epsilon(noise, 256 / 60_000, steps, 1e-5, conversion="classic")
        assert 0.98 * recomputed < classic < recomputed + 0.0005


def test_never_below_the_certified_epsilon():
    """What it claims is true: it is at least the certified lower end."""
    rows = [row for row in REFERENCE["subsampled_gaussian"] if row["delta"] > 1e-300]
    names = ("noise_multiplier", "sampling_prob", "num_steps", "delta")
    columns = [np.array([row[name] for row in rows]) for name in names]
    bound = moments_in_fives(*columns)
    assert (bound >= [row["epsilon_lower"] for row in rows]).all()
    # and without subsampling never below the exact Gaussian
    assert moments_accountant_epsilon(2.0, 1.0, 9, 1e-6) > gdp_epsilon(1e-6, 1.5)


def test_whole_orders_against_an_independent_library():
    """The same divergences and the same conversion."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting import dp_event
        from dp_accounting.rdp import RdpAccountant
    runs = [(0.7, 0.01, 1000, 1e-5), (1.5, 0.05, 300, 1e-8), (8.0, 1e-3, 10_000, 1e-3)]
    noises, probs, _, _ = np.transpose(runs)
    per_step = rdp_of_three(noises, probs)[:, WHOLE]
    for (noise, prob, steps, delta), rdp in zip(runs, per_step, strict=True):
        accountant = RdpAccountant(ORDERS[WHOLE])
        event = dp_event.PoissonSampledDpEvent(prob, dp_event.GaussianDpEvent(noise))
        accountant.compose(event, steps)
        ours = rdp_epsilon(steps * rdp, ORDERS[WHOLE], delta)
        assert ours == pytest.approx(accountant.get_epsilon(delta), rel=1e-9)


UNIFORM_POINTS = np.array([(1.3, 256 / 60_000), (1.0, 0.5), (20.0, 1e-3), (1e4, 1e-6), (0.5, 1e-4), (0.6, 0.01)])
# An integral takes half a second: two orders here, and all of them among the slow tests.
EACH_AT = [(1.1, 16.0), (1.5, 4.5), (2.0, 64.0), (1.1, 4.5), (1.5, 2.0), ()]
CHECKED = []
for point, few in enumerate(EACH_AT):
    for one_order in (1.1, 1.5, 2.0, 4.5, 16.0, 64.0):
        CHECKED.append(pytest.param(point, one_order, marks=[pytest.mark.slow] * (one_order not in few)))


@pytest.fixture(scope="module")
def uniform_rdp():
    """The bounds at all points and ORDERS."""
    first, second = UNIFORM_POINTS[:3], UNIFORM_POINTS[3:]
    return np.concatenate([rdp_of_three(*first.T, "uniform"), rdp_of_three(*second.T, "uniform")])


@pytest.mark.parametrize(("point", "order"), CHECKED)
def test_uniform_is_its_formula_and_never_below(uniform_rdp, point, order):
    """The bound is at least the integral at 40 digits, and 0.3 % above it at most."""
    (bound,) = uniform_rdp[point, order == ORDERS]
    noise, prob = UNIFORM_POINTS[point]
    with mp.workdps(40):
        h, p, a = 1 / mp.mpf(noise), mp.mpf(prob), mp.mpf(order)

        def integrand(u):
            r = 1 - p + p * mp.exp(h * u - h * h / 2)
            return mp.npdf(u) * (r**a + r ** (1 - a) - 1 - r)

        edge, tilted_mean = float(h / 2), float(a * h)
        points = [edge, edge + 1, edge + 3]
        points += [tilted_mean + x for x in (-3, 0, 3, 8, 40)]
        inside = sorted({x for x in points if x >= edge})
        exact = mp.log1p(mp.quad(integrand, inside)) / (a - 1)
    assert 0 <= float(mp.mpf(float(bound)) / exact - 1) < 3e-3


def test_uniform_bounds_the_pairs_that_sampling_can_produce():
    """Batches of one from n: the outputs are (1 - p) N(c) + p N(1/2) and (1 - p) N(c) + p N(-1/2) for some c."""
    u = np.linspace(-25, 25, 25_001)[:, None]

    def density(x):
        return np.exp(-0.5 * (u - x) ** 2) / np.sqrt(2 * np.pi)

    pairs = [(1.0, 0.5), (2.0, 0.1), (1.0, 0.01)]
    noises, probs = np.transpose(pairs)
    bounds, poisson = rdp_of_three(noises, probs, "uniform"), rdp_of_three(noises, probs, "poisson")
    for bound, of_poisson, noise, prob in zip(bounds, poisson, noises, probs, strict=True):
        others = (1 - prob) * density(np.linspace(-0.5, 0.5, 11) / noise)
        a = others + prob * density(0.5 / noise)
        b = others + prob * density(-0.5 / noise)
        for order in (1.5, 2.0, 8.0):
            moments = np.sum((u[1] - u[0]) * a * (a / b) ** (order - 1), axis=0)
            true = np.log(moments) / (order - 1)
            assert (true <= bound[order == ORDERS]).all()
            # c = -1/2 is Poisson sampling's pair.
            (expected,) = of_poisson[order == ORDERS]
            assert true[0] == pytest.approx(float(expected), rel=1e-6)


def test_uniform_against_an_independent_library():
    """Theirs is Theorem 27 of arXiv:1808.00087, a weaker bound on the same quantity."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from dp_accounting import NeighboringRelation, dp_event
        from dp_accounting.rdp import RdpAccountant
    runs = [(1.3, 256, 60_000, 3516), (0.7, 10, 1000, 100), (4.0, 50, 100, 10)]
    noises, sizes, numbers, _ = np.transpose(runs)
    per_step = rdp_of_three(noises, sizes / numbers, "uniform")[:, WHOLE]
    for (noise, size, examples, steps), rdp in zip(runs, per_step, strict=True):
        accountant = RdpAccountant(ORDERS[WHOLE], NeighboringRelation.REPLACE_ONE)
        event = dp_event.SampledWithoutReplacementDpEvent(examples, size, dp_event.GaussianDpEvent(noise))
        accountant.compose(event, steps)
        ours = rdp_epsilon(steps * rdp, ORDERS[WHOLE], 1e-5)
        assert ours <= accountant.get_epsilon(1e-5) <= 3 * ours
        assert ours >= epsilon_bounds(noise, size / examples, steps, 1e-5).lower


@settings(deadline=None, max_examples=30)
@given(st.floats(0.5, 50), st.floats(1e-6, 1), st.floats(0.01, 1))
def test_uniform_is_monotone_and_between_poisson_and_twice_it(noise, prob, gap):
    """With A the moment of Poisson sampling, that of fixed sizes is from A to 2 A - 1."""
    noises, probs = noise * np.array([1, 1 + gap, 1]), prob * np.array([1, 1, 1 - 0.5 * gap])
    poisson = (ORDERS - 1) * rdp_of_three(noises, probs)[0]
    base, noisier, rarer = (ORDERS - 1) * rdp_of_three(noises, probs, "uniform")
    slack = 1 + 1e-8
    assert (poisson <= base * slack).all()
    log_of_twice = poisson + np.log1p(-np.expm1(-poisson))
    assert (base <= log_of_twice * slack).all()
    loose = 1 + 3e-3  # as far as the bound may lie above its formula
    assert (noisier <= base * loose).all()
    assert (rarer <= base * loose).all()


@settings(deadline=None, max_examples=30)
@given(st.floats(0.3, 20), st.floats(1e-6, 1), st.integers(1, 100_000), st.floats(-12, -1), st.floats(0.01, 1))
@pytest.mark.parametrize("function", [moments_accountant_epsilon, clt_epsilon])
def test_epsilon_is_monotone_in_everything(function, noise, prob, steps, log_delta, gap):
    """Less is lost with more noise, rarer sampling, fewer steps or a larger delta: one change in each run."""
    delta = 10.0**log_delta
    more_noise, rarer, fewer, larger = np.eye(5)[1:]
    epsilon = function(
        noise * (1 + gap * more_noise),
        prob * (1 - 0.5 * gap * rarer),
        np.ceil(steps / (1 + gap * fewer)),
        np.minimum(delta * (1 + gap * larger), 0.5),
    )
    assert (epsilon[1:] <= epsilon[0] * (1 + 1e-9)).all()


def test_conversions():
    """Each conversion is the least of its formula over the orders."""
    rdp, orders = np.array([0.3, np.inf, 1.2]), np.array([2.0, 3.0, 8.0])
    classic = min(0.3 + np.log(1e5), 1.2 + np.log(1e5) / 7)
    assert rdp_epsilon(rdp, orders, 1e-5, conversion="classic") == pytest.approx(classic, rel=1e-14)
    tight = 1.2 + np.log(7 / 8) + (np.log(1e5) - np.log(8)) / 7
    rows = np.array([rdp, np.full(3, 1e-12), np.full(3, np.inf), np.ones(3)])
    found = rdp_epsilon(rows, orders, np.full(4, 1e-5))
    assert found.shape == (4,)
    assert found[0] == pytest.approx(tight, rel=1e-14)
    assert found[1] == 0
    assert found[2] == np.inf
    assert moments_accountant_epsilon(1.0, 0.0, 100, 1e-5) == 0
