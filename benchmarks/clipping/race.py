"""One model's race: everybody compiled, tried once, then timed in turns.

A contender with a microbatch size is tried at each; those within a tenth or so of its fastest stay in, and the fastest
of the race is its result.
"""

import functools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import clocks, turns
from benchmarks.clipping import compare
from benchmarks.clipping.cases import Case
from benchmarks.clipping.contenders import CONTENDERS as CONTENDERS
from benchmarks.clipping.contenders import PLAIN_VMAP
from benchmarks.harness import Contender
from benchmarks.turns import Entry

Data = tuple[Any, ...]
"""Parameters, inputs and labels."""


def run(case: Case, chosen: Sequence[Contender], repetitions: int) -> dict[str, Any]:
    """Return what the case is, and each contender's times, sizes, errors, or why it is not available."""
    chosen = [_sized(contender, case) for contender in chosen if case.measures(contender.name)]
    host = case.data()
    data = jax.block_until_ready(jax.device_put(host))

    # Plain vmap first: its sum is what the others are compared with.
    in_order = sorted(chosen, key=lambda contender: contender.name != PLAIN_VMAP)
    prepare = functools.partial(_prepare, case, host, data, [])
    entries, raced = turns.race(in_order, prepare, repetitions)
    results = {contender.name: raced[contender.name] for contender in chosen}
    for name, result in results.items():
        if fastest := turns.fastest(entries, name):
            result |= fastest.result()
    compare.add_ratios(results)
    return {
        "title": case.title,
        "batch_size": case.batch_size,
        "clip_norm": case.clip_norm,
        "num_parameters": sum(leaf.size for leaf in jax.tree.leaves(host[0])),
        "target": {"time": case.target.time, "temp_bytes": case.target.memory},
        "contenders": results,
    }


def _sized(contender: Contender, case: Case) -> Contender:
    """Leave a contender the sizes that divide the batch, and are smaller."""
    rows = case.batch_size
    sizes = [size for size in contender.sizes if size is None or (size < rows and rows % size == 0)]
    return contender._replace(sizes=tuple(sizes))


def _prepare(case: Case, host: Data, data: Data, reference: list[Any], contender: Contender, size: int | None) -> Entry:
    """Return what is ready to run; its sum is compared with the one in ``reference``, or put there by plain vmap."""
    if contender.build is None:
        return _prepare_torch(case, host, contender.name, reference)
    step = contender.build(case.model.loss, case.clip_norm, size)
    entry, value = turns.compiled(contender.name, step, *data, size=size)
    pairs = zip(jax.tree.leaves(value), jax.tree.leaves(reference), strict=bool(reference))
    entry.facts["relative_error"] = _relative_error(pairs)
    if contender.name == PLAIN_VMAP:
        reference.append(value)

    # The better one of two trials.
    entry.trial_seconds = min(entry.trial_seconds, clocks.time_call(entry.call).wall)
    return entry


def _prepare_torch(case: Case, host: Data, name: str, reference: list[Any]) -> Entry:
    """Run twice on torch, which has no figures of XLA."""
    from benchmarks.clipping import torch_models, torch_steps

    # The first run allocates, and chooses its kernels.
    step = torch_steps.step(case, host, name)
    step.run()
    facts: dict[str, Any] = dict.fromkeys(("compile_seconds", "temp_bytes", "flops", "relative_error"))
    if reference:
        pairs = ((leaf, torch_models.counterpart(reference[0], key)) for key, leaf in step.gradient())
        facts["relative_error"] = _relative_error(pairs)
    return Entry(name, None, step.run, facts, clocks.time_call(step.run).wall)


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
