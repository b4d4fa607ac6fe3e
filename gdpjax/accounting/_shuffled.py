"""Brackets on shuffled batches, as those of runs without them; proofs in docs/theory/shuffling.md.

**From above** it is known in which step of an epoch an example takes part: a Gaussian release an epoch. That holds for
any permutations and any gradients.

**From below** an example may have a step of the epoch that was drawn by itself, as in random allocation: the worst data
show no more where the gradients of all others are zero (or, under REPLACE_ONE, the opposite of the target's). Under
REPLACE_SPECIAL and ADD_OR_REMOVE_ONE the null example takes a place in a batch, which lacks another example then; what
that shows is bounded from below by `_largest_sum`, and at small noise is nearly all.

Of other events beside the epochs the first of these lower ends takes account, the second leaves them out.
"""

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from gdpjax._core.types import Bounds, NeighboringRelation
from gdpjax.accounting import _truncated
from gdpjax.accounting._gdp import gdp_delta, gdp_epsilon, gdp_tradeoff
from gdpjax.accounting._largest_sum import LargestSums
from gdpjax.ledger import AllocationEvent, AnyEvent, Event, Ledger, ShuffledEvent

_ROUNDING = 1e-9
_REPLACED, _SPECIAL = NeighboringRelation.REPLACE_ONE, NeighboringRelation.REPLACE_SPECIAL


def has_shuffled(run: Ledger | AnyEvent) -> bool:
    """Whether there are shuffled batches in a run."""
    return any(isinstance(event, ShuffledEvent) for event in _events(run))


def only_shuffled(run: Ledger | AnyEvent) -> list[ShuffledEvent] | None:
    """The events of a run of nothing but shuffled batches with noise, under one relation; None for other runs."""
    events = [event for event in _events(run) if isinstance(event, ShuffledEvent) and event.noise_multiplier > 0]
    if len(events) < len(_events(run)) or len({event.neighboring_relation for event in events}) > 1:
        return None
    return events


def gaussian(events: Sequence[ShuffledEvent], question: str, at: np.ndarray) -> Bounds:
    """The answer of the Gaussian mechanism that reveals at least as much, mu^2 = sum of epochs / noise_multiplier^2."""
    mu = math.sqrt(math.fsum(event.num_epochs / event.noise_multiplier**2 for event in events)) * (1.0 + 1e-12)
    if question == "mu":  # a failure probability allows for a little less
        return Bounds(np.zeros(np.shape(at))[()], np.full(np.shape(at), mu)[()])
    answer = np.asarray({"epsilon": gdp_epsilon, "delta": gdp_delta, "tradeoff": gdp_tradeoff}[question](at, mu))
    error = _ROUNDING * answer + 1e-300
    most = np.inf if question == "epsilon" else 1.0
    return Bounds(np.maximum(answer - error, 0.0)[()], np.minimum(answer + error, most)[()])


def from_above(run: Ledger | AnyEvent) -> Ledger:
    """A run that reveals at least as much: every epoch is one step that all examples are in."""
    return Ledger([_unamplified(event) if isinstance(event, ShuffledEvent) else event for event in _events(run)])


def from_below(run: Ledger | AnyEvent) -> Ledger:
    """A run that reveals at most as much: every example draws its step of an epoch by itself.

    Under REPLACE_ONE all events are said to be under REPLACE_SPECIAL, where fixed-size batches become Poisson batches:
    the pair of distributions is that of the same two data sets for all of them.
    """
    events = [_allocated(event) if isinstance(event, ShuffledEvent) else event for event in _events(run)]
    return _truncated.from_below(Ledger([_relabelled(event) for event in events]))


def largest_sums(run: Ledger | AnyEvent) -> LargestSums | None:
    """The attacks on the largest sums of the run's finished epochs, where a null example takes a place."""
    epochs = []
    for event in _events(run):
        if isinstance(event, ShuffledEvent) and event.neighboring_relation is not _REPLACED and event.noise_multiplier:
            finished = event.num_epochs - (event.missing_steps > 0)
            if finished:
                epochs.append((event.noise_multiplier, event.steps_per_epoch, finished))
    return LargestSums(epochs) if epochs else None


def bounded_from_below(question: str, at: np.ndarray, end: np.ndarray, sums: LargestSums | None) -> np.ndarray:
    """The better of an end of the bracket and of what the largest sums prove."""
    if sums is None:
        return end
    proved = getattr(sums, question)(at)
    return np.minimum(end, proved) if question == "tradeoff" else np.maximum(end, proved)


def _unamplified(event: ShuffledEvent) -> Event:
    sampling = "uniform" if event.neighboring_relation is _REPLACED else "poisson"
    return Event(
        event.noise_multiplier, 1.0, event.num_epochs, sampling, event.neighboring_relation, overflow=event.overflow
    )


def _allocated(event: ShuffledEvent) -> AllocationEvent:
    """Without the overflow: the lower end holds whatever the permutations are."""
    relation = _SPECIAL if event.neighboring_relation is _REPLACED else event.neighboring_relation
    return AllocationEvent(
        event.noise_multiplier,
        event.steps_per_epoch,
        event.num_epochs,
        neighboring_relation=relation,
        missing_steps=event.missing_steps,
    )


def _relabelled(event: AnyEvent) -> AnyEvent:
    if event.neighboring_relation is not _REPLACED:
        return event
    if isinstance(event, Event):
        return dataclasses.replace(event, sampling="poisson", neighboring_relation=_SPECIAL)
    return dataclasses.replace(event, neighboring_relation=_SPECIAL)  # pyright: ignore[reportCallIssue]


def _events(run: Ledger | AnyEvent) -> Sequence[AnyEvent]:
    return run.events if isinstance(run, Ledger) else (run,)
