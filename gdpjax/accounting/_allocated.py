"""The curve of a run with random allocation, alone or beside other events of its Ledger.

Of an epoch whose last steps were not made, what was released is a part of what the whole epoch would have released: the
run is at most E epochs from above, and at least E - 1 from below.
"""

import dataclasses
import math
from collections.abc import Sequence

from gdpjax._composition import prepare
from gdpjax._composition._run_description import RunDescription
from gdpjax.accounting._allocation import AllocationCurve, make_scheme
from gdpjax.accounting._combinators import Between
from gdpjax.accounting._ledgers import Described, check_relations, describe, events_of
from gdpjax.accounting._overflow import Lost, with_failure
from gdpjax.ledger import AllocationEvent, AnyEvent, Ledger, TruncatedPoissonEvent
from gdpjax.tradeoff import CertifiedCurve, NoGuarantee


def curve_of_allocation(run: Ledger | AnyEvent) -> CertifiedCurve:
    """Return the curve of a run with random allocation."""
    events = events_of(run)
    allocations = [event for event in events if isinstance(event, AllocationEvent)]
    others = [event for event in events if not isinstance(event, AllocationEvent)]
    if any(isinstance(event, TruncatedPoissonEvent) for event in others):
        raise ValueError("no bound is known for a Ledger with both random allocation and truncated Poisson batches")
    check_relations(events)
    described = describe(Ledger(others), 1)
    rest = prepare(described.family, described.columns).run

    # Epochs that were not finished are there from above only.
    curve = _curve_of_epochs(allocations, rest)
    finished = [whole for event in allocations for whole in _finished(event)]
    if finished != allocations:
        curve = Between(curve, _curve_of_epochs(finished, rest))
    return with_failure(curve, lost_of(allocations, described))


def _curve_of_epochs(allocations: Sequence[AllocationEvent], rest: RunDescription) -> CertifiedCurve:
    """Return the curve of whole epochs and the rest, if nothing is lost."""
    if not allocations:
        # Without these events less is released, and only ends that say what nothing would say are needed.
        return NoGuarantee()
    schemes = []
    for event in allocations:
        numbers = (event.noise_multiplier, event.steps_per_epoch, event.num_epochs, event.num_selected)
        schemes.append(make_scheme(*numbers, event.bins == "fixed"))
    return AllocationCurve(schemes, rest)


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
    """Return the event without an epoch that was not finished."""
    if not event.missing_steps:
        return [event]
    if event.num_epochs == 1:
        return []
    return [dataclasses.replace(event, num_epochs=event.num_epochs - 1, missing_steps=0)]
