"""The moments accountant: exact moments, honesty, the published column, and an independent library."""

import functools

import jax
import mpmath as mp
import numpy as np
import pytest

from gdpjax.accounting import gdp_epsilon, moments_accountant_epsilon, rdp_epsilon, rdp_subsampled_gaussian
from tests.data import MNIST_ROWS, REFERENCE

ORDERS = np.array([1.1, 1.5, 1.7, 2.0, 3.0, 3.3, 4.5, 5.0, 8.0, 16.0, 33.0, 64.0])
"""What most tests here ask for, of three steps at once: one program is compiled for each kind of sampling."""


def rdp_of_three(noise_multiplier, sampling_prob, sampling="poisson"):
    """Return the divergences of three steps at ORDERS, shape [3, K]."""
    noise_multiplier = np.broadcast_to(noise_multiplier, 3)
    sampling_prob = np.broadcast_to(sampling_prob, 3)
    return rdp_subsampled_gaussian(noise_multiplier, sampling_prob, ORDERS, sampling=sampling)


def moments_in_fives(*arguments, **keywords):
    """Return the moments accountant of any number of runs, by the program of five."""
    columns = [column.ravel() for column in np.broadcast_arrays(*arguments)]
    num_runs = columns[0].size
    num_missing = -num_runs % 5
    padded = [np.pad(column, (0, num_missing), mode="edge").reshape(-1, 5) for column in columns]
    epsilons = [moments_accountant_epsilon(*five_runs, **keywords) for five_runs in zip(*padded, strict=True)]
    return np.concatenate(epsilons)[:num_runs]


@functools.cache
def exact_rdp(noise_multiplier, sampling_prob, order):
    """Return the integral at 30 digits, broken at the two places where its mass sits."""
    with mp.workdps(30):
        h = 1 / mp.mpf(noise_multiplier)
        p = mp.mpf(sampling_prob)
        a = mp.mpf(order)

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
    excesses = []
    for bound, point in zip(bounds, points.tolist(), strict=True):
        ratio = mp.mpf(float(bound)) / exact_rdp(*point)
        excesses.append(float(ratio - 1))
    return np.array(excesses)


@pytest.fixture(scope="module")
def excesses():
    """Return by how much the answers at POINTS exceed the integrals: of known numbers, and of traced ones."""
    noise_multiplier, sampling_prob, orders = POINTS.T
    known = rdp_subsampled_gaussian(noise_multiplier, sampling_prob, orders)
    of_known = excess(np.diagonal(known), POINTS)

    # Traced answers are float32, rounded up.
    single = noise_multiplier[:6].astype(np.float32)
    traced = jax.jit(lambda noise: rdp_subsampled_gaussian(noise, sampling_prob[:6], orders[:6]))(single)
    traced_points = np.stack([single, sampling_prob[:6], orders[:6]], axis=1)
    of_traced = excess(np.diagonal(traced), traced_points)
    return of_known, of_traced


def test_exact_and_never_below(excesses):
    """The bounds are next to the integrals, from above, and looser where the quadrature does not apply."""
    of_known, of_traced = excesses
    quadrature, fallback = of_known[:6], of_known[6:]
    assert (quadrature > 0).all()
    assert (fallback > 0).all()
    assert (fallback < 0.5).all()
    assert (quadrature < 1e-9).all()
    assert (of_traced > 0).all()
    assert (of_traced < 3e-7).all()


def binomial_sum(noise_multiplier, sampling_prob, order):
    """Return the divergence at a whole order with the digits that mpmath works with."""
    s = mp.mpf(noise_multiplier)
    p = mp.mpf(sampling_prob)
    total = mp.mpf(0)
    for k in range(order + 1):
        weight = mp.binomial(order, k) * p**k * (1 - p) ** (order - k)
        total += weight * mp.exp((k * k - k) / (2 * s * s))
    return mp.log(total) / (order - 1)


def test_whole_orders_are_the_binomial_sum():
    """The moment of a whole order is a finite sum."""
    noise_multipliers = np.array([0.6, 4.0, 50.0])
    sampling_probs = np.array([0.3, 1e-6, 1e-8])
    bounds = rdp_of_three(noise_multipliers, sampling_probs)
    with mp.workdps(40):
        for row, noise_multiplier, sampling_prob in zip(bounds, noise_multipliers, sampling_probs, strict=True):
            for order in (2, 3, 8, 64):
                (bound,) = row[order == ORDERS]
                exact = binomial_sum(noise_multiplier, sampling_prob, order)
                excess_of_bound = float(mp.mpf(float(bound)) / exact - 1)
                assert 0 <= excess_of_bound < 2e-11


