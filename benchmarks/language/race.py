"""Everybody's step, compiled, counted and timed in turns, beside what the model of the costs predicts."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from benchmarks import turns
from benchmarks.language.cases import Case
from benchmarks.language.steps import NO_PRIVACY, Contender, Task
from experiments.language.cost import StepCost, step_cost
from gdpjax.clipping import product_flops


def run(
    case: Case,
    chosen: Sequence[Contender],
    repetitions: int,
    device_flops: float | None,
) -> dict[str, Any]:
    """Return what the case is, each contender's results by microbatch size, and why there is none for others."""
    task = Task(case)
    entries: list[turns.Entry] = []
    results: dict[str, Any] = {}
    for contender in chosen:
        ready, refused = turns.try_sizes(case.sizes, functools.partial(_prepare, task, contender))
        entries += ready
        results[contender.name] = {"sizes": {}, "refused": refused}
    turns.take_turns(entries, repetitions)

    # Everybody beside the fastest step without privacy, and beside the model of the costs.
    base = turns.fastest(entries, NO_PRIVACY)
    strategies = {contender.name: contender.strategy for contender in chosen}
    for entry in entries:
        assert entry.microbatch_size is not None
        results[entry.name]["sizes"][str(entry.microbatch_size)] = {
            "tokens_per_second": turns.spread([case.num_tokens / wall for wall in entry.seconds]),
            "over_no_privacy": entry.over(base) if base else None,
            "mfu": _cost(case, "microbatch", 1).mfu(entry.median, device_flops) if device_flops else None,
            **entry.result(),
            "predicted": _predicted(case, strategies[entry.name], entry.microbatch_size),
        }
    cost = step_cost(case.config, num_units=1, length=case.length, lora=case.lora)
    return {
        "title": case.title,
        "num_parameters": case.config.num_params,
        "num_trained": sum(part.num_trained for part in cost.parts),
        "num_tokens": case.num_tokens,
        "num_units": case.num_units,
        "device_flops": device_flops,
        "contenders": results,
    }


def _prepare(task: Task, contender: Contender, size: int | None) -> turns.Entry:
    """Compile a step and take it once."""
    assert size is not None
    function, arguments = contender.build(task, size)
    jax.block_until_ready(arguments)

    # The device's peak is of the process so far: it is this program's where it has risen.
    before = _device_bytes()
    entry, _ = turns.compiled(contender.name, function, *arguments, size=size)
    after = _device_bytes()
    entry.facts = {
        "compile_seconds": entry.facts["compile_seconds"],
        "product_flops": product_flops(jax.make_jaxpr(function)(*arguments)),
        "xla_flops": entry.facts["flops"],
        "xla_bytes": _xla_bytes(entry.program.memory_analysis()),
        "device_bytes": _added(before, after),
    }
    return entry


def _xla_bytes(memory: Any) -> dict[str, int] | None:
    """Return what XLA's account of a program says: all that is held at a time, and of it the temporaries."""
    if memory is None:
        return None
    arguments = memory.argument_size_in_bytes
    output = memory.output_size_in_bytes
    temporaries = memory.temp_size_in_bytes
    shared = memory.alias_size_in_bytes
    return {
        "arguments": arguments,
        "output": output,
        "temporaries": temporaries,
        "held": arguments + output + temporaries - shared,
    }


def _device_bytes() -> dict[str, int] | None:
    """Return what the device says that it holds now, and held at most; None for those that do not say it."""
    stats = jax.devices()[0].memory_stats()
    if not stats or "peak_bytes_in_use" not in stats:
        return None
    return {"in_use": stats["bytes_in_use"], "peak": stats["peak_bytes_in_use"]}


def _added(before: dict[str, int] | None, after: dict[str, int] | None) -> dict[str, Any] | None:
    """Return how far the device's peak was above what it held before a call.

    The peak cannot be reset. Where a call did not raise it, an earlier call had needed as much or more, and what is
    known is an upper bound.
    """
    if before is None or after is None:
        return None
    return {"added": after["peak"] - before["in_use"], "is_upper_bound": after["peak"] == before["peak"]}


def _cost(case: Case, strategy: str, size: int) -> StepCost:
    return step_cost(
        case.config,
        num_units=case.num_units,
        length=case.length,
        num_sequences=case.num_sequences,
        microbatch_size=size,
        strategy=strategy,
        lora=case.lora,
    )


def _predicted(case: Case, strategy: str, size: int) -> dict[str, float | None] | None:
    """Return what the model of the costs says; without privacy it has operations only, and of peers nothing."""
    if not strategy:
        return None
    is_private = strategy != "none"
    cost = _cost(case, strategy if is_private else "microbatch", size)
    clipping = sum(part.clipping for part in cost.parts)
    return {
        "flops": cost.flops if is_private else cost.flops - clipping - cost.noise_flops,
        "product_flops": sum(_predicted_products(cost)),
        "held_bytes": cost.peak_bytes if is_private else None,
    }


def _predicted_products(cost: StepCost) -> Iterator[float]:
    """Return the operations of matrix products, part by part; the norms of formed gradients are none."""
    for part in cost.parts:
        if part.name not in ("norms and others", "embedding"):
            yield part.flops - part.clipping
