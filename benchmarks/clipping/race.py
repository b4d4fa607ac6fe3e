"""One model's race: everybody compiled, tried once, then timed in turns.

A contender with a microbatch size is tried at each; those within a tenth or so of its fastest stay in, and the fastest
of the race is its result.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import clocks, turns
from benchmarks.clipping.cases import OPACUS_GHOST, TORCH_NO_PRIVACY, Case
from benchmarks.clipping.contenders import JAX_CONTENDERS, PLAIN_VMAP, Contender, why_missing
from benchmarks.turns import Entry

OPACUS_MODULES = ("torch", "opacus")
TORCH_NAMES = (TORCH_NO_PRIVACY, "Opacus hooks", OPACUS_GHOST)
LIMIT = 900.0
"""Seconds after which a compilation or a trial is given up."""
KEEP = 1.15
"""How much slower than a contender's fastest size another one may be to stay in."""
HOPELESS = 3
"""How much slower than its fastest a size is not tried twice."""

Data = tuple[Any, ...]
"""Parameters, inputs, labels, and the frozen arguments of the loss."""


def names() -> tuple[str, ...]:
    """Return every contender's name, in the order of the tables."""
    of_jax = [contender.name for contender in JAX_CONTENDERS]
    return (*of_jax, *TORCH_NAMES)


def missing(chosen: Sequence[str]) -> dict[str, str]:
    """Return the chosen contenders whose package is not there, and why."""
    reasons = {contender.name: why_missing(contender.module) for contender in JAX_CONTENDERS}
    of_torch = _first_reason(OPACUS_MODULES)
    for name in TORCH_NAMES:
        reasons[name] = of_torch

    missing_ones = {}
    for name in chosen:
        reason = reasons[name]
        if reason:
            missing_ones[name] = reason
    return missing_ones


def _first_reason(modules: Sequence[str]) -> str | None:
    """Return why the first module that is missing cannot be imported; None where all are there."""
    for module in modules:
        reason = why_missing(module)
        if reason:
            return reason
    return None


def run(case: Case, chosen: Sequence[str], repetitions: int) -> dict[str, Any]:
    """Return the result of each chosen contender of the case: times, sizes, errors, or why it is not available."""
    chosen = [name for name in chosen if case.measures(name)]
    host = case.data()
    data = jax.block_until_ready(jax.device_put(host))

    # Plain vmap first: its sum is what the others are compared with.
    reference: Any = None
    entries: list[Entry] = []
    results: dict[str, Any] = {}
    for name in sorted(chosen, key=lambda name: name != PLAIN_VMAP):
        tried = _try_all(case, host, data, name, reference)
        if name == PLAIN_VMAP:
            reference = tried.value

        # The sizes that are nearly as fast as the best one race.
        best = min((entry.trial_seconds for entry in tried.ready), default=0.0)
        for entry in tried.ready:
            if entry.trial_seconds <= KEEP * best:
                entries.append(entry)
        trials = [_trial(entry) for entry in tried.ready]
        results[name] = {"refused": tried.refused, "trials": trials}

    turns.take_turns(entries, repetitions)
    for name in chosen:
        raced = [entry for entry in entries if entry.name == name]
        if raced:
            fastest = min(raced, key=lambda entry: statistics.median(entry.seconds))
            results[name] |= _result(fastest)
    return {name: results[name] for name in chosen}


# ---- Before the race ----


class Tried(NamedTuple):
    """The result of trying a contender.

    Args:
        ready: an entry for each microbatch size that ran.
        refused: the sizes that raise, and why.
        value: the sum that the last one returned; None without one, and of torch.
    """

    ready: list[Entry]
    refused: dict[str, str]
    value: Any


