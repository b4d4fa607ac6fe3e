"""Brackets of ledgers that hold less than what was run: merged rows, and numbers that were rounded."""

import dataclasses

import pytest

from gdpjax import Event
from gdpjax.accounting import certified, delta_bounds, epsilon_bounds, mu_bounds
from gdpjax.ledger import (
    AllocationEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
    UniformEvent,
    init_ledger,
    ledger_from_state,
    record_step,
)

STEPS = [(4.0, 0.25), (3.0, 0.25), (2.0, 0.5), (3.0, 0.125)]
SCHEMES = {
    "poisson": Event(1.0, 0.1, 1),
    "uniform": UniformEvent(1.0, 0.1, 1),
    "truncated_poisson": TruncatedPoissonEvent(1.0, 0.1, 1, max_examples=1000, capacity=300),
    "allocation": AllocationEvent(1.0, 4),
    "shuffled": ShuffledEvent(1.0, 4),
    "cyclic_poisson": CyclicPoissonEvent(1.0, 0.1, 1, num_groups=2),
    "correlated": CorrelatedGaussianEvent(1.0, 4, max_participations=2, min_separation=2),
}


def recorded(sampling, steps, num_rows):
    """Return the ledger of steps, each a noise multiplier and a sampling probability."""
    state = init_ledger(num_rows, SCHEMES[sampling])
    for noise_multiplier, sampling_prob in steps:
        state = record_step(state, noise_multiplier, sampling_prob, 0.0)
    return ledger_from_state(state)


def epsilon_of(run):
    return epsilon_bounds(run, delta=1e-5)


@pytest.mark.parametrize(
    ("ask", "sampling"), [(epsilon_of, "poisson"), (epsilon_of, "uniform"), (mu_bounds, "poisson")]
)
def test_a_bracket_of_merged_rows_holds_that_of_the_steps(ask, sampling):
    """Trap 84: the least noise of all of them made a lower end above the truth."""
    with pytest.warns(UserWarning, match="3 steps of different noise multipliers"):
        merged = recorded(sampling, STEPS, 2)
    assert [(event.num_steps, event.is_exact) for event in merged] == [(1, True), (3, False)]
    truth, bracket = ask(recorded(sampling, STEPS, 4)), ask(merged)
    assert bracket.lower <= truth.lower <= truth.upper <= bracket.upper
    assert bracket.lower == ask(merged[0]).lower


def test_a_tradeoff_curve_of_merged_rows_holds_that_of_the_steps():
    with pytest.warns(UserWarning, match="share one event"):
        merged = certified(recorded("poisson", STEPS, 1)).tradeoff(0.1)
    truth = certified(recorded("poisson", STEPS, 4)).tradeoff(0.1)
    assert merged.lower <= truth.lower <= truth.upper <= merged.upper


@pytest.mark.parametrize("sampling", SCHEMES)
def test_the_event_of_merged_steps_charges_each_for_the_worst_and_proves_nothing(sampling):
    with pytest.warns(UserWarning, match="share one event"):
        (event,) = recorded(sampling, STEPS, 1)
    assert not event.is_exact
    assert (event.noise_multiplier, event.num_steps, getattr(event, "sampling_prob", 0.5)) == (2.0, 4, 0.5)
    worst = dataclasses.replace(event, is_exact=True)
    bracket, of_worst = epsilon_bounds(event, delta=1e-5), epsilon_bounds(worst, delta=1e-5)
    assert (bracket.lower, bracket.upper) == (0.0, of_worst.upper)


@pytest.mark.parametrize(("ask", "at"), [(epsilon_bounds, {"delta": 1e-5}), (delta_bounds, {"epsilon": 3.0})])
@pytest.mark.parametrize(("rtol", "prob"), [(1e-3, 1 / 30), (1e-5, 1 / 30), (1e-6, 1 / 30), (1e-3, 1.0)])
def test_a_bracket_of_recorded_steps_holds_that_of_the_noise_that_was_added(rtol, prob, ask, at):
    """Trap 84: float32 rounds the noise multiplier down, and the margin of the noise is larger still."""
    state = init_ledger(1, SCHEMES["poisson"])
    state = record_step(state, 1.3, prob, 0.0)
    run = dataclasses.replace(ledger_from_state(state)[0], num_steps=1000)
    truth = ask(Event(1.3 * (1 + 2.0**-21), prob, 1000), **at, rtol=1e-6)
    bracket = ask(run, **at, rtol=rtol)
    assert truth.upper * (1 - 2 * rtol - 1e-4) < bracket.lower <= truth.upper
    assert truth.lower <= bracket.upper


def test_the_bracket_of_recorded_correlated_noise_holds_that_of_the_noise_that_was_added():
    state = init_ledger(1, SCHEMES["correlated"])
    for _ in range(4):
        state = record_step(state, 1.1, 1.0, 0.0)
    bracket = epsilon_bounds(ledger_from_state(state), delta=1e-5)
    added = CorrelatedGaussianEvent(1.1 * (1 + 2.0**-21), 4)
    assert bracket.lower <= epsilon_bounds(added, delta=1e-5).upper <= bracket.upper
