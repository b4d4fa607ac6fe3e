"""Groups and symmetric steps against the tilted-FFT oracle, fed with privacy losses that are computed here."""

import functools

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import binom

from gdpjax import NeighboringRelation
from gdpjax.accounting import delta_bounds, epsilon_bounds, gdp_delta, gdp_epsilon, mu_bounds, tradeoff_bounds
from tests.accounting.numeric import oracle
from tests.accounting.numeric.inside import EPSILON, Family, _questions, of_runs

SYMMETRIC = Family(symmetric=True)


def increasing(u, sigma, log_weights):
    """log r at u, which is convex, and its slope."""
    j = np.arange(log_weights.size)
    exponent = log_weights + j * (u[:, None] - j / (2 * sigma)) / sigma
    peak = exponent.max(axis=1)
    terms = np.exp(exponent - peak[:, None])
    total = terms.sum(axis=1)
    return peak + np.log(total), terms @ j / (sigma * total)


def inverted(levels, sigma, log_weights, low, high):
    """The u at which log r reaches each level, within [low, high], by Newton's method from a table."""
    table = np.linspace(low, high, 2000)
    u = np.interp(levels, increasing(table, sigma, log_weights)[0], table)
    for _ in range(4):
        value, slope = increasing(u, sigma, log_weights)
        u = np.clip(u - (value - levels) / slope, low, high)
    return np.maximum.accumulate(u)


@functools.cache
def masses(sigma, p, k, bins, reach, from_loss=-np.inf):
    """Cells of log r (first index, spacing), with their mass under the mixture and under N(0, 1); and what is lost."""
    log_weights = binom.logpmf(np.arange(k + 1), k, p)
    low, high = -reach, reach + k / sigma
    bottom, top = increasing(np.array([low, high]), sigma, log_weights)[0]
    bottom = max(bottom, from_loss)
    spacing = (top - bottom) / bins
    first = int(np.floor(bottom / spacing + 1e-9))
    levels = spacing * np.arange(first, int(np.ceil(top / spacing)) + 1)
    u = np.clip(inverted(levels, sigma, log_weights, low, high), low, high)
    each = [oracle._normal_mass(u, j / sigma) for j in range(k + 1)]
    mixture = np.exp(log_weights) @ np.array(each)
    lost = np.exp(log_weights) @ np.exp(log_ndtr(np.arange(k + 1) / sigma - high)) * 2 + 2 * np.exp(log_ndtr(-reach))
    return first, spacing, mixture, each[0], lost


def composed(first, spacing, p_mass, q_mass, lost, steps, epsilon):
    lower, upper = (
        oracle._compose(*oracle._rounded(first, p_mass, q_mass, spacing, best), spacing, steps, epsilon, side)
        for best, side in ((True, -1), (False, 1))
    )
    return np.exp(lower), np.exp(upper) + steps * lost


def group_oracle(sigma, p, k, steps, epsilon):
    """(lower, upper) on delta of a group of k, the worse direction."""
    first, spacing, mixture, base, lost = masses(sigma, p, k, 2**16, 9.0)
    remove = composed(first, spacing, mixture, base, lost, steps, epsilon)
    last = first + mixture.size
    add = composed(-last, spacing, base[::-1], mixture[::-1], lost, steps, epsilon)
    return np.maximum(remove, add)


def symmetric_oracle(sigma, p, steps, epsilon):
    """(lower, upper) on delta of the composition of C_p(G_{1/sigma})."""
    first, spacing, mixture, base, lost = masses(sigma, p, 1, 2**15, 9.0, from_loss=0.0)
    assert first == 0
    rest = np.array([1.0 - mixture.sum() - base.sum()])
    p_mass = np.concatenate([base[::-1], rest, mixture[1:]])
    p_mass[base.size] += mixture[0]
    q_mass = np.concatenate([mixture[::-1], rest, base[1:]])
    q_mass[base.size] += base[0]
    return composed(-base.size, spacing, p_mass, q_mass, lost, steps, epsilon)