def _try_all(case: Case, host: Data, data: Data, name: str, reference: Any) -> Tried:
    """Compile and try a contender at each microbatch size."""
    ready: list[Entry] = []
    refused: dict[str, str] = {}
    value = None
    contender = _on_jax(name)
    sizes = contender.sizes(case.batch_size) if contender else (None,)
    for size in sizes:
        outcome = _attempt(case, host, data, name, size, reference)
        if outcome.error:
            refused[str(size)] = outcome.error
            continue
        entry, value = outcome.value

        # A second trial, unless the first one is hopeless, and slow.
        best = min((other.trial_seconds for other in ready), default=math.inf)
        if entry.trial_seconds < HOPELESS * best:
            again = clocks.time_call(entry.call).wall
            entry.trial_seconds = min(entry.trial_seconds, again)
        ready.append(entry)
    return Tried(ready, refused, value)


def _on_jax(name: str) -> Contender | None:
    """Return the contender of this name; None for those on torch."""
    for contender in JAX_CONTENDERS:
        if contender.name == name:
            return contender
    return None


def _attempt(
    case: Case,
    host: Data,
    data: Data,
    name: str,
    size: int | None,
    reference: Any,
) -> clocks.Outcome:
    """Compile and run once; whatever fails is part of the outcome."""

    def prepare() -> tuple[Entry, Any]:
        contender = _on_jax(name)
        if contender is None:
            return _prepare_torch(case, host, name, reference)
        return _prepare(case, data, contender, size, reference)

    return clocks.attempt(prepare, LIMIT)


def _prepare(
    case: Case,
    data: Data,
    contender: Contender,
    size: int | None,
    reference: Any,
) -> tuple[Entry, Any]:
    """Compile and run once on JAX; return the entry and the sum."""
    step = contender.build(case.model.loss, case.clip_norm, size)
    entry, value = turns.compiled(contender.name, step, *data, size=size)
    leaves = jax.tree.leaves(value)
    expected = jax.tree.leaves(reference)
    pairs = zip(leaves, expected, strict=reference is not None)
    entry.facts["relative_error"] = _relative_error(pairs)
    return entry, value


def _prepare_torch(case: Case, host: Data, name: str, reference: Any) -> tuple[Entry, None]:
    """Run twice on torch; return the entry, which has no figures of XLA."""
    from benchmarks.clipping import torch_models, torch_steps

    # The first run allocates, and chooses its kernels.
    step = torch_steps.step(case, host, name)
    step.run()
    watch = clocks.Stopwatch()
    step.run()
    seconds = watch.read().wall

    def pairs() -> Iterator[tuple[Any, Any]]:
        frozen = host[3:]
        for key, gradient in step.gradient():
            yield gradient, torch_models.counterpart(reference, frozen, key)

    facts: dict[str, Any] = {
        "compile_seconds": None,
        "temp_bytes": None,
        "flops": None,
        "relative_error": None if reference is None else _relative_error(pairs()),
    }
    return Entry(name, None, step.run, facts, seconds), None


def _relative_error(pairs: Iterable[tuple[Any, Any]]) -> float | None:
    """Return |ours - theirs| / |theirs| over all leaves; None without a pair, or if it is not finite."""
    squared_difference = 0.0
    squared_norm = 0.0
    for ours, theirs in pairs:
        ours = np.asarray(ours, np.float64)
        theirs = np.asarray(theirs, np.float64)
        squared_difference += float(np.sum((ours - theirs) ** 2))
        squared_norm += float(np.sum(theirs**2))
    if not squared_norm:
        return None
    error = math.sqrt(squared_difference / squared_norm)
    return error if math.isfinite(error) else None


# ---- For the JSON ----


def _trial(entry: Entry) -> dict[str, Any]:
    return {
        "microbatch_size": entry.microbatch_size,
        "trial_seconds": entry.trial_seconds,
        **entry.facts,
    }


def _result(entry: Entry) -> dict[str, Any]:
    return {
        "microbatch_size": entry.microbatch_size,
        "seconds": turns.spread(entry.seconds),
        **entry.facts,
    }
