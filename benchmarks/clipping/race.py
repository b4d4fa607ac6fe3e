"""One model's race: everybody compiled, tried once, then timed in turns.

A contender with a microbatch size is tried at each; those within a tenth or so of its fastest stay in, and the fastest
of the race is its result.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import clocks, turns
from benchmarks.clipping.cases import OPACUS_GHOST, TORCH_NO_PRIVACY, Case
from benchmarks.clipping.contenders import JAX_CONTENDERS, PLAIN_VMAP, Contender, why_missing
from benchmarks.turns import Entry

OPACUS_MODULES = ("torch", "opacus")
TORCH_NAMES = (TORCH_NO_PRIVACY, "Opacus hooks", OPACUS_GHOST)
LIMIT = 900.0
KEEP = 1.15

Data = tuple[Any, ...]


def names() -> tuple[str, ...]:
    """Every contender's name, in the order of the tables."""
    return (*(contender.name for contender in JAX_CONTENDERS), *TORCH_NAMES)


def missing(chosen: Sequence[str]) -> dict[str, str]:
    """Return the chosen contenders whose package is not there, and why."""
    found = {each.name: why_missing(each.module) for each in JAX_CONTENDERS}
    torch = next((why for module in OPACUS_MODULES if (why := why_missing(module))), None)
    found |= dict.fromkeys(TORCH_NAMES, torch)
    return {name: why for name in chosen if (why := found[name])}


def run(case: Case, chosen: Sequence[str], repetitions: int) -> dict[str, Any]:
    """Name to result of the case's contenders among the chosen: times, sizes, errors, or why it is not available."""
    chosen = [name for name in chosen if case.measures(name)]
    host = case.data()
    data = jax.block_until_ready(jax.device_put(host))
    reference: Any = None
    entries: list[Entry] = []
    results: dict[str, Any] = {}
    # Plain vmap first: its sum is what the others are compared with.
    for name in sorted(chosen, key=lambda name: name != PLAIN_VMAP):
        ready, refused, value = _try_all(case, host, data, name, reference)
        reference = value if name == PLAIN_VMAP else reference
        best = min((entry.trial_seconds for entry in ready), default=0.0)
        entries += [entry for entry in ready if entry.trial_seconds <= KEEP * best]
        results[name] = {"refused": refused, "trials": [_trial(entry) for entry in ready]}
    turns.take_turns(entries, repetitions)
    for name in chosen:
        raced = [entry for entry in entries if entry.name == name]
        if raced:
            results[name] |= _result(min(raced, key=lambda entry: statistics.median(entry.seconds)))
    return {name: results[name] for name in chosen}


def _try_all(case: Case, host: Data, data: Data, name: str, reference: Any) -> tuple[list[Entry], dict[str, str], Any]:
    """Return a contender's entries by microbatch size, the sizes that raise and why, and the last value."""
    ready: list[Entry] = []
    refused: dict[str, str] = {}
    value = None
    contender = next((each for each in JAX_CONTENDERS if each.name == name), None)
    for size in contender.sizes(case.batch_size) if contender else (None,):
        if contender:
            made = clocks.attempt(lambda size=size: _prepare(case, data, contender, size, reference), LIMIT)
        else:
            made = clocks.attempt(lambda: _prepare_torch(case, host, name, reference), LIMIT)
        if made.error:
            refused[str(size)] = made.error
            continue
        entry, value = made.value
        best = min((other.trial_seconds for other in ready), default=math.inf)
        if entry.trial_seconds < 3 * best:  # else hopeless, and slow
            entry.trial_seconds = min(entry.trial_seconds, clocks.time_call(entry.call).wall)
        ready.append(entry)
    return ready, refused, value


def _prepare(case: Case, data: Data, contender: Contender, size: int | None, reference: Any) -> tuple[Entry, Any]:
    """Compile and run once."""
    step = contender.build(case.model.loss, case.clip_norm, size)
    entry, value = turns.compiled(contender.name, step, *data, size=size)
    pairs = zip(jax.tree.leaves(value), jax.tree.leaves(reference), strict=reference is not None)
    entry.facts["relative_error"] = _relative_error(pairs)
    return entry, value


def _prepare_torch(case: Case, host: Data, name: str, reference: Any) -> tuple[Entry, None]:
    from benchmarks.clipping import torch_models, torch_steps

    step = torch_steps.step(case, host, name)
    step.run()  # allocates, and chooses its kernels
    watch = clocks.Stopwatch()
    step.run()
    facts: dict[str, Any] = {"compile_seconds": None, "temp_bytes": None, "flops": None}
    entry = Entry(name, None, step.run, facts, watch.read().wall)
    frozen = host[3:]
    pairs = ((ours, torch_models.counterpart(reference, frozen, key)) for key, ours in step.gradient())
    facts["relative_error"] = _relative_error(pairs if reference is not None else ())
    return entry, None


def _relative_error(pairs: Any) -> float | None:
    """|ours - theirs| / |theirs|, over all leaves; None without a pair, or if it is not finite."""
    wrong = true = 0.0
    for ours, theirs in pairs:
        ours, theirs = (np.asarray(each, np.float64) for each in (ours, theirs))
        wrong, true = wrong + float(np.sum((ours - theirs) ** 2)), true + float(np.sum(theirs**2))
    error = math.sqrt(wrong / true) if true else math.nan
    return error if math.isfinite(error) else None


def _trial(entry: Entry) -> dict[str, Any]:
    return {"microbatch_size": entry.microbatch_size, "trial_seconds": entry.trial_seconds, **entry.facts}


def _result(entry: Entry) -> dict[str, Any]:
    return {"microbatch_size": entry.microbatch_size, "seconds": turns.spread(entry.seconds), **entry.facts}