def test_ends_and_shapes():
    """The divergence is 0 with nobody sampled, Gaussian with everybody, and grows past the last tabulated order."""
    orders = np.array([1.5, 2.0, 64.0, 1024.0, 1024.5, 2000.0])
    noise_multipliers = np.array([[1.0], [2.0]])
    sampling_probs = np.array([0.0, 0.01, 1.0])
    rdp = rdp_subsampled_gaussian(noise_multipliers, sampling_probs, orders)
    assert rdp.shape == (2, 3, 6)
    np.testing.assert_allclose(rdp[1, 2], orders / 8, rtol=1e-10)
    assert (rdp[:, 0] == 0).all()
    # The two formulas around the last tabulated order.
    at_last_order, beyond = rdp[0, 1, 3:5]
    assert at_last_order <= beyond
    assert rdp_subsampled_gaussian(np.ones(3), 0.1, 2.0).shape == (3,)


@pytest.mark.parametrize(("noise", "epochs", "_mu", "_epsilon", "published"), MNIST_ROWS)
def test_classic_conversion_reproduces_the_published_column(noise, epochs, _mu, _epsilon, published):
    """The paper's column is of the classic conversion; the tight one is better."""
    num_steps = round(epochs * 60_000 / 256)
    classic = moments_accountant_epsilon(noise, 256 / 60_000, num_steps, 1e-5, conversion="classic")
    assert f"{classic:.2f}" == f"{published:.2f}"
    tight = moments_accountant_epsilon(noise, 256 / 60_000, num_steps, 1e-5)
    assert tight < classic


def test_never_below_the_certified_epsilon():
    """The epsilon of the moments is at least the certified lower end."""
    rows = [row for row in REFERENCE["subsampled_gaussian"] if row["delta"] > 1e-300]
    names = ("noise_multiplier", "sampling_prob", "num_steps", "delta")
    columns = [np.array([row[name] for row in rows]) for name in names]
    bound = moments_in_fives(*columns)
    assert (bound >= [row["epsilon_lower"] for row in rows]).all()

    # Without subsampling it is above the exact Gaussian epsilon.
    assert moments_accountant_epsilon(2.0, 1.0, 9, 1e-6) > gdp_epsilon(1e-6, 1.5)


UNIFORM_POINTS = np.array([(1.3, 256 / 60_000), (1.0, 0.5), (20.0, 1e-3), (1e4, 1e-6), (0.5, 1e-4), (0.6, 0.01)])
# An integral takes half a second: two orders here, and all of them among the slow tests.
ORDERS_OF_EACH_POINT = [(1.1, 16.0), (1.5, 4.5), (2.0, 64.0), (1.1, 4.5), (1.5, 2.0), ()]
POINTS_AND_ORDERS = []
for point, quick_orders in enumerate(ORDERS_OF_EACH_POINT):
    for one_order in (1.1, 1.5, 2.0, 4.5, 16.0, 64.0):
        marks = [] if one_order in quick_orders else [pytest.mark.slow]
        POINTS_AND_ORDERS.append(pytest.param(point, one_order, marks=marks))


@pytest.fixture(scope="module")
def uniform_rdp():
    """Return the bounds at all points and ORDERS."""
    first_three = rdp_of_three(*UNIFORM_POINTS[:3].T, "uniform")
    last_three = rdp_of_three(*UNIFORM_POINTS[3:].T, "uniform")
    return np.concatenate([first_three, last_three])


@pytest.mark.parametrize(("point", "order"), POINTS_AND_ORDERS)
def test_uniform_is_its_formula_and_never_below(uniform_rdp, point, order):
    """The bound is at least the integral at 40 digits, and 0.3 % above it at most."""
    (bound,) = uniform_rdp[point, order == ORDERS]
    noise, prob = UNIFORM_POINTS[point]
    with mp.workdps(40):
        h = 1 / mp.mpf(noise)
        p = mp.mpf(prob)
        a = mp.mpf(order)

        def integrand(u):
            r = 1 - p + p * mp.exp(h * u - h * h / 2)
            return mp.npdf(u) * (r**a + r ** (1 - a) - 1 - r)

        # The integral starts where the ratio is 1, and is broken where its mass sits.
        edge = float(h / 2)
        tilted_mean = float(a * h)
        points = {edge, edge + 1, edge + 3}
        for distance in (-3, 0, 3, 8, 40):
            if tilted_mean + distance >= edge:
                points.add(tilted_mean + distance)
        exact = mp.log1p(mp.quad(integrand, sorted(points))) / (a - 1)
        excess_of_bound = float(mp.mpf(float(bound)) / exact - 1)
    assert 0 <= excess_of_bound < 3e-3


