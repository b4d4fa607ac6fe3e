"""Brackets on the runs of random allocation that a ledger holds.

An `AllocationEvent` is accounted for by itself. Of an epoch whose last steps were not made, what was released is a
part of what the whole epoch would have released: the run is at most E epochs from above, and at least E - 1 from below.
"""

import math

import numpy as np

from gdpjax._core.types import Bounds
from gdpjax.accounting import _from_delta
from gdpjax.accounting._allocation import allocation_delta_bounds, allocation_epsilon_bounds
from gdpjax.ledger import AllocationEvent, AnyEvent, Ledger


def allocated(run: Ledger | AnyEvent, group_size: int) -> AllocationEvent | None:
    """The one event of a run of random allocation; None for a run without; ValueError for what has no bound."""
    events = run.events if isinstance(run, Ledger) else (run,)
    found = [event for event in events if isinstance(event, AllocationEvent)]
    if not found:
        return None
    if len(events) > 1:
        raise ValueError(
            f"an AllocationEvent is accounted for by itself, got a Ledger of {len(events)} events: add epsilons and "
            "deltas of its parts"
        )
    if group_size > 1:
        raise ValueError("group_size > 1 is available for poisson sampling, got allocation")
    return found[0]


def answer(event: AllocationEvent, question: str, at: np.ndarray) -> Bounds:
    """The bracket of the run without overflow."""
    at = np.asarray(at, np.float64)
    if event.noise_multiplier == 0:
        value = {"epsilon": math.inf, "delta": 1.0, "tradeoff": 0.0, "mu": math.inf}[question]
        everything = np.full(at.shape, value)
        return Bounds(everything, everything)
    if question in ("epsilon", "delta"):
        return _bracket(event, question, at)

    def epsilon_at(delta: np.ndarray) -> Bounds:
        return _bracket(event, "epsilon", delta)

    def delta_at(epsilon: np.ndarray) -> Bounds:
        return _bracket(event, "delta", epsilon)

    if question == "tradeoff":
        return _from_delta.tradeoff(epsilon_at, delta_at, at)
    times = math.sqrt(event.num_epochs * event.num_selected)  # an example takes part so many times, squared
    return _from_delta.mu(epsilon_at, delta_at, at, times / event.noise_multiplier * (1 + 1e-12))


def _bracket(event: AllocationEvent, question: str, at: np.ndarray) -> Bounds:
    ask = allocation_epsilon_bounds if question == "epsilon" else allocation_delta_bounds

    def of(epochs: int) -> Bounds:
        return ask(
            event.noise_multiplier,
            event.steps_per_epoch,
            epochs,
            at,
            num_selected=event.num_selected,
            bins=event.bins,
        )

    whole = of(event.num_epochs)
    if not event.missing_steps:
        return whole
    lower = of(event.num_epochs - 1).lower if event.num_epochs > 1 else np.zeros_like(at)
    return Bounds(np.minimum(lower, whole.upper), whole.upper)
