"""Random allocation: our certified brackets beside those of PLD_accounting, in one run, on one core: speed and width.

    python -m benchmarks.bench_allocation --output allocation_cpu.json

writes the JSON, and a table beside it. Without the peer (`pip install PLD_accounting==2.0`) ours stand beside what the
peer took and said on a shared machine, which `allocation.csv` holds.
"""

import csv
import importlib
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import harness, machine
from benchmarks.tables import document, table_of, targets_table

WIDTH_TARGET = 1e-3
SPEED_TARGET = 30.0
RUN = ("noise_multiplier", "num_steps", "num_epochs", "delta")
"""What a run is told by: one of so many steps in each of so many epochs."""
RECORDED = pathlib.Path(__file__).with_name("allocation.csv")


class Settings(NamedTuple):
    """Sizes of a run; ``patience`` in seconds ends a call of the peer, and 0 leaves the peer out."""

    configurations: int = 26
    repetitions: int = 3
    patience: float = 120.0


def configurations() -> list[dict[str, Any]]:
    """Return the runs, and what PLD_accounting 2.0 said of each and took."""
    with RECORDED.open() as file:
        rows = [{key: float(text) for key, text in row.items()} for row in csv.DictReader(file)]
    return [row | {key: int(row[key]) for key in ("num_steps", "num_epochs")} for row in rows]


def _epsilon(at: dict[str, Any]) -> tuple[float, float]:
    """(lower, upper) of ours."""
    from gdpjax import accounting, ledger

    event = ledger.AllocationEvent(at["noise_multiplier"], at["num_steps"], at["num_epochs"])
    return accounting.epsilon_bounds(event, delta=at["delta"])


def _peer_epsilon(at: dict[str, Any]) -> tuple[float, float]:
    """(lower, upper) by PLD_accounting at its defaults."""
    upper, lower = importlib.import_module("PLD_accounting").gaussian_allocation_epsilon_range(
        delta=at["delta"], sigma=at["noise_multiplier"], num_steps=at["num_steps"], num_epochs=at["num_epochs"]
    )
    return lower, upper


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield everything at once."""
    from benchmarks import clocks, turns

    chosen = configurations()[: settings.configurations]
    missing = machine.why_missing("PLD_accounting") if settings.patience > 0 else "left out"

    # Nothing is compiled; the first call is timed by itself.
    first = clocks.time_call(lambda: _epsilon(chosen[0]))
    compiled = clocks.compilations()
    brackets = [_epsilon(each) for each in chosen]
    calls = {"all": lambda: [_epsilon(each) for each in chosen]}
    batch = turns.in_turn(calls, settings.repetitions)["all"]

    rows = []
    for configuration, (lower, upper) in zip(chosen, brackets, strict=True):
        row = _measure(configuration, float(lower), float(upper), settings.repetitions)
        peer = _peer(configuration, None if missing else settings.patience)
        rows.append(row | {"peer": peer} | _comparison(row, peer))
    yield {
        "missing": {} if missing is None else {"PLD_accounting": missing},
        "first_call_seconds": first.wall,
        "compilations_after_the_first_call": clocks.compilations() - compiled,
        "batch": clocks.rates(len(chosen), batch),
        "rows": rows,
    }


def _measure(at: dict[str, Any], lower: float, upper: float, repetitions: int) -> dict[str, Any]:
    """Return our bracket of one configuration, and what a call for it alone takes."""
    from benchmarks import turns

    times = turns.in_turn({"alone": lambda: _epsilon(at)}, repetitions)["alone"]
    return {
        **{name: at[name] for name in RUN},
        "lower": lower,
        "upper": upper,
        "relative_width": upper / lower - 1,
        "seconds": statistics.median(each.wall for each in times),
        "cpu_seconds": statistics.median(each.cpu for each in times),
    }


def _peer(at: dict[str, Any], patience: float | None) -> dict[str, Any]:
    """Return what the peer says and takes here, or its error; without patience what was recorded."""
    from benchmarks import clocks

    if patience is None:
        return {key: at[key] for key in ("lower", "upper", "seconds")} | {"measured": False}
    outcome = clocks.attempt(lambda: _peer_epsilon(at), patience)
    lower, upper = outcome.value or (None, None)
    seconds, cpu = outcome.times
    times = {"seconds": seconds, "cpu_seconds": cpu}
    return {"lower": lower, "upper": upper, **times, "measured": True, "error": outcome.error}


def _comparison(row: dict[str, Any], peer: dict[str, Any]) -> dict[str, Any]:
    """Return how many times faster we are, and whether the brackets meet."""
    # A call that was ended took at least so long.
    has_ended = peer["lower"] is None
    meets = has_ended or (peer["lower"] <= row["upper"] and row["lower"] <= peer["upper"])
    return {
        "times_faster": peer.get("cpu_seconds", peer["seconds"]) / row["cpu_seconds"],
        "times_faster_at_least": has_ended,
        "brackets_meet": bool(meets),
    }


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured."""
    rows = result["rows"]
    widest = max(row["relative_width"] for row in rows)
    slowest = min(row["times_faster"] for row in rows if not row["times_faster_at_least"])
    apart = sum(not row["brackets_meet"] for row in rows)
    return {
        "largest relative width": harness.at_most(WIDTH_TARGET, widest),
        "times faster than the peer, least": harness.at_least(SPEED_TARGET, slowest),
        "brackets that do not meet": harness.at_most(0, apart),
    }


COLUMNS = """
noise | noise_multiplier
steps | num_steps
epochs | num_epochs
delta | delta
lower | lower | .6g
upper | upper | .6g
relative width | relative_width
CPU ms | cpu_seconds | milli
peer lower | peer.lower | .6g
peer upper | peer.upper | .6g
peer s | peer_seconds
times faster | faster
"""


def markdown(result: dict[str, Any]) -> str:
    """Return the table of all configurations, and the targets."""
    rows = []
    for row in result["rows"]:
        at_least = ">= " if row["times_faster_at_least"] else ""
        seconds = row["peer"].get("cpu_seconds", row["peer"]["seconds"])
        rows.append(row | {"peer_seconds": seconds, "faster": f"{at_least}{row['times_faster']:.3g}"})
    peer = "measured in the same run" if not result["missing"] else "as recorded on a shared machine"
    about = (
        f"{result['machine']['cpu']}, {result['machine']['cpu_cores_used']} core(s); PLD_accounting {peer}; "
        f"{result['batch']['median']:.3g} configurations a second in one call; first call "
        f"{result['first_call_seconds']:.3g} s."
    )
    sections = [("Configurations", table_of(COLUMNS, rows)), ("Targets", targets_table(result))]
    return document("Random allocation", [about], sections)


BENCHMARK = harness.Benchmark(
    about=__doc__,
    module="benchmarks.bench_allocation",
    what="certified epsilon of random allocation beside PLD_accounting",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "scipy", "PLD_accounting", "dp-accounting", "numba"),
    settings=Settings,
    measure=measure,
    report="benchmarks.bench_allocation",
    targets=targets,
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