def test_uniform_with_little_noise_is_a_number_between_poisson_and_no_sampling():
    orders = [1.5, 2.0, 20.5]
    poisson, unsampled = (rdp_subsampled_gaussian([0.1, 0.2], prob, orders) for prob in (1e-3, 1.0))
    of_uniform = rdp_subsampled_gaussian([0.1, 0.2], 1e-3, orders, sampling="uniform")
    assert (poisson <= of_uniform).all()
    assert (of_uniform <= unsampled * (1 + 1e-9)).all()


def test_uniform_bounds_the_pairs_that_sampling_can_produce():
    """The bound is at least the divergence of batches of one from n, wherever the other examples are.

    The outputs are (1 - p) N(c) + p N(1/2) and (1 - p) N(c) + p N(-1/2) for some c.
    """
    u = np.linspace(-25, 25, 25_001)[:, None]
    spacing = u[1] - u[0]

    def density(mean):
        return np.exp(-0.5 * (u - mean) ** 2) / np.sqrt(2 * np.pi)

    noise_multipliers = np.array([1.0, 2.0, 1.0])
    sampling_probs = np.array([0.5, 0.1, 0.01])
    of_uniform = rdp_of_three(noise_multipliers, sampling_probs, "uniform")
    of_poisson = rdp_of_three(noise_multipliers, sampling_probs, "poisson")
    for i in range(3):
        noise_multiplier = noise_multipliers[i]
        sampling_prob = sampling_probs[i]
        other_means = np.linspace(-0.5, 0.5, 11)
        others = (1 - sampling_prob) * density(other_means / noise_multiplier)
        a = others + sampling_prob * density(0.5 / noise_multiplier)
        b = others + sampling_prob * density(-0.5 / noise_multiplier)
        for order in (1.5, 2.0, 8.0):
            moments = np.sum(spacing * a * (a / b) ** (order - 1), axis=0)
            divergences = np.log(moments) / (order - 1)
            assert (divergences <= of_uniform[i, order == ORDERS]).all()
            # c = -1/2 is Poisson sampling's pair.
            (expected,) = of_poisson[i, order == ORDERS]
            assert divergences[0] == pytest.approx(float(expected), rel=1e-6)


def test_conversions():
    """Each conversion is the least of its formula over the orders."""
    rdp = np.array([0.3, np.inf, 1.2])
    orders = np.array([2.0, 3.0, 8.0])
    classic = min(0.3 + np.log(1e5), 1.2 + np.log(1e5) / 7)
    assert rdp_epsilon(rdp, orders, 1e-5, conversion="classic") == pytest.approx(classic, rel=1e-14)

    tight = 1.2 + np.log(7 / 8) + (np.log(1e5) - np.log(8)) / 7
    rows = np.array([rdp, np.full(3, 1e-12), np.full(3, np.inf), np.ones(3)])
    epsilons = rdp_epsilon(rows, orders, np.full(4, 1e-5))
    assert epsilons.shape == (4,)
    assert epsilons[0] == pytest.approx(tight, rel=1e-14)
    assert epsilons[1] == 0
    assert epsilons[2] == np.inf
    assert moments_accountant_epsilon(1.0, 0.0, 100, 1e-5) == 0


def test_the_runs_of_a_grid_have_the_epsilon_that_each_has_by_itself():
    """Runs that share a step, or do not, keep their own steps and delta, whatever the shape of the grid."""
    noise, prob = np.array([1.3, 0.7, 1.3])[:, None, None], np.array([0.01, 0.2])[:, None]
    delta = np.array([1e-5, 1e-7])
    grid = moments_accountant_epsilon(noise, prob, 100, delta)
    assert grid.shape == (3, 2, 2)
    for place in np.ndindex(grid.shape):
        alone = moments_accountant_epsilon(noise[place[0], 0, 0], prob[place[1], 0], 100, delta[place[2]])
        assert grid[place] == pytest.approx(alone, rel=1e-9)
    assert moments_accountant_epsilon(np.ones((0, 2)), 0.1, 10, 1e-5).shape == (0, 2)
