"""Brackets on shuffled batches, as those of runs without them; proofs in docs/theory/shuffling.md.

A `ShuffledCurve` lies between the runs `from_above` and `from_below` and the attacks `largest_sums`.

**From above** it is known in which step of an epoch an example takes part: a Gaussian release an epoch. That holds for
any permutations and any gradients.

**From below** an example may have a step of the epoch that was drawn for it alone, as in random allocation. The worst
data show no more where the gradients of all others are zero (or, under REPLACE_ONE, the opposite of the target's).
Under REPLACE_SPECIAL and ADD_OR_REMOVE_ONE the null example takes a place in a batch, which then lacks another example.
That shows more, and at small noise nearly all; `_largest_sum` bounds it from below.

The first of these lower ends counts the other events of a ledger, the second leaves them out.
"""

import dataclasses

from gdpjax._core.types import FAILURE, Array, Bounds, NeighboringRelation
from gdpjax.accounting import _truncated
from gdpjax.accounting._combinators import Between
from gdpjax.accounting._largest_sum import LargestSums
from gdpjax.accounting._ledgers import events_of
from gdpjax.ledger import (
    AllocationEvent,
    AnyEvent,
    ApproximateDPEvent,
    Event,
    GaussianEvent,
    Ledger,
    ShuffledEvent,
    UniformEvent,
)

_REPLACED = NeighboringRelation.REPLACE_ONE
_SPECIAL = NeighboringRelation.REPLACE_SPECIAL


class ShuffledCurve(Between):
    """The certified curve of a run with shuffled batches."""

    def reported_mu(self, failure: Array = FAILURE) -> Bounds:
        """Return the bracket of `mu`: the truth may be anywhere in it, and no narrower one is known."""
        return self.mu(failure)


def from_above(run: Ledger | AnyEvent) -> Ledger:
    """Return a run that reveals at least as much: every epoch is one step that all examples are in."""
    events = []
    for event in events_of(run):
        events += _unamplified(event) if isinstance(event, ShuffledEvent) else [event]
    return Ledger(events)


def from_below(run: Ledger | AnyEvent) -> Ledger:
    """Return a run that reveals at most as much: the step of an example in an epoch is drawn for it alone.

    Under REPLACE_ONE all events are said to be under REPLACE_SPECIAL, where fixed-size batches become Poisson batches:
    the pair of distributions is that of the same two data sets for all of them. In Poisson batches the null example is
    one that may replace, at half the distance.
    """
    events = []
    for event in events_of(run):
        allocated = _allocated(event) if isinstance(event, ShuffledEvent) else event
        events.append(_relabelled(allocated))
    return _truncated.from_below(Ledger(events))


def largest_sums(run: Ledger | AnyEvent) -> list[LargestSums]:
    """Return the attacks on the largest sums of the run's finished epochs, if a null example takes a place in any."""
    epochs = []
    for event in events_of(run):
        if not isinstance(event, ShuffledEvent) or event.neighboring_relation is _REPLACED:
            continue
        num_finished = event.num_epochs - (event.missing_steps > 0)
        if event.noise_multiplier and num_finished:
            epochs.append((event.noise_multiplier, event.steps_per_epoch, num_finished))
    return [LargestSums(epochs)] if epochs else []


def _unamplified(event: ShuffledEvent) -> list[AnyEvent]:
    """Return the event in which every example takes part in one step of each epoch, known to all."""
    relation = event.neighboring_relation
    assert relation is not None
    steps = GaussianEvent(event.noise_multiplier, event.num_epochs, relation)
    # From above an overflow is a failure.
    lost = ApproximateDPEvent(0.0, event.overflow, neighboring_relation=relation)
    return [steps, lost] if event.overflow else [steps]


def _allocated(event: ShuffledEvent) -> AllocationEvent:
    """Return the event of random allocation, without the overflow: the lower end holds for any permutations."""
    relation = _SPECIAL if event.neighboring_relation is _REPLACED else event.neighboring_relation
    return AllocationEvent(
        event.noise_multiplier,
        event.steps_per_epoch,
        event.num_epochs,
        neighboring_relation=relation,
        missing_steps=event.missing_steps,
    )


def _relabelled(event: AnyEvent) -> AnyEvent:
    """Return the event under REPLACE_SPECIAL if it is under REPLACE_ONE."""
    if event.neighboring_relation is not _REPLACED:
        return event
    if isinstance(event, UniformEvent):
        numbers = (event.noise_multiplier, event.sampling_prob, event.num_steps)
        return Event(*numbers, _SPECIAL, event.overflow, event.is_exact)
    if isinstance(event, Event):
        return dataclasses.replace(event, noise_multiplier=2.0 * event.noise_multiplier, neighboring_relation=_SPECIAL)
    return dataclasses.replace(
        event,
        neighboring_relation=_SPECIAL,
    )  # pyright: ignore[reportCallIssue]
