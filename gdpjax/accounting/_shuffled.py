"""Brackets on shuffled batches, as those of runs without them; proofs in docs/theory/shuffling.md.

`_run_curve.ShuffledCurve` asks the runs `from_above` and `from_below`, and the attacks `largest_sums`.

**From above** it is known in which step of an epoch an example takes part: a Gaussian release an epoch. That holds for
any permutations and any gradients.

**From below** an example may have a step of the epoch that was drawn for it alone, as in random allocation. The worst
data show no more where the gradients of all others are zero (or, under REPLACE_ONE, the opposite of the target's).
Under REPLACE_SPECIAL and ADD_OR_REMOVE_ONE the null example takes a place in a batch, which then lacks another example.
That shows more, and at small noise nearly all; `_largest_sum` bounds it from below.

The first of these lower ends counts the other events of a ledger, the second leaves them out.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gdpjax._core.types import Bounds, NeighboringRelation
from gdpjax.accounting import _truncated
from gdpjax.accounting._gdp import gdp_delta, gdp_epsilon, gdp_tradeoff
from gdpjax.accounting._largest_sum import LargestSums
from gdpjax.accounting._ledgers import events_of
from gdpjax.ledger import AllocationEvent, AnyEvent, Event, Ledger, SampledEvent, ShuffledEvent, UniformEvent

_ROUNDING = 1e-9
_REPLACED = NeighboringRelation.REPLACE_ONE
_SPECIAL = NeighboringRelation.REPLACE_SPECIAL
_GAUSSIAN_QUESTIONS = {"epsilon": gdp_epsilon, "delta": gdp_delta, "tradeoff": gdp_tradeoff}


def only_shuffled(run: Ledger | AnyEvent) -> list[ShuffledEvent] | None:
    """Return the events of a run of nothing but shuffled batches with noise, under one relation, or None."""
    events = []
    for event in events_of(run):
        if not isinstance(event, ShuffledEvent) or not event.noise_multiplier > 0:
            return None
        events.append(event)
    relations = {event.neighboring_relation for event in events}
    if len(relations) > 1:
        return None
    return events


def gaussian(events: Sequence[ShuffledEvent], question: str, at: np.ndarray) -> Bounds:
    """Bracket the answer of the Gaussian mechanism that reveals at least as much as the epochs of the events.

    Formula: mu^2 = sum of num_epochs / noise_multiplier^2.
    """
    squared_mu = math.fsum(event.num_epochs / event.noise_multiplier**2 for event in events)
    mu = math.sqrt(squared_mu) * (1.0 + 1e-12)
    if question == "mu":
        # A failure probability allows for a little less.
        return Bounds(np.zeros(np.shape(at))[()], np.full(np.shape(at), mu)[()])

    answer = np.asarray(_GAUSSIAN_QUESTIONS[question](at, mu))
    error = _ROUNDING * answer + 1e-300
    largest = np.inf if question == "epsilon" else 1.0
    lower = np.maximum(answer - error, 0.0)
    upper = np.minimum(answer + error, largest)
    return Bounds(lower[()], upper[()])


def from_above(run: Ledger | AnyEvent) -> Ledger:
    """Return a run that reveals at least as much: every epoch is one step that all examples are in."""
    events = []
    for event in events_of(run):
        events.append(_unamplified(event) if isinstance(event, ShuffledEvent) else event)
    return Ledger(events)


def from_below(run: Ledger | AnyEvent) -> Ledger:
    """Return a run that reveals at most as much: the step of an example in an epoch is drawn for it alone.

    Under REPLACE_ONE all events are said to be under REPLACE_SPECIAL, where fixed-size batches become Poisson batches:
    the pair of distributions is that of the same two data sets for all of them.
    """
    events = []
    for event in events_of(run):
        allocated = _allocated(event) if isinstance(event, ShuffledEvent) else event
        events.append(_relabelled(allocated))
    return _truncated.from_below(Ledger(events))


def largest_sums(run: Ledger | AnyEvent) -> LargestSums | None:
    """Return the attacks on the largest sums of the run's finished epochs, where a null example takes a place."""
    epochs = []
    for event in events_of(run):
        if not isinstance(event, ShuffledEvent) or event.neighboring_relation is _REPLACED:
            continue
        num_finished = event.num_epochs - (event.missing_steps > 0)
        if event.noise_multiplier and num_finished:
            epochs.append((event.noise_multiplier, event.steps_per_epoch, num_finished))
    if not epochs:
        return None
    return LargestSums(epochs)


def bounded_from_below(
    question: str,
    at: np.ndarray,
    end: np.ndarray,
    sums: LargestSums | None,
) -> np.ndarray:
    """Return the better of an end of the bracket and of the bound that the largest sums prove."""
    if sums is None:
        return end
    proved = getattr(sums, question)(at)
    if question == "tradeoff":
        return np.minimum(end, proved)
    return np.maximum(end, proved)


def _unamplified(event: ShuffledEvent) -> SampledEvent:
    """Return the event in which every example takes part in one step of each epoch, known to all."""
    sampled = UniformEvent if event.neighboring_relation is _REPLACED else Event
    return sampled(event.noise_multiplier, 1.0, event.num_epochs, event.neighboring_relation, event.overflow)


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
    return dataclasses.replace(
        event,
        neighboring_relation=_SPECIAL,
    )  # pyright: ignore[reportCallIssue]
