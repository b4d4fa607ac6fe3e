"""A Ledger as one of exact events without correlation, and as the arrays that the certified accountant computes with.

Steps become phases (noise_multiplier, sampling_prob, num_steps), a release of all the data with Gaussian noise a phase
with sampling_prob 1, events of bounded loss rows (num_steps, bound, categories). What is only known to be (epsilon,
delta)-DP is at worst a binary randomized response that fails with probability delta, so f = f_rest (x) f_{0, failure}
with failure = 1 - prod (1 - delta): the failures are taken out here and put back, exactly, by `_overflow`.

A step without noise (noise_multiplier 0) shows an example that is in its batch and nothing of one that is not. Its
curve is f_{0, p}, a failure of probability p, attained where the gradients of all others are zero.

A **group** of k examples: k of them may be in a batch, so a step's mixture has k + 1 components
(`_composition._likelihood_ratio`), and the sensitivity of a whole-data release is k times as large.

**Correlated noise.** A run of the matrix mechanism is one Gaussian release: it reveals at most what
(1 / noise_multiplier)-GDP does, and exactly that if some example attains the sensitivity of the strategy and all
planned steps were made (docs/theory/matrix_mechanism.md). With cyclic Poisson sampling an example sees ceil(n / b)
Poisson-subsampled steps; those of the first group see all the noise that they are promised in the cycles that were
finished.

An event that is not exact (`Event.is_exact`) holds the least noise and the largest sampling probability of its steps:
from above it is an exact one, from below nothing. Any event of numbers that float32 holds may have been rounded to them
when a compiled step recorded it; `before_rounding` is the least that it may stand for.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from gdpjax._composition import LAPLACE, Family
from gdpjax._core.types import NeighboringRelation
from gdpjax.accounting._overflow import Lost
from gdpjax.ledger import (
    AnyEvent,
    ApproximateDPEvent,
    CorrelatedGaussianEvent,
    CyclicPoissonEvent,
    Event,
    GaussianEvent,
    LaplaceEvent,
    Ledger,
    RandomizedResponseEvent,
    SampledEvent,
    UniformEvent,
)

_RECORD_ROUNDING = 2.0**-20
"""How far the noise that was added may exceed the recorded multiplier, relative: 2^-21 of margin, 2^-23 of rounding.

It also covers the 1e-8 by which a sensitivity that is called exact may be above the one that an example attains.
"""

_BOUNDED = (LaplaceEvent, RandomizedResponseEvent, ApproximateDPEvent)


def check_form(run: Any, sampling_prob: Any, num_steps: Any, **query: Any) -> bool:
    """Whether ``run`` is a Ledger; ValueError unless the call is complete in the form that it then has.

    ``query`` is what is asked at, if anything is.
    """
    keywords = "".join(f", {name}=..." for name in query)
    if isinstance(run, Ledger | AnyEvent):
        is_asked = all(value is not None for value in query.values())
        if sampling_prob is not None or num_steps is not None or not is_asked:
            raise ValueError(f"of a Ledger the arguments are exactly f(ledger{keywords})")
        return True
    values = {"noise_multiplier": run, "sampling_prob": sampling_prob, "num_steps": num_steps, **query}
    missing = [name for name, value in values.items() if value is None]
    if missing:
        alternatives = f"give all of {', '.join(values)}, or a Ledger: f(ledger{keywords}){_hint_for(run)}"
        raise ValueError(f"missing {', '.join(missing)}; {alternatives}")
    return False


def _hint_for(run: Any) -> str:
    """Return the end of a message: the call to make for a plan, or for the state of an optimizer."""
    if hasattr(run, "epsilon_bounds"):
        return f"; ask a {type(run).__name__} itself: .epsilon_bounds(), .mu_bounds(), .curve"
    if isinstance(run, tuple | dict):
        return "; of an optimizer's state give gdpjax.ledger_of(state)"
    return ""


def events_of(run: Ledger | AnyEvent) -> tuple[AnyEvent, ...]:
    """The events of a Ledger, or the one event."""
    return run.events if isinstance(run, Ledger) else (run,)


def check_relations(events: Sequence[AnyEvent]) -> None:
    """ValueError unless all events are about the same neighbours."""
    relations = {event.neighboring_relation for event in events}
    if len(relations) > 1:
        names = ", ".join(sorted(relation.name for relation in relations if relation is not None))
        raise ValueError(f"the events of a Ledger must share one neighboring relation, got {names}")


def replaces_in_poisson(event: AnyEvent) -> bool:
    """Whether these are steps on Poisson batches where one example is replaced by any other."""
    return isinstance(event, Event) and event.neighboring_relation is NeighboringRelation.REPLACE_ONE


class Described(NamedTuple):
    """A run in phases: what kind, its arrays, and the probabilities of failure and overflow that are not in them."""

    family: Family
    columns: tuple[np.ndarray, ...]
    lost: Lost


def describe(ledger: Ledger | AnyEvent, group_size: int) -> Described:
    """The description of ``ledger``; ValueError for mixed relations, or where a group's bound is not known."""
    events = events_of(ledger)
    check_relations(events)
    if group_size > 1:
        _check_groups(events)

    # Gaussian steps are phases, what has a bounded loss is a row of its own.
    steps = [_phase(event) for event in events if isinstance(event, SampledEvent | GaussianEvent)]
    phases = [step for step in steps if step[0] > 0]
    others = [_bounded(event, group_size) for event in events if not isinstance(event, SampledEvent | GaussianEvent)]
    uniform = any(_is_uniform(event) for event in events)
    replaced = any(replaces_in_poisson(event) for event in events)
    if uniform and replaced:
        raise ValueError("expected Poisson or uniform batches in a Ledger under REPLACE_ONE, got both of them")
    family = Family(symmetric=uniform, replaced=replaced, groups=group_size > 1, finite=bool(others))
    columns = _columns(phases) + group_columns(group_size)
    columns += _columns(others) if others else ()
    return Described(family, columns, lost_of(events, group_size))