def replaced_oracle(sigma, p, steps, epsilon):
    """(lower, upper) on delta of steps on Poisson batches where one row is replaced, with noise sigma / 2."""
    shift, reach, bins = 0.5 / sigma, 9.0, 2**16
    log_weights = np.log([1 - p, p])

    def loss_and_slope(u):
        above, below = increasing(u, 1 / shift, log_weights), increasing(-u, 1 / shift, log_weights)
        return above[0] - below[0], above[1] + below[1]

    high = reach + shift
    spacing = loss_and_slope(np.array([high]))[0][0] / bins
    levels = spacing * np.arange(-bins, bins + 1)
    table = np.linspace(-high, high, 4000)
    u = np.interp(levels, loss_and_slope(table)[0], table)
    for _ in range(6):
        value, slope = loss_and_slope(u)
        u = np.clip(u - (value - levels) / slope, -high, high)
    u = np.maximum.accumulate(u)
    p_mass, q_mass = ((1 - p) * oracle._normal_mass(u, 0.0) + p * oracle._normal_mass(u, at) for at in (shift, -shift))
    return composed(-bins, spacing, p_mass, q_mass, 4 * np.exp(log_ndtr(-reach)), steps, epsilon)


def assert_contains(bounds, delta_of):
    """A narrow bracket of the epsilon at delta = 1e-5, by an oracle that brackets the delta of an epsilon."""
    assert 0 < bounds.upper < 1.002 * bounds.lower
    assert delta_of(bounds.upper)[0] <= 1e-5 * (1 + 1e-6)
    assert delta_of(bounds.lower)[1] >= 1e-5 * (1 - 1e-6)


def assert_overlap(bounds, of_oracle):
    low, high = of_oracle
    assert low <= bounds.upper
    assert bounds.lower <= high


REPLACED_RUNS = [(1.0, 0.01, 1000), (0.5, 0.1, 30), (2.0, 0.5, 40), (0.2, 0.02, 3), (0.65, 256 / 60_000, 3516)]


@pytest.mark.parametrize("run", REPLACED_RUNS, ids=str)
def test_replaced_rows_of_poisson_batches_contain_the_oracle(run):
    relation = {"neighboring_relation": NeighboringRelation.REPLACE_ONE}
    bounds = epsilon_bounds(*run, 1e-5, **relation)
    of_oracle = functools.partial(replaced_oracle, *run)
    assert_contains(bounds, of_oracle)
    assert_overlap(delta_bounds(*run, bounds.upper, **relation), of_oracle(bounds.upper))


