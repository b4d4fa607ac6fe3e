"""Runs in which an example is hardly ever sampled: brackets are true, and narrow down to tiny epsilon."""

import numpy as np
import pytest
from scipy.special import log_ndtr

from gdpjax import Bounds
from gdpjax.accounting import delta_bounds, epsilon_bounds
from tests.accounting.numeric import oracle
from tests.accounting.numeric.inside import RunDescription, SubsampledGaussian, _contour_choice, _rare_outcomes

TELLING = [
    (0.285, 9.7e-6, 30, 2.2e-5),
    (0.715, 3.3e-6, 1e4, 1.8e-12),
    (0.5679, 5.287e-6, 4, 1.329e-12),
    (0.5124, 5.309e-7, 3568, 1.079e-10),
    (0.3531, 7.328e-7, 221, 9.701e-8),
    (1.217, 1.912e-7, 37, 4.61e-12),
    (3.738, 2.101e-7, 64, 3.564e-9),
]


def random_runs(size, seed, most_steps=1e4):
    """Runs with p in 1e-7 .. 1e-4, of which delta is not above the chance that the example is ever in a batch."""
    uniform = np.random.default_rng(seed).uniform
    rows = []
    while len(rows) < size:
        sigma, p, steps = np.exp(uniform(np.log(0.25), np.log(4))), 10 ** uniform(-7, -4), 10 ** uniform(0, 4)
        steps = float(np.round(min(steps, most_steps)))
        delta = 10 ** uniform(-12, -3)
        if delta < -np.expm1(steps * np.log1p(-p)):
            rows.append((sigma, p, steps, delta))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# delta of up to three steps under "remove", by integrating the closed form of the last one.


def one_step_delta(epsilon, sigma, p):
    """delta of one step at any epsilon, negative ones too."""
    inside = np.expm1(epsilon) + p
    mu = 1.0 / sigma
    inner = np.log(np.where(inside > 0, inside, 1.0) / p)
    first, second = log_ndtr(0.5 * mu - inner / mu), inner + log_ndtr(-0.5 * mu - inner / mu)
    above = p * np.exp(first) * -np.expm1(np.minimum(second - first, 0.0))
    return np.where(inside > 0, above, -np.expm1(epsilon))


def outcomes(sigma, p, nodes=24, panels=160):
    """Losses of a step and their weights under the mixture."""
    x, w = np.polynomial.legendre.leggauss(nodes)
    edges = np.linspace(-9.0, 9.0 + 1.0 / sigma, panels + 1)
    half = 0.5 * np.diff(edges)[:, None]
    u = (half * x + 0.5 * (edges[1:] + edges[:-1])[:, None]).ravel()
    loss = np.log1p(p * np.expm1((u - 0.5 / sigma) / sigma))
    return loss, (half * w).ravel() * np.exp(loss - 0.5 * u**2) / np.sqrt(2 * np.pi)


def few_steps_delta(epsilon, phases):
    """delta of one, two or three steps under "remove"."""
    *others, last = phases
    loss, weight = np.zeros(1), np.ones(1)
    for step in others:
        more, share = outcomes(*step, panels=600 if len(others) == 1 else 80)
        loss, weight = np.add.outer(loss, more).ravel(), np.outer(weight, share).ravel()
    return np.dot(weight, one_step_delta(epsilon - loss, *last))


FACTORS = (0.8, 0.92, 1.0, 1.1, 1.5, 4.0)


def rare_bracket(run, epsilon, log_delta, factors):
    """Bracket on log delta from the telling runs alone, planned about a guess, at multiples of the guess."""
    windows = _contour_choice.choose_windows(run, log_delta)
    coarse = _contour_choice.coarse_run(run, windows)
    plan, split = _rare_outcomes.make_plan(run, windows, coarse, epsilon, log_delta, 1e-3, of_delta=True)
    data = _rare_outcomes.transform(run, windows, split, plan.contour)
    points = epsilon * np.array(factors)
    found = [_rare_outcomes.log_delta_bracket(data, plan, split.loud, at)[0] for at in points]
    return points, Bounds(*np.transpose(found))