def lost_of(events: Sequence[AnyEvent], group_size: int = 1) -> Lost:
    """What may be lost: steps without noise, guarantees that fail, batches that do not fit."""
    steps = [_phase(event) for event in events if isinstance(event, SampledEvent | GaussianEvent)]
    is_added = any(event.neighboring_relation is not NeighboringRelation.REPLACE_ONE for event in events)
    bare = [(prob, num_steps * group_size) for noise, prob, num_steps in steps if noise == 0 and prob > 0]
    guarantees = [event for event in events if isinstance(event, ApproximateDPEvent) and event.delta > 0]
    # A step without noise is a failure where an example is replaced, and shows who takes part where one is added.
    failure, exact = _failure(guarantees, [] if is_added else bare)
    shown, _ = _failure([], bare if is_added else [])

    # Overflows that a run announces, and those of which nobody is told.
    overflows = [(getattr(event, "announced", False), getattr(event, "overflow", 0.0)) for event in events]
    announced = math.fsum(overflow for is_announced, overflow in overflows if is_announced)
    silent = math.fsum(overflow for is_announced, overflow in overflows if not is_announced)

    # The largest loss, where every release has one.
    rest = [event for event in events if not isinstance(event, SampledEvent | GaussianEvent)]
    has_noise = any(noise > 0 and prob > 0 for noise, prob, _ in steps)
    largest = math.inf
    if not has_noise and all(isinstance(event, _BOUNDED) for event in rest):
        bounded = [_bounded(event, group_size) for event in rest]
        largest = math.fsum(count * bound for count, bound, _ in bounded) * (1.0 + 1e-12)
    return Lost(failure, min(silent, 1.0), exact, largest, min(announced, 1.0), shown)


def _is_uniform(event: AnyEvent) -> bool:
    return isinstance(event, UniformEvent) and event.sampling_prob < 1


def _failure(events: list[ApproximateDPEvent], bare: list[tuple[float, float]]) -> tuple[float, bool]:
    """The probability that one of the guarantees fails or a step without noise shows, and whether it is not rounded."""
    if not bare and not events:
        return 0.0, True
    if not bare and len(events) == 1 and events[0].num_steps == 1:
        return events[0].delta, True
    with np.errstate(divide="ignore"):
        kept = [event.num_steps * np.log1p(-event.delta) for event in events]
        kept += [num_steps * np.log1p(-prob) for prob, num_steps in bare]
    return float(-np.expm1(sum(kept) if -np.inf in kept else math.fsum(kept))), False


def group_columns(group_size: int) -> tuple[np.ndarray, ...]:
    """The group size as an argument, where it is one."""
    return () if group_size == 1 else (np.array([float(group_size)]),)