@pytest.mark.parametrize(
    "run",
    [
        (2, 1.3, 256 / 60_000, 3516),
        (3, 2.0, 0.01, 500),
        (2, 0.8, 0.3, 10),
        (17, 8.0, 0.01, 60),
        (60, 20.0, 0.01, 60),
        pytest.param((4, 6.0, 0.5, 50), marks=pytest.mark.slow),
        pytest.param((8, 4.0, 0.002, 2000), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_groups_contain_the_oracle(run):
    k, *run = run
    noise, prob, steps = run
    bounds = epsilon_bounds(*run, 1e-5, group_size=k)
    of_oracle = functools.partial(group_oracle, noise, prob, k, steps)
    assert_contains(bounds, of_oracle)
    assert_overlap(delta_bounds(*run, bounds.upper, group_size=k), of_oracle(bounds.upper))


@pytest.mark.parametrize(("size", "peer"), [(100, 8.464), (500, 73.96)])
def test_large_groups_hold_the_figure_of_another_library(size, peer):
    lower, upper = epsilon_bounds(2.0, 0.001, 1000, 1e-5, group_size=size)
    assert lower <= peer <= upper < 1.001 * lower


@pytest.mark.parametrize(
    "run",
    [
        (30, 8.0, 0.3, 5),
        pytest.param((40, 3.0, 0.002, 300), marks=pytest.mark.slow),
        pytest.param((64, 5.0, 0.01, 20), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_what_is_left_out_of_a_large_group_is_accounted_for(run, monkeypatch):
    """Every answer agrees with that of all rows, and where much is left out brackets are wider and still true."""
    k, *run = run
    size = {"group_size": k}

    def answers():
        epsilon = epsilon_bounds(*run, 1e-5, **size)
        mu = mu_bounds(*run, **size) if k == 40 else epsilon
        return epsilon, delta_bounds(*run, 3.0, **size), tradeoff_bounds(*run, 0.1, **size), mu

    left_out = answers()
    monkeypatch.setattr(_questions, "_SMALL_GROUP", 64)
    whole = answers()
    for few, all_rows in zip(left_out, whole, strict=True):
        assert max(few.lower, all_rows.lower) <= min(few.upper, all_rows.upper) * (1 + 1e-9)

    # So few rows that much is lost.
    for missed in (1e-7, 1e-2):
        epsilon = np.linspace(0.0, 12.0, 5)
        monkeypatch.setattr(_questions, "_SMALL_GROUP", 64)
        exact = delta_bounds(*run, epsilon, **size)
        monkeypatch.setattr(_questions, "_SMALL_GROUP", 16)
        monkeypatch.setattr(_questions, "_MISSED", missed)
        few = delta_bounds(*run, epsilon, **size)
        assert np.all(few.lower <= exact.upper * (1 + 1e-9))
        assert np.all(exact.lower <= few.upper * (1 + 1e-9))
        for of_few, of_all in zip(answers(), whole, strict=True):
            assert of_few.lower <= of_all.upper * (1 + 1e-9)
            assert of_all.lower <= of_few.upper * (1 + 1e-9)


def test_a_large_group_that_is_often_sampled_is_bounded_as_without_sampling():
    lower, upper = epsilon_bounds(20.0, 0.5, 10, 1e-5, group_size=1000)
    assert lower == 0.0
    assert upper == pytest.approx(float(gdp_epsilon(1e-5, 1000 * np.sqrt(10) / 20.0)), rel=1e-6)
    # With so tiny a probability hardly ever two rows meet, and it is that of the group that counts.
    alone, group = (delta_bounds(1e-3, 2e-30, 1, 0.0, group_size=size) for size in (1, 500))
    assert 499 < group.upper / alone.upper < 501
    of_many = epsilon_bounds(1e6, 1e-9, 100, 1e-8, group_size=10**9)
    assert 0 <= of_many.lower < of_many.upper < 1e-4


def test_groups_without_sampling_are_gaussian_with_k_times_the_mu():
    bounds = delta_bounds(2.0, 1.0, 9, 1.5, group_size=4)
    assert bounds.lower <= gdp_delta(1.5, 4 * 3 / 2.0) <= bounds.upper
    assert bounds.upper < bounds.lower * (1 + 1e-8)


def test_a_group_of_one_is_one_example_and_larger_groups_leak_more():
    run = (1.3, 256 / 60_000, 3516, 1e-5)
    one, two, three = (epsilon_bounds(*run, group_size=k) for k in (1, 2, 3))
    assert one == epsilon_bounds(*run)
    assert one.upper < two.lower < two.upper < three.lower


@pytest.mark.parametrize(
    "run",
    [
        pytest.param((1.3, 256 / 60_000, 3516), marks=pytest.mark.slow, id="mnist"),
        pytest.param((0.7, 256 / 60_000, 10_547), id="long"),
        pytest.param((2.0, 0.1, 100), id="short"),
        pytest.param((5.0, 0.5, 30), id="half"),
        pytest.param((0.5, 0.01, 3), id="three"),
    ],
)
def test_symmetric_steps_contain_the_oracle(run):
    assert_contains(of_runs(EPSILON, SYMMETRIC)(*run, 1e-5), functools.partial(symmetric_oracle, *run))


def test_uniform_sampling_lies_between_the_poisson_pair_and_the_symmetric_one():
    run = (1.3, 256 / 60_000, 3516)
    bounds, poisson = epsilon_bounds(*run, 1e-5, sampling="uniform"), epsilon_bounds(*run, 1e-5)
    assert bounds.lower == poisson.lower
    assert 1.2 < bounds.upper / bounds.lower < 1.4
    assert abs(bounds.upper - 1.067) < 1e-3  # composing C_p, as known from elsewhere


def test_one_uniform_step_and_whole_batches_are_exact():
    for run in ((1.0, 0.1, 1), (2.0, 1.0, 7)):
        bounds, poisson = epsilon_bounds(*run, 1e-4, sampling="uniform"), epsilon_bounds(*run, 1e-4)
        np.testing.assert_allclose(bounds, poisson, rtol=3e-9)
