"""Everybody's step, compiled, counted and timed in turns, beside what the model of the costs predicts."""

import functools
import statistics
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from benchmarks import clocks, turns
from benchmarks.clipping.contenders import why_missing
from benchmarks.language.cases import Case
from benchmarks.language.steps import NO_PRIVACY, Contender, Task
from experiments.language.cost import StepCost, step_cost
from gdpjax.clipping import product_flops

LIMIT = 900.0
"""Seconds after which a compilation or a step is given up."""


def missing(chosen: Sequence[Contender]) -> dict[str, str]:
    """Return the chosen contenders whose packages are not there, and why."""
    found = {}
    for contender in chosen:
        for module in contender.modules:
            reason = why_missing(module)
            if reason:
                found[contender.name] = reason
    return found


def run(
    case: Case,
    chosen: Sequence[Contender],
    sizes: Sequence[int],
    repetitions: int,
    device_flops: float | None,
) -> dict[str, Any]:
    """Return each contender's results by microbatch size, and why there is none for others."""
    task = Task(case)
    entries: list[turns.Entry] = []
    results: dict[str, Any] = {}
    for contender in chosen:
        results[contender.name] = {"sizes": {}, "refused": {}}
        for size in sizes:
            prepare = functools.partial(_prepare, task, contender, size)
            made = clocks.attempt(prepare, LIMIT)
            if made.error:
                results[contender.name]["refused"][str(size)] = made.error
            else:
                entries.append(made.value)
    turns.take_turns(entries, repetitions)

    # Everybody beside the fastest step without privacy, and beside the model of the costs.
    base = _fastest(entries, NO_PRIVACY)
    strategies = {contender.name: contender.strategy for contender in chosen}
    for entry in entries:
        assert entry.microbatch_size is not None
        predicted = _predicted(case, strategies[entry.name], entry.microbatch_size)
        at = _result(case, entry, base, device_flops)
        results[entry.name]["sizes"][str(entry.microbatch_size)] = at | {"predicted": predicted}
    return results


def _prepare(task: Task, contender: Contender, size: int) -> turns.Entry:
    """Compile a step and take it once."""
    function, arguments = contender.build(task, size)
    jax.block_until_ready(arguments)
    watch = clocks.Stopwatch()
    traced = jax.jit(function).trace(*arguments)
    program = traced.lower().compile()
    compile_seconds = watch.read().wall
    cost = program.cost_analysis() or {}
    facts = {
        "compile_seconds": compile_seconds,
        "product_flops": product_flops(traced.jaxpr),
        "xla_flops": cost.get("flops"),
        "xla_bytes": _xla_bytes(program.memory_analysis()),
    }

    def call() -> Any:
        return jax.block_until_ready(program(*arguments))

    # The device's peak is of the process so far: it is this program's where it has risen.
    before = _device_bytes()
    watch = clocks.Stopwatch()
    call()
    seconds = watch.read().wall
    after = _device_bytes()
    facts["device_bytes"] = _added(before, after)
    return turns.Entry(contender.name, size, call, facts, seconds)


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


def _fastest(entries: list[turns.Entry], name: str) -> turns.Entry | None:
    """Return the entry of a contender with the least median."""
    own = [entry for entry in entries if entry.name == name]
    return min(own, key=lambda entry: statistics.median(entry.seconds), default=None)


def _result(case: Case, entry: turns.Entry, base: turns.Entry | None, device_flops: float | None) -> dict[str, Any]:
    """Return the times of one step.

    ``over_no_privacy`` holds the ratio of medians to no privacy's fastest, and the spread round by round.
    """
    seconds = turns.spread(entry.seconds)
    over = None
    if base is not None:
        by_round = [own / other for own, other in zip(entry.seconds, base.seconds, strict=True)]
        over = {
            "time": seconds["median"] / statistics.median(base.seconds),
            "by_round": turns.spread(by_round),
        }
    mfu = None
    if device_flops is not None:
        mfu = _cost(case, "microbatch", 1).mfu(seconds["median"], device_flops)
    return {
        "seconds": seconds,
        "processor_seconds": turns.spread([each.cpu for each in entry.times]),
        "tokens_per_second": turns.spread([case.num_tokens / wall for wall in entry.seconds]),
        "over_no_privacy": over,
        "mfu": mfu,
        **entry.facts,
    }


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
        "product_flops": sum(_predicted_products(cost, is_private)),
        "held_bytes": cost.peak_bytes if is_private else None,
    }


def _predicted_products(cost: StepCost, is_private: bool) -> Iterator[float]:
    """Return the operations of matrix products, part by part."""
    for part in cost.parts:
        if part.name in ("norms and others", "embedding"):
            continue
        # Norms that are taken of factors are products, and those of formed gradients are not.
        is_product = is_private and part.gradient == "positions"
        yield part.flops if is_product else part.flops - part.clipping
