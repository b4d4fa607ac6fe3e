"""The curve of a run with events that are given by outcomes, such as random allocation, beside other events.

Of an epoch whose last steps were not made, what was released is a part of what the whole epoch would have released: the
run is at most E epochs from above, and at least E - 1 from below.
"""

import dataclasses
import math
from collections.abc import Sequence

from gdpjax._composition import prepare
from gdpjax._composition._run_description import RunDescription
from gdpjax.accounting._allocation import OutcomesCurve, Sides, make_scheme
from gdpjax.accounting._combinators import Between, Meet
from gdpjax.accounting._ledgers import Described, check_relations, describe, events_of
from gdpjax.accounting._outcomes import is_given_by_outcomes, sides_of
from gdpjax.accounting._overflow import Lost, with_failure
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    LaplaceEvent,
    Ledger,
    OutcomesEvent,
    ShuffledEvent,
    TruncatedPoissonEvent,
)
from gdpjax.tradeoff import CertifiedCurve, Laplace, NoGuarantee, compose, subsample

_FEW = 1000


def curve_of_outcomes(run: Ledger | AnyEvent) -> CertifiedCurve:
    """Return the curve of a run with random allocation or other events that are given by outcomes."""
    events = events_of(run)
    allocations = [event for event in events if isinstance(event, AllocationEvent)]
    given = [
        event for event in events if isinstance(event, LaplaceEvent | OutcomesEvent) and is_given_by_outcomes(event)
    ]
    others = [event for event in events if event not in allocations and event not in given]
    for event in others:
        if isinstance(event, TruncatedPoissonEvent | ShuffledEvent):
            first = type((*allocations, *given)[0]).__name__
            raise ValueError(f"no bound is known for a Ledger with both {type(event).__name__} and {first}")
    check_relations(events)
    described = describe(Ledger(others), 1)
    rest = prepare(described.family, described.columns).run

    # Epochs that were not finished are there from above only.
    outcomes = sides_of(given, alone=not allocations and not others)
    curve = _curve_of_epochs(allocations, rest, outcomes)
    finished = [whole for event in allocations for whole in _finished(event)]
    if finished != allocations:
        curve = Between(curve, _curve_of_epochs(finished, rest, outcomes))
    curve = with_failure(curve, lost_of(allocations, described))

    # The composition of the curves of few releases is known better where example after example is hardly ever sampled.
    laplace = [event for event in given if isinstance(event, LaplaceEvent)]
    if len(laplace) < len(events) or sum(event.num_steps for event in laplace) > _FEW:
        return curve
    steps = [subsample(Laplace(event.epsilon), event.sampling_prob).one_direction for event in laplace]
    return Meet(
        curve, compose(*(step for step, event in zip(steps, laplace, strict=True) for _ in range(event.num_steps)))
    )


def _curve_of_epochs(
    allocations: Sequence[AllocationEvent], rest: RunDescription, outcomes: Sequence[Sides]
) -> CertifiedCurve:
    """Return the curve of whole epochs and the rest, if nothing is lost."""
    if not allocations and not outcomes:
        # Without these events less is released, and only ends that say what nothing would say are needed.
        return NoGuarantee()
    schemes = []
    for event in allocations:
        numbers = (event.noise_multiplier, event.steps_per_epoch, event.num_epochs, event.num_selected)
        schemes.append(make_scheme(*numbers, event.bins == "fixed"))
    return OutcomesCurve(schemes, rest, outcomes)


def lost_of(allocations: Sequence[AllocationEvent], rest: Described) -> Lost:
    """Return the probabilities of failure and overflow of epochs of random allocation and the rest of a run."""
    silent = math.fsum(event.overflow for event in allocations if not event.announced)
    announced = math.fsum(event.overflow for event in allocations if event.announced)
    return rest.lost._replace(
        silent=min(rest.lost.silent + silent, 1.0),
        announced=min(rest.lost.announced + announced, 1.0),
        largest_loss=math.inf,
        is_symmetric=False,
    )


def _finished(event: AllocationEvent) -> list[AllocationEvent]:
    """Return the event without an epoch that was not finished."""
    if not event.missing_steps:
        return [event]
    if event.num_epochs == 1:
        return []
    return [dataclasses.replace(event, num_epochs=event.num_epochs - 1, missing_steps=0)]
