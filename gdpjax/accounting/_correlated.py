"""Brackets on runs whose noise is correlated over the steps, or whose events are not exact, as those of other runs.

A run of the matrix mechanism is one Gaussian release: it reveals at most what (1 / noise_multiplier)-GDP does, and
exactly that if some example attains the sensitivity of the strategy and all planned steps were made
(docs/theory/matrix_mechanism.md). With cyclic Poisson sampling an example sees ceil(n / b) Poisson-subsampled steps;
those of the first group see all the noise that they are promised in the cycles that were finished.

An event that is not exact (`Event.is_exact`) holds the least noise and the largest sampling probability of its steps:
from above it is an exact one, from below nothing. Any event of numbers that float32 holds may have been rounded to them
when a compiled step recorded it; `before_rounding` is the least that it may stand for.
"""

import dataclasses
import math

import numpy as np

from gdpjax.accounting._ledgers import events_of
from gdpjax.ledger import AnyEvent, CorrelatedGaussianEvent, CyclicPoissonEvent, GaussianEvent, Ledger, SampledEvent

_ROUNDING = 2.0**-20
"""How far the noise that was added may exceed the recorded multiplier, relative: 2^-21 of margin, 2^-23 of rounding.

It also covers the 1e-8 by which a sensitivity that is called exact may be above the one that an example attains.
"""


def _is_exact(event: AnyEvent) -> bool:
    return getattr(event, "is_exact", True)


def from_above(run: Ledger | AnyEvent) -> Ledger:
    """Return a run of exact events, without correlation, that reveals at least as much."""
    events = []
    for event in events_of(run):
        if isinstance(event, CorrelatedGaussianEvent | CyclicPoissonEvent):
            event = event.from_above
        elif not _is_exact(event):
            event = dataclasses.replace(event, is_exact=True)
        events.append(event)
    return Ledger(events)


def from_below(run: Ledger | AnyEvent) -> Ledger:
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
        event = dataclasses.replace(event, noise_multiplier=event.noise_multiplier * (1.0 + _ROUNDING))
    if isinstance(event, SampledEvent) and event.sampling_prob < 1.0:
        event = dataclasses.replace(event, sampling_prob=event.sampling_prob * (1.0 - _ROUNDING))
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
