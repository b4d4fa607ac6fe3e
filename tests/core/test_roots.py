"""Bracketed search: bisection, and the secant search that stays inside a bracket."""

import jax.numpy as jnp
import numpy as np
import pytest

from gdpjax._core.roots import Axis, advance, begin, bisect, geometric_midpoint


def test_returns_the_side_that_holds_even_at_a_jump():
    """The condition holds at one end and fails at the other, and the edge is between them."""
    edges = jnp.array([0.3, 2.0, 700.0])
    holds, fails = bisect(
        lambda x: x >= edges,
        jnp.full(3, 1e6),
        jnp.full(3, 1e-6),
        midpoint=geometric_midpoint,
        num_iterations=40,
    )
    assert (holds >= edges).all()
    assert (fails < edges).all()
    np.testing.assert_allclose(holds, edges, rtol=1e-6)


NOISE_AXIS = Axis(2.0**60, 2.0**-10)
STEPS_AXIS = Axis(1.0, 2.0**40, whole=True)


def secant_search(axis, excess, guess, slope=1.0):
    """Search on the host for the edge of excess(point) <= 0.

    Return the finished search and every point that was evaluated.
    """
    guesses = np.atleast_1d(np.asarray(guess, float))
    state = begin(axis, guesses, np.asarray(slope))
    points = []
    with np.errstate(all="ignore"):
        while not state.done.all():
            points.append(state.point)
            value = excess(state.point)
            state = advance(axis, state, value, value <= 0)
    return state, np.array(points)


EDGE = np.array([1e-2, 0.3, 1.0, 50.0, 1e9])


@pytest.mark.parametrize(
    ("excess", "most"),
    [
        (lambda x: np.log(EDGE / x), 8),  # the guessed slope is right
        (lambda x: 3.0 * np.log(EDGE / x), 9),
        (lambda x: np.expm1(np.minimum(2.0 * np.log(EDGE / x), 700.0)), 40),
        (lambda x: np.sign(EDGE - x * (1 - 1e-9)), 60),  # says nothing but the side
        (lambda x: np.where(x < EDGE, np.inf, -np.inf), 60),
        (lambda x: np.log(EDGE / x) ** 3, 60),  # no slope at the edge
        (lambda x: np.where(x < EDGE, 1e-9, -1e3), 60),  # a jump, and slopes that mislead
        (lambda x: np.log(EDGE / x) + 3e-4 * np.sin(1e6 * x), 60),  # not monotone
    ],
)
@pytest.mark.parametrize("guess", [1.0, 7.0, 0.0, np.nan, np.inf])
def test_secant_search_closes_a_bracket_it_evaluated(excess, most, guess):
    """Both ends of a closed bracket were evaluated, whatever the function and the guess are."""
    state, points = secant_search(NOISE_AXIS, excess, np.full(5, guess))
    assert (state.rounds < 60).all()
    assert (excess(state.holds) <= 0).all()
    assert (excess(state.fails) > 0).all()
    assert (state.holds / state.fails < 1 + 2.3e-6).all()
    assert (np.float32(state.holds) == state.holds).all()
    for i in range(5):
        assert state.holds[i] in points[:, i]
        assert state.fails[i] in points[:, i]
    if guess in (1.0, 7.0):
        assert state.rounds.max() <= most


def test_secant_search_over_whole_numbers_finds_the_last_one():
    """The bracket is of two consecutive whole numbers around the edge."""
    edges = np.array([1.0, 2.4, 777.0, 1e6, 26_167_837.0])  # float32 does not hold the last one

    def excess(n):
        return 0.5 * np.log(n / (edges + 0.5))

    state, _ = secant_search(STEPS_AXIS, excess, np.full(5, 40.0), 0.5)
    np.testing.assert_array_equal(state.holds, np.floor(edges))
    np.testing.assert_array_equal(state.fails, np.floor(edges) + 1)
    assert state.rounds.max() <= 12


def test_secant_search_reports_an_edge_beyond_the_ends():
    """A condition that holds everywhere, or nowhere, is reported."""
    values = np.array([1.0, -1.0, np.nan, -np.inf])
    state, _ = secant_search(STEPS_AXIS, lambda n: values, np.full(4, 10.0))
    assert state.held.tolist() == [False, True, False, True]
    assert state.failed.tolist() == [True, False, True, False]
    assert (state.holds[[1, 3]] == 2.0**40).all()
    assert (state.rounds < 20).all()
