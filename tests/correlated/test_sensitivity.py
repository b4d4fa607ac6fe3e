"""Certified sensitivities are never below brute force over all patterns, and tight where they are exact."""

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
from tests.correlated.matrices import brute_force, matrix_of, toeplitz

EXACT = 1 + 1e-9
ROUNDING = 1 - 1e-13
"""Brute force is itself rounded: a bound is compared with this part of it."""


@st.composite
def participations(draw, num_steps):
    """Draw a participation of one of the three kinds that fits a number of steps."""
    kind = draw(st.sampled_from(["single", "min_sep", "fixed"]))
    if kind == "single":
        return SingleParticipation()
    if kind == "fixed":
        divisors = [number for number in range(1, num_steps + 1) if num_steps % number == 0]
        num_epochs = draw(st.sampled_from(divisors))
        return FixedEpochs(num_epochs)
    max_participations = draw(st.integers(1, 5))
    min_separation = draw(st.integers(1, num_steps + 2))
    return MinSep(max_participations, min_separation)


@st.composite
def cases(draw, least=-1.0):
    """Draw a number of steps, a participation and coefficients, the first of which is 1."""
    num_steps = draw(st.integers(1, 9))
    later_coefficients = draw(st.lists(st.floats(least, 1.0), max_size=num_steps - 1))
    participation = draw(participations(num_steps))
    return num_steps, participation, np.array([1.0, *later_coefficients])


@settings(max_examples=150, deadline=None, derandomize=True)
@given(cases())
def test_no_banded_toeplitz_is_below_brute_force(case):
    """The bound is never too small, and exact where no two participations of an example meet in one row."""
    num_steps, participation, coefficients = case
    truth = brute_force(toeplitz(coefficients, num_steps), participation)
    bound = BandedToeplitz(coefficients).sensitivity(num_steps, participation)
    assert bound >= truth * ROUNDING

    max_participations, min_separation = participation.limits(num_steps)
    if max_participations == 1 or len(coefficients) <= min_separation:
        assert bound <= truth * EXACT


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(least=0.0))
def test_coefficients_that_are_not_negative(case):
    """Fixed epochs are exact; so is everything once the coefficients do not increase."""
    num_steps, participation, coefficients = case
    descending = np.sort(coefficients)[::-1]
    truth = brute_force(toeplitz(descending, num_steps), participation)
    bound = BandedToeplitz(descending).sensitivity(num_steps, participation)
    assert truth * ROUNDING <= bound <= truth * EXACT

    # In any order of the coefficients.
    if isinstance(participation, FixedEpochs):
        truth = brute_force(toeplitz(coefficients, num_steps), participation)
        bound = BandedToeplitz(coefficients).sensitivity(num_steps, participation)
        assert bound <= truth * EXACT


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases())
def test_no_banded_inverse_is_below_brute_force(case):
    """The bound of a banded inverse is never too small."""
    num_steps, participation, coefficients = case
    matrix = np.linalg.inv(toeplitz(coefficients, num_steps))
    truth = brute_force(matrix, participation)
    bound = BandedInverse(coefficients).sensitivity(num_steps, participation)
    assert bound >= truth * ROUNDING


@settings(max_examples=100, deadline=None, derandomize=True)
@given(cases(), st.lists(st.floats(-1.0, 1.0), min_size=3, max_size=3))
def test_no_buffered_toeplitz_is_below_brute_force(case, scale):
    """The bound is never too small, and exact where the coefficients are positive and do not increase."""
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
    """The bound of any matrix is never too small, and exact for one participation, and for epochs of positive ones."""
    num_steps = data.draw(st.integers(1, 8))
    participation = data.draw(participations(num_steps))
    seed = data.draw(st.integers(0, 10**6))
    entries = np.random.default_rng(seed).normal(size=(num_steps, num_steps))
    matrix = np.tril(entries)
    np.fill_diagonal(matrix, 1.0)

    truth = brute_force(matrix, participation)
    bound = Dense(matrix).sensitivity(num_steps, participation)
    assert bound >= truth * ROUNDING
    max_participations, _ = participation.limits(num_steps)
    if max_participations == 1:
        assert bound <= truth * EXACT

    if isinstance(participation, FixedEpochs):
        positive = np.abs(matrix)
        bound = Dense(positive).sensitivity(num_steps, participation)
        assert bound <= brute_force(positive, participation) * EXACT


