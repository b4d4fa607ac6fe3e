"""Everybody's step, compiled, counted and timed in turns."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax

from benchmarks import turns
from benchmarks.harness import Contender
from benchmarks.language.cases import Case
from benchmarks.language.steps import CONTENDERS as CONTENDERS
from benchmarks.language.steps import NO_PRIVACY, Task
from gdpjax.clipping import product_flops


def run(case: Case, chosen: Sequence[Contender], repetitions: int) -> dict[str, Any]:
    """Return what the case is, each contender's results by microbatch size, and why there is none for others."""
    task = Task(case)
    sized = [contender._replace(sizes=case.sizes) for contender in chosen]
    entries, results = turns.race(sized, functools.partial(_prepare, task), repetitions, keep=math.inf)
    for result in results.values():
        result["sizes"] = {}

    # Everybody beside the fastest step without privacy.
    base = turns.fastest(entries, NO_PRIVACY)
    for entry in entries:
        results[entry.name]["sizes"][str(entry.microbatch_size)] = {
            "tokens_per_second": turns.spread([case.num_tokens / wall for wall in entry.seconds]),
            "over_no_privacy": entry.over(base) if base else None,
            **entry.result(),
        }
    return {
        "title": case.title,
        "num_parameters": case.config.num_params,
        "num_trained": sum(leaf.size for leaf in jax.tree.leaves(task.trained)),
        "num_tokens": case.num_tokens,
        "num_units": case.num_units,
        "contenders": results,
    }


def _prepare(task: Task, contender: Contender, size: int | None) -> turns.Entry:
    """Compile a step and take it once."""
    assert size is not None
    function, arguments = contender.build(task, size)
    jax.block_until_ready(arguments)
    entry, _ = turns.compiled(contender.name, function, *arguments, size=size)
    memory: Any = entry.program.memory_analysis()
    held = memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes
    entry.facts = {
        "compile_seconds": entry.facts["compile_seconds"],
        "product_flops": product_flops(jax.make_jaxpr(function)(*arguments)),
        "held_bytes": held - memory.alias_size_in_bytes,
        "temp_bytes": memory.temp_size_in_bytes,
    }
    return entry
