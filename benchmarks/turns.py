"""Timing in turns: everybody compiled and tried once, then rounds in which each gets one turn.

The order rotates from round to round, so that a disturbance of the machine falls on all. A turn is as many calls as
fill a tenth of a second, after one untimed call: a training loop's caches are warm too.
"""

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from benchmarks import clocks

TURN_SECONDS, MOST_CALLS, PAUSE_SECONDS = 0.1, 50, 0.02


@dataclasses.dataclass
class Entry:
    """A call that is ready to run, and what is known of it; ``times`` of one call, by turn."""

    name: str
    microbatch_size: int | None
    call: Callable[[], Any]
    facts: dict[str, Any]
    trial_seconds: float = math.inf
    times: list[clocks.Times] = dataclasses.field(default_factory=list)

    @property
    def seconds(self) -> list[float]:
        """By the clock, turn by turn."""
        return [each.wall for each in self.times]


def compiled(name: str, function: Callable[..., Any], *arguments: Any, size: int | None = None) -> tuple[Entry, Any]:
    """Return the entry of a JAX function of these arguments, compiled and run once, and what it returned."""
    watch = clocks.Stopwatch()
    program = jax.jit(function).lower(*arguments).compile()
    compiling = watch.read().wall
    memory, cost = program.memory_analysis(), program.cost_analysis()
    facts = {
        "compile_seconds": compiling,
        "temp_bytes": getattr(memory, "temp_size_in_bytes", None),
        "flops": (cost or {}).get("flops"),
    }
    watch = clocks.Stopwatch()
    value = jax.block_until_ready(program(*arguments))
    return Entry(name, size, lambda: jax.block_until_ready(program(*arguments)), facts, watch.read().wall), value


def take_turns(entries: list[Entry], repetitions: int) -> None:
    """``repetitions`` rounds; times go to the entries."""
    for i in range(repetitions):
        at = i % max(len(entries), 1)
        for entry in entries[at:] + entries[:at]:
            time.sleep(PAUSE_SECONDS)  # the last one's threads may still spin
            calls = min(max(math.ceil(TURN_SECONDS / entry.trial_seconds), 1), MOST_CALLS)
            if entry.trial_seconds < 1:
                entry.call()
            watch = clocks.Stopwatch()
            for _ in range(calls):
                entry.call()
            wall, cpu = watch.read()
            entry.times.append(clocks.Times(wall / calls, cpu / calls))


def spread(values: list[float]) -> dict[str, Any]:
    """Median, quartiles, and all of them."""
    q1, median, q3 = (float(q) for q in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "q1": q1, "q3": q3, "all": values}