def test_vectors_may_be_worse_than_signs():
    """Three columns at 120 degrees: signs reach 2, unit vectors 3, and the bound holds for those."""
    cosines = np.array([[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]])
    gram = cosines + 1e-6 * np.eye(3)

    # The lower-triangular factor C with C^T C = gram is a Cholesky factor from the other end.
    factor = np.linalg.cholesky(gram[::-1, ::-1]).T[::-1, ::-1]
    height = 0.75**0.5
    unit_vectors = np.array([[1.0, 0.0], [-0.5, height], [-0.5, -height]])
    attained = np.linalg.norm(factor @ unit_vectors)
    assert attained > brute_force(factor, MinSep(3, 1)) + 0.1
    bound = Dense(np.tril(factor)).sensitivity(3, MinSep(3, 1))
    assert bound >= attained


@pytest.mark.parametrize("strategy", [lambda_cgd(0.9), lambda_cgd(1.0), bisr(4), bisr(6, 0.9, 0.01), bisr(12)])
@pytest.mark.parametrize("participation", [SingleParticipation(), MinSep(3, 3), MinSep(5, 1), FixedEpochs(3)])
def test_closed_forms_are_exact(strategy, participation):
    """A strategy in closed form has a bound that is never too small, and exact where its column does not increase."""
    matrix = matrix_of(strategy, 12)
    truth = brute_force(matrix, participation)
    bound = strategy.sensitivity(12, participation)
    assert bound >= truth * ROUNDING
    column = matrix[:, 0]
    if np.all(np.diff(column) <= 1e-12):
        assert truth * ROUNDING <= bound <= truth * EXACT


def test_an_increase_costs_a_long_run_little():
    """The bound for coefficients that go up once is close to what the first pattern attains."""
    column = np.concatenate([[1.0, 0.5, 0.6], np.geomspace(0.5, 1e-3, 20_000)])
    num_steps = len(column)
    bound = BandedToeplitz(column).sensitivity(num_steps, MinSep(4, 5000))

    # The first pattern adds up four copies of the column, 5000 steps apart.
    total = np.zeros(num_steps)
    for shift in range(0, 20_000, 5000):
        total[shift:] += column[: num_steps - shift]
    attained = np.linalg.norm(total)
    assert attained <= bound <= attained * (1 + 1e-9)


def exact_reciprocal(coefficients, num_steps):
    """Return the first coefficients of the power series 1 / c(x), as fractions."""
    fractions = [Fraction(coefficient) for coefficient in coefficients]
    exact = []
    for step in range(num_steps):
        # The coefficient of x^step in c(x) / c(x) is 1 for step 0 and 0 for all others.
        remainder = Fraction(int(step == 0))
        for lag in range(1, min(step, len(fractions) - 1) + 1):
            remainder -= fractions[lag] * exact[step - lag]
        exact.append(remainder / fractions[0])
    return exact


def assert_within_error(series, step, truth):
    """Check, in rational arithmetic, that a value of a series is off by its certified error at most."""
    value = Fraction(float(series.values[step]))
    error = Fraction(float(series.errors[step]))
    assert abs(value - truth) <= error


@pytest.mark.parametrize("coefficients", [[1.0, -1.0], [2.0, -1.5, 0.3], [1.0, 0.5, -0.5, 0.25], [3.0, -1.0, -1.0]])
def test_the_error_of_the_reciprocal_series_is_bounded(coefficients):
    """The coefficients of 1 / c(x) are within the certified errors of exact rational arithmetic."""
    num_steps = 60
    exact = exact_reciprocal(coefficients, num_steps)
    series = BandedInverse(coefficients).column(num_steps)
    for step in range(num_steps):
        assert_within_error(series, step, exact[step])
    assert series.errors.max() < 1e-9 * np.abs(series.values).max()


def test_the_error_of_geometric_sums_is_bounded():
    """The sums of geometric series are within the certified errors of exact rational arithmetic."""
    decay = [0.999, 0.5, 0.1]
    scale = [0.3, -0.2, 0.1]
    series = BufferedToeplitz(decay, scale).column(200)
    for step in range(1, 200):
        truth = Fraction(0)
        for factor, weight in zip(decay, scale, strict=True):
            truth += Fraction(weight) * Fraction(factor) ** (step - 1)
        assert_within_error(series, step, truth)


def test_a_series_that_explodes_is_refused():
    """Coefficients that grow beyond all numbers are refused, without a warning of NumPy."""
    strategy = BandedInverse([1.0, -3.0])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ValueError, match="grows too fast"):
            strategy.sensitivity(1000, SingleParticipation())


def test_what_is_attained_is_below_the_truth_in_a_long_run():
    """A difference of long running sums is rounded downwards here, and upwards in the bound."""
    strategy = lambda_cgd(1.0)
    num_steps = 100_000
    truth = np.sqrt(1 + 4 * (num_steps - 1))
    attained = strategy.attained(num_steps, MinSep(2, 1))
    bound = strategy.sensitivity(num_steps, MinSep(2, 1))
    assert truth * (1 - 1e-6) <= attained <= truth <= bound <= truth * (1 + 1e-6)