def _check_groups(events: Sequence[AnyEvent]) -> None:
    """Raise ValueError for an event of which no bound for groups is known."""
    for event in events:
        is_other = isinstance(event, RandomizedResponseEvent | ApproximateDPEvent | UniformEvent)
        # The overflow is the probability for a batch with one given example in it.
        if is_other or replaces_in_poisson(event) or (isinstance(event, Event) and event.overflow):
            raise ValueError(
                "group_size > 1 is available for Gaussian and Laplace events, with Poisson batches under "
                f"ADD_OR_REMOVE_ONE or REPLACE_SPECIAL, without overflow; got {event}"
            )


def _phase(event: SampledEvent | GaussianEvent) -> tuple[float, float, float]:
    prob = event.sampling_prob if isinstance(event, SampledEvent) else 1.0
    return event.noise_multiplier, prob, event.num_steps


def _bounded(event: AnyEvent, group_size: int) -> tuple[float, float, float]:
    if isinstance(event, LaplaceEvent):
        return event.num_steps, group_size * event.epsilon * (event.sampling_prob > 0), LAPLACE
    if isinstance(event, RandomizedResponseEvent):
        return event.num_steps, event.epsilon, event.num_categories
    assert isinstance(event, ApproximateDPEvent), event
    return event.num_steps, event.epsilon, 2.0


def _columns(rows: list[tuple[float, float, float]]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(rows, np.float64).reshape(-1, 3).T)


def _is_exact(event: AnyEvent) -> bool:
    return getattr(event, "is_exact", True)


def exact_from_above(run: Ledger | AnyEvent) -> Ledger:
    """Return a run of exact events, without correlation, that reveals at least as much."""
    events = []
    for event in events_of(run):
        if isinstance(event, CorrelatedGaussianEvent | CyclicPoissonEvent):
            event = event.from_above
        elif not _is_exact(event):
            event = dataclasses.replace(event, is_exact=True)
        events.append(event)
    return Ledger(events)


def exact_from_below(run: Ledger | AnyEvent) -> Ledger:
    """Return a run of exact events, without correlation, that reveals at most as much."""
    events: list[AnyEvent | None] = []
    for event in events_of(run):
        if isinstance(event, CorrelatedGaussianEvent):
            # The release of the example that attains the sensitivity; nothing where none does.
            event = before_rounding(event.from_above) if event.attains_bound else None
        elif not _is_exact(event):
            event = None
        elif isinstance(event, CyclicPoissonEvent):
            # The steps of the cycles that were finished, at the noise of the longest column.
            event = before_rounding(event.from_below) if event.from_below else None
        events.append(event)
    return Ledger(event for event in events if event is not None)


def may_be_rounded(run: Ledger | AnyEvent) -> bool:
    """Return whether float32 holds the numbers of a run's Gaussian steps, as if a compiled step had recorded them."""
    steps = [event for event in events_of(run) if isinstance(event, SampledEvent)]
    return any(_in_float32(step.noise_multiplier) and _in_float32(step.sampling_prob) for step in steps)


def _in_float32(value: float) -> bool:
    return float(np.float32(value)) == value


def before_rounding(event: AnyEvent) -> AnyEvent:
    """Return a Gaussian step with the most noise, and the least sampling probability, that was recorded as this."""
    if isinstance(event, SampledEvent | GaussianEvent):
        event = dataclasses.replace(event, noise_multiplier=event.noise_multiplier * (1.0 + _RECORD_ROUNDING))
    if isinstance(event, SampledEvent) and event.sampling_prob < 1.0:
        event = dataclasses.replace(event, sampling_prob=event.sampling_prob * (1.0 - _RECORD_ROUNDING))
    return event


def mu_of_gaussians(run: Ledger) -> float | None:
    """Return the mu of a run of nothing but Gaussian releases, rounded to a relative 1e-15; else None.

    Formula: mu^2 = sum of num_steps / noise_multiplier^2, as arXiv:1905.02383, corollary 2.
    """
    squares = []
    for event in run.events:
        if not isinstance(event, GaussianEvent) or not event.noise_multiplier > 0:
            return None
        mu = 1.0 / event.noise_multiplier
        squares.append(event.num_steps * mu * mu)
    total = sum(squares)
    return math.sqrt(math.fsum(squares)) if math.isfinite(total) else None
