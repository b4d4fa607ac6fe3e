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

TURN_SECONDS = 0.1
"""How long a turn lasts, at least."""
MOST_CALLS = 50
"""In one turn, however short they are."""
PAUSE_SECONDS = 0.02
"""Before each turn: the threads of the one before may still spin."""


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
        """Return the seconds by the clock, turn by turn."""
        return [each.wall for each in self.times]


def compiled(name: str, function: Callable[..., Any], *arguments: Any, size: int | None = None) -> tuple[Entry, Any]:
    """Return the entry of a JAX function of these arguments, compiled and run once, and what it returned."""
    watch = clocks.Stopwatch()
    program = jax.jit(function).lower(*arguments).compile()
    compile_seconds = watch.read().wall

    # XLA's own account of the program.
    memory = program.memory_analysis()
    cost = program.cost_analysis() or {}
    facts = {
        "compile_seconds": compile_seconds,
        "temp_bytes": getattr(memory, "temp_size_in_bytes", None),
        "flops": cost.get("flops"),
    }

    def call() -> Any:
        return jax.block_until_ready(program(*arguments))

    watch = clocks.Stopwatch()
    value = call()
    trial_seconds = watch.read().wall
    return Entry(name, size, call, facts, trial_seconds), value


def take_turns(entries: list[Entry], repetitions: int) -> None:
    """Give each entry one turn in each of ``repetitions`` rounds; the times go to the entries."""
    for round_number in range(repetitions):
        # Each round begins with another entry.
        first = round_number % max(len(entries), 1)
        for entry in entries[first:] + entries[:first]:
            time.sleep(PAUSE_SECONDS)
            _take_turn(entry)


def _take_turn(entry: Entry) -> None:
    """Time as many calls as fill a turn, after one that is not timed unless it takes long."""
    num_calls = math.ceil(TURN_SECONDS / entry.trial_seconds)
    num_calls = min(max(num_calls, 1), MOST_CALLS)
    if entry.trial_seconds < 1:
        entry.call()

    watch = clocks.Stopwatch()
    for _ in range(num_calls):
        entry.call()
    wall, cpu = watch.read()
    entry.times.append(clocks.Times(wall / num_calls, cpu / num_calls))


def spread(values: list[float]) -> dict[str, Any]:
    """Return the median, the quartiles, and all values."""
    q1, median, q3 = (float(quantile) for quantile in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "q1": q1, "q3": q3, "all": values}
