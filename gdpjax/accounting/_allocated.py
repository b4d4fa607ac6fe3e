"""Brackets on the runs of random allocation that a ledger holds, alone or beside other events.

Of an epoch whose last steps were not made, what was released is a part of what the whole epoch would have released: the
run is at most E epochs from above, and at least E - 1 from below.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gdpjax._core.types import Bounds
from gdpjax.accounting import _allocation, _numeric
from gdpjax.accounting._ledgers import Described, check_relations, describe, events_of
from gdpjax.accounting._overflow import Lost
from gdpjax.ledger import AllocationEvent, AnyEvent, Ledger, TruncatedPoissonEvent

_EVERYTHING = {"epsilon": math.inf, "delta": 1.0, "tradeoff": 0.0, "mu": math.inf}


class Allocated:
    """A run with random allocation, split into that and the rest.

    Attributes:
        allocations: the events of random allocation.
        rest: the others, as a run.
        lost: what all of them may lose.
    """

    def __init__(self, run: Ledger | AnyEvent) -> None:
        events = events_of(run)
        self.allocations = [event for event in events if isinstance(event, AllocationEvent)]
        others = [event for event in events if not isinstance(event, AllocationEvent)]
        if any(isinstance(event, TruncatedPoissonEvent) for event in others):
            raise ValueError("no bound is known for a Ledger with both random allocation and truncated Poisson batches")
        check_relations(events)
        described = describe(Ledger(others), 1)
        self.rest = _numeric.prepare(described.family, described.columns).run
        self.lost = lost_of(self.allocations, described)

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
        schemes = [
            _allocation.make_scheme(
                event.noise_multiplier,
                event.steps_per_epoch,
                event.num_epochs,
                event.num_selected,
                event.bins == "fixed",
            )
            for event in allocations
        ]
        return _allocation.bracket(question, _allocation.AllocationRun(schemes, self.rest), at)


def lost_of(allocations: Sequence[AllocationEvent], rest: Described) -> Lost:
    """Return the probabilities of failure and overflow of epochs of random allocation and the rest of a run."""
    silent = math.fsum(event.overflow for event in allocations if not event.announced)
    announced = math.fsum(event.overflow for event in allocations if event.announced)
    return rest.lost._replace(
        silent=min(rest.lost.silent + silent, 1.0),
        announced=min(rest.lost.announced + announced, 1.0),
        largest_loss=math.inf,
    )


def _finished(event: AllocationEvent) -> list[AllocationEvent]:
    """The event without an epoch that was not finished."""
    if not event.missing_steps:
        return [event]
    if event.num_epochs == 1:
        return []
    return [dataclasses.replace(event, num_epochs=event.num_epochs - 1, missing_steps=0)]
