"""Brackets on the runs of random allocation that a ledger holds, alone or beside other events.

Of an epoch whose last steps were not made, what was released is a part of what the whole epoch would have released: the
run is at most E epochs from above, and at least E - 1 from below.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gdpjax._core.types import Bounds
from gdpjax.accounting._allocation import allocation_delta_bounds, allocation_epsilon_bounds, of_allocation
from gdpjax.accounting._ledgers import Described, check_relations, describe, events_of
from gdpjax.accounting._overflow import Lost
from gdpjax.ledger import AllocationEvent, AnyEvent, Ledger, TruncatedPoissonEvent

_EVERYTHING = {"epsilon": math.inf, "delta": 1.0, "tradeoff": 0.0, "mu": math.inf}


def has_allocation(run: Ledger | AnyEvent) -> bool:
    """Whether the run has an event of random allocation."""
    return any(isinstance(event, AllocationEvent) for event in events_of(run))


class Allocated:
    """A run with random allocation, split into that and the rest.

    Attributes:
        allocations: the events of random allocation.
        rest: the others, described; None if there are none.
        lost: what all of them may lose.
    """

    def __init__(self, run: Ledger | AnyEvent) -> None:
        events = events_of(run)
        self.allocations = [event for event in events if isinstance(event, AllocationEvent)]
        others = [event for event in events if not isinstance(event, AllocationEvent)]
        if any(isinstance(event, TruncatedPoissonEvent) for event in others):
            raise ValueError("no bound is known for a Ledger with both random allocation and truncated Poisson batches")
        check_relations(events)
        self.rest = describe(Ledger(others), 1) if others else None
        self.lost = lost_of(self.allocations, self.rest)

    def answer(self, question: str, at: np.ndarray) -> Bounds:
        """The bracket of the run without what is lost."""
        whole = self._of(self.allocations, question, at)
        if not any(event.missing_steps for event in self.allocations):
            return whole
        part = self._of([begun for event in self.allocations for begun in _finished(event)], question, at)
        if question == "tradeoff":
            return Bounds(whole.lower, np.maximum(part.upper, whole.lower))
        return Bounds(np.minimum(part.lower, whole.upper), whole.upper)

    def _of(self, allocations: Sequence[AllocationEvent], question: str, at: np.ndarray) -> Bounds:
        """The bracket of whole epochs and the rest."""
        if any(event.noise_multiplier == 0 for event in allocations):
            everything = np.full(np.shape(at), _EVERYTHING[question])[()]
            return Bounds(everything, everything)
        if not allocations:
            # Only ends that say what nothing would say are needed: without these events less is released.
            nothing = 1.0 - at if question == "tradeoff" else np.zeros_like(at)
            return Bounds(nothing, nothing)
        columns = [
            np.array([float(value) for value in column])
            for column in zip(*(_numbers(event) for event in allocations), strict=True)
        ]
        rest = self.rest if self.rest is not None and self.rest.releases else None
        if rest is None and len(allocations) == 1 and question in ("epsilon", "delta"):
            ask = allocation_epsilon_bounds if question == "epsilon" else allocation_delta_bounds
            noise, steps, epochs, selected, _ = (column[0] for column in columns)
            return ask(noise, steps, epochs, at, num_selected=selected, bins=allocations[0].bins)
        others = () if rest is None else rest.columns
        return of_allocation(question, rest is not None, len(others) > 3)(*columns, *others, at)


def lost_of(allocations: Sequence[AllocationEvent], rest: Described | None) -> Lost:
    """Return the probabilities of failure and overflow of epochs of random allocation and the rest of a run."""
    before = Lost(0.0, 0.0) if rest is None else rest.lost
    silent = math.fsum(event.overflow for event in allocations if not event.announced)
    announced = math.fsum(event.overflow for event in allocations if event.announced)
    return before._replace(
        silent=min(before.silent + silent, 1.0),
        announced=min(before.announced + announced, 1.0),
        largest_loss=math.inf,
    )


def _finished(event: AllocationEvent) -> list[AllocationEvent]:
    """The event without an epoch that was not finished."""
    if not event.missing_steps:
        return [event]
    if event.num_epochs == 1:
        return []
    return [dataclasses.replace(event, num_epochs=event.num_epochs - 1, missing_steps=0)]


def _numbers(event: AllocationEvent) -> tuple[float, int, int, int, bool]:
    fixed = event.bins == "fixed"
    return event.noise_multiplier, event.steps_per_epoch, event.num_epochs, event.num_selected, fixed
