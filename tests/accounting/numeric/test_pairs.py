"""Groups and symmetric steps against the tilted-FFT oracle, fed with privacy losses that are computed here."""

import functools

import numpy as np
import pytest
from scipy.special import log_ndtr
from scipy.stats import binom

from gdpjax.accounting import delta_bounds, epsilon_bounds, gdp_delta, mu_bounds, tradeoff_bounds
from gdpjax.accounting._numeric import Family, of_runs
from tests.accounting.numeric import oracle

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


@pytest.mark.parametrize(
    "run",
    [
        (2, 1.3, 256 / 60_000, 3516),
        (3, 2.0, 0.01, 500),
        (2, 0.8, 0.3, 10),
        pytest.param((4, 6.0, 0.5, 50), marks=pytest.mark.slow),
        pytest.param((8, 4.0, 0.002, 2000), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_groups_contain_the_oracle(run):
    k, *run = run
    bounds = epsilon_bounds(*run, 1e-5, group_size=k)
    assert bounds.upper < 1.002 * bounds.lower
    assert group_oracle(run[0], run[1], k, run[2], bounds.upper)[0] <= 1e-5 * (1 + 1e-6)
    assert group_oracle(run[0], run[1], k, run[2], bounds.lower)[1] >= 1e-5 * (1 - 1e-6)
    delta = delta_bounds(*run, bounds.upper, group_size=k)
    low, high = group_oracle(run[0], run[1], k, run[2], bounds.upper)
    assert delta.lower <= high
    assert low <= delta.upper


def test_groups_without_sampling_are_gaussian_with_k_times_the_mu():
    bounds = delta_bounds(2.0, 1.0, 9, 1.5, group_size=4)
    assert bounds.lower <= gdp_delta(1.5, 4 * 3 / 2.0) <= bounds.upper
    assert bounds.upper < bounds.lower * (1 + 1e-8)


def test_a_group_of_one_is_one_example_and_larger_groups_leak_more():
    run = (1.3, 256 / 60_000, 3516, 1e-5)
    one, two, three = (epsilon_bounds(*run, group_size=k) for k in (1, 2, 3))
    assert one == epsilon_bounds(*run)
    assert one.upper < two.lower < two.upper < three.lower


@pytest.mark.slow
def test_curves_of_groups():
    run = (1.3, 256 / 60_000, 3516)
    curves = [tradeoff_bounds(*run, 0.1, group_size=k) for k in (1, 2)]
    assert curves[1].upper < curves[0].lower


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
    bounds = of_runs("epsilon", SYMMETRIC)(*run, 1e-5)
    assert bounds.upper < 1.002 * bounds.lower
    assert symmetric_oracle(*run, bounds.upper)[0] <= 1e-5 * (1 + 1e-6)
    assert symmetric_oracle(*run, bounds.lower)[1] >= 1e-5 * (1 - 1e-6)


def test_uniform_sampling_lies_between_the_poisson_pair_and_the_symmetric_one():
    run = (1.3, 256 / 60_000, 3516)
    bounds, poisson = epsilon_bounds(*run, 1e-5, sampling="uniform"), epsilon_bounds(*run, 1e-5)
    assert bounds.lower == poisson.lower
    assert 1.2 < bounds.upper / bounds.lower < 1.4
    assert abs(bounds.upper - 1.067) < 1e-3  # composing C_p, as known from elsewhere


@pytest.mark.slow
def test_delta_and_the_curve_under_uniform_sampling():
    run = (1.3, 256 / 60_000, 3516)
    delta = delta_bounds(*run, 1.0, sampling="uniform")
    assert delta.lower == delta_bounds(*run, 1.0).lower
    assert delta.upper > delta_bounds(*run, 1.0).upper
    curve = tradeoff_bounds(*run, 0.2, sampling="uniform")
    assert curve.upper == tradeoff_bounds(*run, 0.2).upper
    assert curve.lower < tradeoff_bounds(*run, 0.2).lower


def test_one_uniform_step_and_whole_batches_are_exact():
    for run in ((1.0, 0.1, 1), (2.0, 1.0, 7)):
        bounds, poisson = epsilon_bounds(*run, 1e-4, sampling="uniform"), epsilon_bounds(*run, 1e-4)
        np.testing.assert_allclose(bounds, poisson, rtol=3e-9)


@pytest.mark.slow
def test_mu_of_groups_and_of_uniform_sampling():
    run = (1.3, 256 / 60_000, 3516)
    single, group, uniform = mu_bounds(*run), mu_bounds(*run, group_size=2), mu_bounds(*run, sampling="uniform")
    assert single.upper < group.lower
    assert uniform.lower == single.lower
    assert single.upper < uniform.upper