def check_few_steps(rows, tolerance=1e-6, factors=FACTORS):
    """Return how many of the brackets from the telling runs alone are narrow; all of them must be true."""
    narrow = []
    for sigma, p, steps, delta in rows:
        phases = [(sigma * (1.0 + 0.1 * i), p * (1.0 + 0.3 * i)) for i in range(int(steps))]
        run = RunDescription(tuple(SubsampledGaussian(s, q, 1.0) for s, q in phases))
        with np.errstate(all="ignore"):
            epsilon = _rare_outcomes.first_guess(
                _contour_choice.coarse_run(run, _contour_choice.choose_windows(run, np.log(delta))), np.log(delta)
            )
            points, bounds = rare_bracket(run, epsilon, np.log(delta), factors)
        for at, lower, upper in zip(points, *bounds, strict=True):
            truth = np.log(few_steps_delta(at, phases))
            assert lower <= truth + tolerance, (phases, at)
            assert truth - tolerance <= upper, (phases, at)
        guess = factors.index(1.0)
        narrow.append(bounds.upper[guess] - bounds.lower[guess] < 0.05)
        assert bounds.upper[0] == 0.0  # below the least epsilon nothing is said
    return np.mean(narrow)


@pytest.mark.parametrize("seed", [1, *[pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 5)]])
def test_the_telling_runs_of_two_steps_give_true_brackets(seed):
    assert check_few_steps(random_runs(12, seed, most_steps=2)) >= 0.5


@pytest.mark.parametrize(
    "row",
    [
        (0.3636, 1.46e-5, 3, 6.2e-10),
        pytest.param((0.3156, 3.147e-5, 3, 1.43e-10), marks=pytest.mark.slow),
        pytest.param((1.2, 2e-6, 3, 1e-9), marks=pytest.mark.slow),
    ],
)
def test_the_telling_runs_of_three_steps_give_true_brackets(row):
    # The integral is exact to two thousandths.
    assert check_few_steps([row], tolerance=2e-3, factors=(0.8, 1.0, 4.0)) == 1.0


SLOW_TELLING = (1, 3, 4)
"""Rows at which the oracle takes long."""


@pytest.mark.parametrize(
    "row", [pytest.param(row, marks=[pytest.mark.slow] * (i in SLOW_TELLING)) for i, row in enumerate(TELLING)]
)
def test_brackets_are_narrow_and_agree_with_the_oracle(row):
    sigma, p, steps, delta = row
    bounds = epsilon_bounds(*row)
    assert bounds.upper - bounds.lower <= 1e-2 * bounds.lower
    options = {"log_tail": np.log(delta) - 12.0, "bins": 2**15}
    assert oracle.both_directions(sigma, p, steps, bounds.upper, **options)[0] <= np.log(delta) + 1e-7
    assert oracle.both_directions(sigma, p, steps, bounds.lower, **options)[1] >= np.log(delta) - 1e-7
    middle = 0.5 * (bounds.lower + bounds.upper)
    at_middle = delta_bounds(sigma, p, steps, middle)
    assert at_middle.lower <= delta * 1.05
    assert delta <= at_middle.upper * 1.05


FEW_STEPS = [
    (0.3469, 1.204e-6, 2, 2.487e-7),
    (0.7675, 3.94e-7, 2, 1.671e-7),
    pytest.param((0.5668, 3.475e-5, 3, 4.002e-6), marks=pytest.mark.slow),
]


@pytest.mark.parametrize("row", FEW_STEPS)
def test_brackets_are_narrow_where_losses_are_far_above_epsilon(row):
    """Delta is a large share of the chance to be sampled at all, so epsilon is far below the usual loss."""
    sigma, p, steps, delta = row
    bounds = epsilon_bounds(*row)
    assert bounds.upper - bounds.lower <= 1e-3 * bounds.upper
    at_lower, at_upper = (few_steps_delta(e, [(sigma, p)] * steps) for e in bounds)
    assert at_upper <= delta * (1.0 + 1e-7)
    assert delta * (1.0 - 1e-7) <= at_lower
    at_upper = delta_bounds(sigma, p, steps, bounds.upper)
    assert at_upper.upper - at_upper.lower <= 1e-2 * delta
    assert at_upper.lower <= delta


def test_random_brackets_are_narrow():
    rows = random_runs(8, 7)
    bounds = epsilon_bounds(*np.transpose(rows))
    seen = bounds.upper > 1e-6
    assert np.mean((bounds.upper - bounds.lower <= 1e-2 * bounds.upper)[seen]) >= 0.8


# ---------------------------------------------------------------------------------------------------------------------
# Runs whose example is sampled often, and whose losses come from a single outcome all the same.


def test_many_steps_of_which_one_tells():
    bounds = epsilon_bounds(1.207, 2.84e-5, 10**6, 1e-30)
    assert 0.4602 < bounds.lower < bounds.upper < 0.4609
