"""Brackets on runs whose noise is correlated over the steps, as those of runs without correlation.

A run of the matrix mechanism is one Gaussian release: it reveals at most what (1 / noise_multiplier)-GDP does, and
exactly that if some example attains the sensitivity of the strategy and all planned steps were made
(docs/theory/matrix_mechanism.md). With cyclic Poisson sampling an example sees ceil(n / b) Poisson-subsampled steps;
those of the first group see all the noise that they are promised in the cycles that were finished.
"""

import dataclasses
import math
from collections.abc import Sequence

from gdpjax.ledger import AnyEvent, CorrelatedGaussianEvent, CyclicPoissonEvent, GaussianEvent, Ledger

_EXACT = 1.0 + 2e-8
"""How far a sensitivity that is called exact may be above the one that an example attains, and a little more."""


def has_correlated(run: Ledger | AnyEvent) -> bool:
    """Return whether there is correlated noise in a run."""
    return any(isinstance(event, CorrelatedGaussianEvent | CyclicPoissonEvent) for event in _events(run))


def from_above(run: Ledger | AnyEvent) -> Ledger:
    """Return a run without correlation that reveals at least as much."""
    events = []
    for event in _events(run):
        if isinstance(event, CorrelatedGaussianEvent | CyclicPoissonEvent):
            event = event.from_above
        events.append(event)
    return Ledger(events)


def from_below(run: Ledger | AnyEvent) -> Ledger:
    """Return a run without correlation that reveals at most as much."""
    events = []
    for event in _events(run):
        if isinstance(event, CorrelatedGaussianEvent):
            events += _gaussian_from_below(event)
        elif isinstance(event, CyclicPoissonEvent):
            events += _rounds_from_below(event)
        else:
            events.append(event)
    return Ledger(events)


def mu_of_gaussians(run: Ledger) -> float | None:
    """Return the mu of a run of nothing but Gaussian releases, rounded to a relative 1e-15; else None.

    Formula: mu^2 = sum of num_steps / noise_multiplier^2, as arXiv:1905.02383, corollary 2.
    """
    squares = []
    for event in run.events:
        if not isinstance(event, GaussianEvent) or not event.noise_multiplier > 0:
            return None
        squares.append(event.num_steps * (1.0 / event.noise_multiplier) ** 2)
    total = math.fsum(squares)
    return math.sqrt(total) if math.isfinite(total) else None


def _gaussian_from_below(event: CorrelatedGaussianEvent) -> list[GaussianEvent]:
    """Return the release of the example that attains the sensitivity; nothing where none does."""
    if not event.attains_bound:
        return []
    release = event.from_above
    return [dataclasses.replace(release, noise_multiplier=release.noise_multiplier * _EXACT)]


def _rounds_from_below(event: CyclicPoissonEvent) -> list[AnyEvent]:
    """Return the subsampled steps of the cycles that were finished, at the noise of the longest column."""
    rounds = event.from_below
    if rounds is None:
        return []
    return [dataclasses.replace(rounds, noise_multiplier=rounds.noise_multiplier * _EXACT)]


def _events(run: Ledger | AnyEvent) -> Sequence[AnyEvent]:
    return run.events if isinstance(run, Ledger) else (run,)
