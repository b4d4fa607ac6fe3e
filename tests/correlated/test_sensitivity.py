"""Certified sensitivities: never below brute force over all patterns, and tight where they are said to be exact."""

import warnings
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gdpjax.correlated import (
    BandedInverse,
    BandedToeplitz,
    BufferedToeplitz,
    Dense,
    FixedEpochs,
    MinSep,
    SingleParticipation,
    bisr,
    lambda_cgd,
)
from gdpjax.correlated._sensitivity import _toeplitz_lag_bound, dense_sensitivity
from gdpjax.correlated._series import certified_reciprocal, geometric_sums
from tests.correlated.matrices import brute_force, matrix_of, patterns, toeplitz

EXACT = 1 + 1e-9
ROUNDING = 1 - 1e-13  # of the brute force itself


@st.composite
def participations(draw, num_steps):
    kind = draw(st.sampled_from(["single", "min_sep", "fixed"]))
    if kind == "single":
        return SingleParticipation()
    if kind == "fixed":
        return FixedEpochs(draw(st.sampled_from([k for k in range(1, num_steps + 1) if num_steps % k == 0])))
    return MinSep(draw(st.integers(1, 5)), draw(st.integers(1, num_steps + 2)))


@st.composite
def cases(draw, least=-1.0):
    """A number of steps, a participation and coefficients, the first of which is 1."""
    num_steps = draw(st.integers(1, 9))
    others = draw(st.lists(st.floats(least, 1.0), max_size=num_steps - 1))
    return num_steps, draw(participations(num_steps)), np.array([1.0, *others])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases())
def test_no_banded_toeplitz_is_below_brute_force(case):
    num_steps, participation, coefficients = case
    strategy = BandedToeplitz(coefficients)
    truth = brute_force(toeplitz(coefficients, num_steps), participation)
    bound = strategy.sensitivity(num_steps, participation)
    assert bound >= truth * ROUNDING
    if participation.limits(num_steps)[0] == 1 or len(coefficients) <= participation.limits(num_steps)[1]:
        assert bound <= truth * EXACT


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(least=0.0))
def test_coefficients_that_are_not_negative(case):
    """Fixed epochs are exact; so is everything once the coefficients do not increase."""
    num_steps, participation, coefficients = case
    sorted_ones = np.sort(coefficients)[::-1]
    truth = brute_force(toeplitz(sorted_ones, num_steps), participation)
    bound = BandedToeplitz(sorted_ones).sensitivity(num_steps, participation)
    assert truth * ROUNDING <= bound <= truth * EXACT
    if isinstance(participation, FixedEpochs):
        truth = brute_force(toeplitz(coefficients, num_steps), participation)
        assert BandedToeplitz(coefficients).sensitivity(num_steps, participation) <= truth * EXACT


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases())
def test_no_banded_inverse_is_below_brute_force(case):
    num_steps, participation, coefficients = case
    truth = brute_force(np.linalg.inv(toeplitz(coefficients, num_steps)), participation)
    assert BandedInverse(coefficients).sensitivity(num_steps, participation) >= truth * ROUNDING


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(), st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3))
def test_no_buffered_toeplitz_is_below_brute_force(case, scale):
    num_steps, participation, _ = case
    strategy = BufferedToeplitz([0.9, 0.5, 0.0], scale)
    truth = brute_force(matrix_of(strategy, num_steps), participation)
    bound = strategy.sensitivity(num_steps, participation)
    assert bound >= truth * ROUNDING
    if min(scale) >= 0 and sum(scale) <= 1:
        assert bound <= truth * EXACT


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.data())
def test_no_dense_matrix_is_below_brute_force(data):
    num_steps = data.draw(st.integers(1, 8))
    participation = data.draw(participations(num_steps))
    seed = data.draw(st.integers(0, 10**6))
    matrix = np.tril(np.random.default_rng(seed).normal(size=(num_steps, num_steps)))
    np.fill_diagonal(matrix, 1.0)
    truth = brute_force(matrix, participation)
    bound = Dense(matrix).sensitivity(num_steps, participation)
    assert bound >= truth * ROUNDING
    if participation.limits(num_steps)[0] == 1:
        assert bound <= truth * EXACT
    positive = np.abs(matrix)
    if isinstance(participation, FixedEpochs):
        assert Dense(positive).sensitivity(num_steps, participation) <= brute_force(positive, participation) * EXACT


def test_vectors_may_be_worse_than_signs():
    """Three columns at 120 degrees: signs reach 2, unit vectors 3, and the bound holds for those."""
    columns = np.array([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]]) + 1e-6 * np.eye(3)
    factor = np.linalg.cholesky(columns[::-1, ::-1]).T[::-1, ::-1]
    x = np.array([[1.0, 0.0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)]])
    attained = np.linalg.norm(factor @ x)
    assert attained > brute_force(factor, MinSep(3, 1)) + 0.1
    assert Dense(np.tril(factor)).sensitivity(3, MinSep(3, 1)) >= attained


@pytest.mark.parametrize("strategy", [lambda_cgd(0.9), lambda_cgd(1.0), bisr(4), bisr(6, 0.9, 0.01), bisr(12)])
@pytest.mark.parametrize("participation", [SingleParticipation(), MinSep(3, 3), MinSep(5, 1), FixedEpochs(3)])
def test_closed_forms_are_exact(strategy, participation):
    truth = brute_force(matrix_of(strategy, 12), participation)
    bound = strategy.sensitivity(12, participation)
    if np.all(np.diff(matrix_of(strategy, 12)[:, 0]) <= 1e-12):
        assert truth * ROUNDING <= bound <= truth * EXACT
    assert bound >= truth * ROUNDING


