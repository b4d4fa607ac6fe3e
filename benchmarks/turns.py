"""The race: everybody compiled and tried once, then rounds in which each gets one turn.

The order rotates from round to round, so that a disturbance of the machine falls on all. A turn is as many calls as
fill a tenth of a second, after one untimed call: a training loop's caches are warm too.
"""

import dataclasses
import functools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks import clocks
from benchmarks.harness import Contender

TURN_SECONDS = 0.1
"""How long a turn lasts, at least."""
MOST_CALLS = 50
"""In one turn, however short they are."""
PAUSE_SECONDS = 0.02
"""Before each turn: the threads of the one before may still spin."""
LIMIT = 900.0
"""Seconds after which a compilation or a trial is given up."""
KEEP = 1.15
"""How much slower than a contender's fastest size another one may be to stay in."""


@dataclasses.dataclass
class Entry:
    """A call that is ready to run, and what is known of it.

    Attributes:
      name: the contender's.
      microbatch_size: None for all rows at once, or where there is no such choice.
      call: takes ``num_steps`` steps.
      facts: for the JSON.
      trial_seconds: of one call.
      num_steps: steps of a call.
      times: of one step, turn by turn.
      program: what JAX compiled, if it was that.
    """

    name: str
    microbatch_size: int | None
    call: Callable[[], Any]
    facts: dict[str, Any]
    trial_seconds: float = math.inf
    num_steps: int = 1
    times: list[clocks.Times] = dataclasses.field(default_factory=list)
    program: Any = None

    @property
    def seconds(self) -> list[float]:
        """Return the seconds by the clock, turn by turn."""
        return [each.wall for each in self.times]

    @property
    def processor_seconds(self) -> list[float]:
        """Return the processor's seconds, which other processes of the machine disturb least."""
        return [each.cpu for each in self.times]

    @property
    def median(self) -> float:
        """Return the median of the seconds by the clock."""
        return statistics.median(self.seconds)

    def result(self) -> dict[str, Any]:
        """Return the times and the facts."""
        seconds, processor = spread(self.seconds), spread(self.processor_seconds)
        times = {"seconds": seconds, "processor_seconds": processor}
        return {"microbatch_size": self.microbatch_size, **times, **self.facts}

    def over(self, base: "Entry") -> dict[str, Any]:
        """Return the ratios of medians to another entry's, and the spread of the ratios round by round."""
        return {
            "time": self.median / base.median,
            "processor": statistics.median(self.processor_seconds) / statistics.median(base.processor_seconds),
            "by_round": spread(ratios(self.seconds, base.seconds)),
        }


def compiled(
    name: str,
    function: Callable[..., Any],
    *arguments: Any,
    size: int | None = None,
    carried: bool = False,
) -> tuple[Entry, Any]:
    """Return the entry of a JAX function of these arguments, compiled and run once, and what it returned.

    With ``carried`` each call goes on with what the one before returned, whose arrays are donated.
    """
    donated = tuple(range(len(arguments))) if carried else ()
    watch = clocks.Stopwatch()
    program = jax.jit(function, donate_argnums=donated).lower(*arguments).compile()
    compile_seconds = watch.read().wall

    # XLA's own account of the program.
    memory: Any = program.memory_analysis()
    cost = program.cost_analysis() or {}
    facts = {
        "compile_seconds": compile_seconds,
        "temp_bytes": getattr(memory, "temp_size_in_bytes", None),
        "flops": cost.get("flops"),
    }
    values = list(arguments)

    def call() -> Any:
        result = jax.block_until_ready(program(*values))
        if carried:
            values[:] = result
        return result

    watch = clocks.Stopwatch()
    value = call()
    return Entry(name, size, call, facts, watch.read().wall, program=program), value


def race(
    contenders: Iterable[Contender],
    prepare: Callable[[Contender, int | None], Entry],
    repetitions: int,
    keep: float = KEEP,
) -> tuple[list[Entry], dict[str, dict[str, Any]]]:
    """Return the entries that took turns, and for each contender why which of its sizes refused.

    A contender is tried at each of its microbatch sizes; those that took at most ``keep`` times as long as its fastest
    one race.
    """
    entries: list[Entry] = []
    results: dict[str, dict[str, Any]] = {}
    for contender in contenders:
        ready, refused = [], {}
        for size in contender.sizes:
            outcome = clocks.attempt(functools.partial(prepare, contender, size), LIMIT)
            if outcome.error:
                refused[str(size)] = outcome.error
            else:
                ready.append(outcome.value)
        best = min((entry.trial_seconds for entry in ready), default=0.0)
        entries += [entry for entry in ready if entry.trial_seconds <= keep * best]
        trials = {str(entry.microbatch_size): entry.trial_seconds / entry.num_steps for entry in ready}
        results[contender.name] = {"refused": refused, "trial_seconds": trials}
    take_turns(entries, repetitions)
    return entries, results


def fastest(entries: Sequence[Entry], name: str) -> Entry | None:
    """Return a contender's entry with the least median, if it has any."""
    own = [entry for entry in entries if entry.name == name]
    return min(own, key=lambda entry: entry.median, default=None)


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
    num_steps = num_calls * entry.num_steps
    entry.times.append(clocks.Times(wall / num_steps, cpu / num_steps))


def in_turn(calls: dict[str, Callable[[], Any]], repetitions: int) -> dict[str, list[clocks.Times]]:
    """Return the times of each call, one a turn; call each once before, so that nothing is compiled here."""
    entries = [Entry(name, None, call, {}) for name, call in calls.items()]
    take_turns(entries, repetitions)
    return {entry.name: entry.times for entry in entries}


def spread(values: list[float]) -> dict[str, Any]:
    """Return the median, the quartiles, and all values."""
    q1, median, q3 = (float(quantile) for quantile in np.quantile(values, (0.25, 0.5, 0.75)))
    return {"median": median, "q1": q1, "q3": q3, "all": values}


def ratios(values: Sequence[float], bases: Sequence[float]) -> list[float]:
    """Return the quotients, round by round."""
    return [value / base for value, base in zip(values, bases, strict=True)]
