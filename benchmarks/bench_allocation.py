"""Random allocation: our certified brackets on one core, beside those of PLD_accounting: speed and width.

    python -m benchmarks.bench_allocation --output allocation_cpu.json

writes the JSON, and a table beside it. What PLD_accounting 2.0 took and said on a shared machine is in
`allocation.csv`.
"""

import functools
import pathlib
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import harness
from experiments.tables import document, table_of, targets_table

WIDTH_TARGET = 1e-3
SPEED_TARGET = 30.0
RUN = ("noise_multiplier", "num_steps", "num_epochs", "delta")
"""What a run is told by: one of so many steps in each of so many epochs."""
RECORDED = pathlib.Path(__file__).with_name("allocation.csv")


class Settings(NamedTuple):
    """Sizes of a run."""

    configurations: int = 26
    repetitions: int = 3


def configurations() -> list[dict[str, Any]]:
    """Return the runs, and what PLD_accounting 2.0 said of each and took."""
    return harness.recorded(RECORDED)


def _epsilon(at: dict[str, Any]) -> tuple[float, float]:
    """(lower, upper) of ours."""
    from gdpjax import accounting, ledger

    event = ledger.AllocationEvent(at["noise_multiplier"], at["num_steps"], at["num_epochs"])
    return accounting.epsilon_bounds(event, delta=at["delta"])


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield everything at once. Nothing is compiled."""
    from benchmarks import turns

    chosen = configurations()[: settings.configurations]
    calls = {str(number): functools.partial(_epsilon, at) for number, at in enumerate(chosen)}
    times = turns.in_turn(calls, settings.repetitions)
    yield {"rows": [_row(at, of_call) for at, of_call in zip(chosen, times.values(), strict=True)]}


def _row(at: dict[str, Any], times: list[Any]) -> dict[str, Any]:
    """Return our bracket of one configuration, what a call for it takes, and how the peer compares."""
    lower, upper = (float(end) for end in _epsilon(at))
    peer = {key: at[key] for key in ("lower", "upper", "seconds")}
    cpu_seconds = statistics.median(each.cpu for each in times)
    return {
        **{name: at[name] for name in RUN},
        "lower": lower,
        "upper": upper,
        "relative_width": upper / lower - 1,
        "seconds": statistics.median(each.wall for each in times),
        "cpu_seconds": cpu_seconds,
        "peer": peer,
        "times_faster": peer["seconds"] / cpu_seconds,
        "brackets_meet": peer["lower"] <= upper and lower <= peer["upper"],
    }


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured."""
    rows = result["rows"]
    widest = max(row["relative_width"] for row in rows)
    slowest = min(row["times_faster"] for row in rows)
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
peer s | peer.seconds
times faster | times_faster | .3g
"""


def markdown(result: dict[str, Any]) -> str:
    """Return the table of all configurations, and the targets."""
    about = (
        f"{result['machine']['cpu']}, {result['machine']['cpu_cores_used']} core(s); PLD_accounting as recorded on a "
        "shared machine."
    )
    sections = [("Configurations", table_of(COLUMNS, result["rows"])), ("Targets", targets_table(result))]
    return document("Random allocation", [about], sections)


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_allocation",
    what="certified epsilon of random allocation beside PLD_accounting",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "scipy"),
    settings=Settings(),
    measure=measure,
    report="benchmarks.bench_allocation",
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