def test_a_prefix_of_a_run_is_no_more_sensitive():
    strategy = bisr(8)
    values = [strategy.sensitivity(n, MinSep(4, 25)) for n in (1, 10, 60, 100, 1000)]
    assert values == sorted(values)


def test_the_patterns_are_all_there():
    """The reference itself: how many patterns, and the reach of a wrong start or a wrong distance."""
    assert len(list(patterns(MinSep(2, 3), 5))) == 5 + 3
    assert list(patterns(FixedEpochs(2), 6)) == [(0, 3), (1, 4), (2, 5)]
    matrix = toeplitz([1.0, 0.5, 0.25], 6)
    right = BandedToeplitz([1.0, 0.5, 0.25]).sensitivity(6, MinSep(2, 2))
    started_late = np.linalg.norm(matrix[:, [3, 5]].sum(axis=1))
    too_far_apart = np.linalg.norm(matrix[:, [0, 3]].sum(axis=1))
    assert right > max(started_late, too_far_apart) * 1.01


def test_a_row_bound_needs_every_pattern_that_has_the_row():
    """A matrix whose worst pattern does not begin at step 0."""
    matrix = np.eye(6)
    matrix[5, 2] = matrix[5, 4] = 3.0
    participation = MinSep(2, 2)
    truth = brute_force(matrix, participation)
    assert truth * ROUNDING <= dense_sensitivity(matrix, participation) <= truth * 1.01


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(least=0.0))
def test_lags_of_a_toeplitz_matrix_bound_every_pattern(case):
    """The bound by convolutions alone, for coefficients that may increase."""
    num_steps, participation, coefficients = case
    matrix = toeplitz(coefficients, num_steps)
    count, separation = participation.limits(num_steps)
    truth = brute_force(matrix, MinSep(count, separation))
    bound = _toeplitz_lag_bound(matrix[:, 0], count, separation)
    assert bound >= truth * ROUNDING
    if np.all(np.diff(matrix[:, 0]) <= 0):
        assert bound <= truth * EXACT


def test_an_increase_costs_a_long_run_little():
    """Coefficients that go up once: the bound is close to what the first pattern attains."""
    column = np.concatenate([[1.0, 0.5, 0.6], np.geomspace(0.5, 1e-3, 20_000)])
    strategy = BandedToeplitz(column)
    bound = strategy.sensitivity(len(column), MinSep(4, 5000))
    pattern = sum(np.concatenate([np.zeros(shift), column])[: len(column)] for shift in range(0, 20_000, 5000))
    assert np.linalg.norm(pattern) <= bound <= np.linalg.norm(pattern) * (1 + 1e-9)


def test_long_runs_take_no_n_by_n_memory():
    strategy = bisr(16)
    bound = strategy.sensitivity(100_000, MinSep(10, 10_000))
    column = np.linalg.norm(strategy.column(100_000).values)
    assert column < bound < 10 * column
    assert strategy.error(100_000) > 0


@pytest.mark.parametrize("coefficients", [[1.0, -1.0], [2.0, -1.5, 0.3], [1.0, 0.5, -0.5, 0.25], [3.0, -1.0, -1.0]])
def test_the_error_of_the_reciprocal_series_is_bounded(coefficients):
    """Against exact rational arithmetic."""
    num_steps = 60
    exact = []
    parts = [Fraction(c) for c in coefficients]
    for t in range(num_steps):
        rest = sum((parts[j] * exact[t - j] for j in range(1, min(t, len(parts) - 1) + 1)), Fraction(0))
        exact.append((Fraction(int(t == 0)) - rest) / parts[0])
    series = certified_reciprocal(np.array(coefficients), num_steps)
    for value, error, truth in zip(series.values, series.errors, exact, strict=True):
        assert abs(Fraction(float(value)) - truth) <= Fraction(float(error))
    assert series.errors.max() < 1e-9 * np.abs(series.values).max()


def test_the_error_of_geometric_sums_is_bounded():
    decay, scale = np.array([0.999, 0.5, 0.1]), np.array([0.3, -0.2, 0.1])
    series = geometric_sums(decay, scale, 200)
    for t in range(1, 200):
        truth = sum(Fraction(s) * Fraction(d) ** (t - 1) for d, s in zip(decay.tolist(), scale.tolist(), strict=True))
        assert abs(Fraction(float(series.values[t])) - truth) <= Fraction(float(series.errors[t]))


def test_a_series_that_explodes_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="grows too fast"):
            BandedInverse([1.0, -3.0]).sensitivity(1000, SingleParticipation())


def test_what_is_attained_is_below_the_truth_in_a_long_run():
    """A difference of long running sums is rounded downwards here, and upwards in the bound."""
    strategy, num_steps = lambda_cgd(1.0), 100_000
    truth = np.sqrt(1 + 4 * (num_steps - 1))
    attained = strategy.attained(num_steps, MinSep(2, 1))
    bound = strategy.sensitivity(num_steps, MinSep(2, 1))
    assert truth * (1 - 1e-6) <= attained <= truth <= bound <= truth * (1 + 1e-6)
