"""Announced overflow: a run that stops at a batch above its capacity and says so keeps a tight lower end."""

import dataclasses

import numpy as np
import pytest

from gdpjax import Event, Ledger
from gdpjax.accounting import delta_bounds, epsilon_bounds, tradeoff_bounds
from tests.accounting.closed_forms import gaussian_delta

TAU = 1e-3
ANNOUNCED = Event(0.5, 1.0, 1, overflow=TAU, announced=True)
SILENT = dataclasses.replace(ANNOUNCED, announced=False)


def test_the_bracket_holds_every_run_that_announces():
    """Overflow beside a Gaussian mechanism of mu 2: where it says nothing of the example, and where it says all."""
    for epsilon in (0.0, 1.0, 3.0):
        ideal, bounds = gaussian_delta(epsilon, 2.0), delta_bounds(ANNOUNCED, epsilon=epsilon)
        says_nothing, says_all = (1 - TAU) * ideal, TAU + (1 - TAU) * ideal
        assert ideal - 1.001 * TAU < bounds.lower <= says_nothing < says_all <= bounds.upper < says_all * 1.001
        # An overflow that is not announced may also put the other data set's outputs in their place.
        assert delta_bounds(SILENT, epsilon=epsilon).lower <= max(ideal - TAU * (1 + np.exp(epsilon)), 0.0)


def test_a_large_epsilon_is_tight():
    """An example shows with e^epsilon times the probability of an overflow, which silent overflow must allow for."""
    event = Event(0.3, 256 / 60_000, 3516, overflow=1.7e-13, announced=True)
    announced = epsilon_bounds(event, delta=1e-5)
    silent = epsilon_bounds(dataclasses.replace(event, announced=False), delta=1e-5)
    assert announced.upper == silent.upper
    assert silent.lower < 0.9 * silent.upper < announced.upper < 1.002 * announced.lower


def test_both_kinds_in_one_ledger():
    free = Event(0.5, 1.0, 1)
    both = Ledger([ANNOUNCED, dataclasses.replace(SILENT, overflow=1e-5)])
    ideal = delta_bounds(Ledger([free, free]), epsilon=2.0)
    bounds = delta_bounds(both, epsilon=2.0)
    assert bounds.lower == pytest.approx(float(ideal.lower) - TAU - 1e-5 * (1 + np.exp(2.0)), rel=1e-6)
    tau = TAU + 1e-5
    assert bounds.upper == pytest.approx(tau + (1 - tau) * float(ideal.upper), rel=1e-9)


def test_the_curve_moves_by_tau_alone():
    curve = tradeoff_bounds(dataclasses.replace(SILENT, overflow=0.0), alpha=1e-4)
    assert tradeoff_bounds(ANNOUNCED, alpha=1e-4).upper == pytest.approx(float(curve.upper) + TAU, rel=1e-9)
    assert tradeoff_bounds(ANNOUNCED, alpha=1e-4).lower == tradeoff_bounds(SILENT, alpha=1e-4).lower
    assert tradeoff_bounds(SILENT, alpha=1e-4).upper > float(curve.upper) + 40 * TAU


def test_ledgers_without_the_field_are_not_announced():
    text = Ledger([ANNOUNCED]).to_json()
    assert Ledger.from_json(text)[0].announced
    older = text.replace('"announced": true', '"sampling": "poisson"').replace('ledger": 2', 'ledger": 1')
    assert older != text
    assert not Ledger.from_json(older)[0].announced
    with pytest.raises(ValueError, match="announced must be True or False"):
        Event(1.0, 0.1, 1, announced="no")
