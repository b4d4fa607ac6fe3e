"""The public certified functions: both forms of call, ledgers and overflow."""

import jax
import numpy as np
import pytest

from gdpjax import Event, Ledger, NeighboringRelation, accounting
from gdpjax.accounting import epsilon_bounds
from tests.refused import refusals

RUN = (1.3, 256 / 60_000, 3516)


def ledger(overflow=0.0, relation=None):
    thirds = [(1.3, 256 / 60_000, steps) for steps in (1000, 1000, 1516)]
    return Ledger([Event(*run, neighboring_relation=relation, overflow=overflow / 3) for run in thirds])


def test_equal_phases_agree_with_one_event():
    single, split = epsilon_bounds(*RUN, 1e-5), epsilon_bounds(ledger(), delta=1e-5)
    np.testing.assert_allclose(split, single, rtol=1e-9)
    np.testing.assert_allclose(epsilon_bounds(Event(*RUN), delta=1e-5), single, rtol=1e-9)
    special = ledger(relation=NeighboringRelation.REPLACE_SPECIAL)
    np.testing.assert_allclose(epsilon_bounds(special, delta=1e-5), single, rtol=1e-9)
    special = epsilon_bounds(*RUN, 1e-5, neighboring_relation=NeighboringRelation.REPLACE_SPECIAL)
    assert special == single


def test_different_phases_lie_between_their_extremes():
    phases = [Event(1.0, 0.01, 300), Event(2.0, 0.02, 700), Event(7.0, 0.0, 50)]
    bounds, reversed_bounds = (
        epsilon_bounds(Ledger(run), delta=np.array([1e-6, 1e-4])) for run in (phases, phases[::-1])
    )
    np.testing.assert_allclose(bounds, reversed_bounds, rtol=1e-9)
    assert bounds.lower.shape == (2,)
    alone = epsilon_bounds(1.0, 0.01, 300, np.array([1e-6, 1e-4])).lower
    assert (bounds.lower > alone).all()
    assert (bounds.upper < epsilon_bounds(1.0, 0.02, 1000, np.array([1e-6, 1e-4])).upper).all()


def test_overflow_is_paid_and_the_bracket_contains_both_extremes():
    free, paid = epsilon_bounds(ledger(), delta=1e-5), epsilon_bounds(ledger(9e-6), delta=1e-5)
    assert paid.lower < free.lower < free.upper < paid.upper
    # The two formulas of the module, from the arrays' own brackets.
    assert paid.upper == pytest.approx(float(epsilon_bounds(*RUN, 1e-6 / (1 - 9e-6)).upper), rel=1e-4)
    worse = 1e-5 + 9e-6 * (1 + np.exp(float(paid.upper)))
    assert paid.lower == pytest.approx(float(epsilon_bounds(*RUN, worse).lower), rel=1e-4)
    assert epsilon_bounds(ledger(2e-5), delta=1e-5) == (0.0, np.inf)
    tiny = epsilon_bounds(ledger(1e-12), delta=1e-5)
    np.testing.assert_allclose(tiny, free, rtol=1e-6)


test_bad_calls = refusals(
    (lambda: epsilon_bounds(ledger(), 1e-5), "exactly f.ledger, delta="),
    (lambda: epsilon_bounds(ledger()), "exactly f.ledger, delta="),
    (lambda: epsilon_bounds(*RUN, 1e-5, sampling="shuffle"), "sampling must be one of"),
    (
        lambda: epsilon_bounds(*RUN, 1e-5, sampling="uniform", neighboring_relation="replace_special"),
        "proved bound",
    ),
    (lambda: epsilon_bounds(ledger(1e-6), delta=np.nan), "delta must be"),
    (lambda: jax.jit(lambda d: epsilon_bounds(ledger(1e-6), delta=d))(1e-5), "outside compiled code"),
)


def test_a_plan_or_a_state_in_the_place_of_a_run_is_told_where_to_ask():
    class Plan:
        epsilon_bounds = None

    for function in (epsilon_bounds, accounting.certified):
        with pytest.raises(ValueError, match=r"ask a Plan itself: \.epsilon_bounds\(\)"):
            function(Plan())
        with pytest.raises(ValueError, match=r"give gdpjax\.ledger_of\(state\)"):
            function((1, 2))
