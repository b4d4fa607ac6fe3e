"""Random allocation: our certified brackets beside those of PLD_accounting, in one run, on one core: speed and width.

    python -m benchmarks.bench_allocation --output allocation_cpu.json

writes the JSON, and a table beside it. Without the peer (`pip install PLD_accounting==2.0`) ours stand beside what the
peer took and said on a shared machine.
"""

import argparse
import importlib
import pathlib
import statistics
import time
from typing import Any, NamedTuple

from benchmarks import machine, writing
from benchmarks.tables import table

PACKAGES = ("gdpjax", "jax", "jaxlib", "numpy", "scipy", "PLD_accounting", "dp-accounting", "numba")
WIDTH_TARGET = 1e-3
SPEED_TARGET = 30.0


RUN = ("noise_multiplier", "num_steps", "num_epochs", "delta")
"""What a run is told by."""


class Configuration(NamedTuple):
    """One of ``num_steps`` steps in each of ``num_epochs`` epochs, and what PLD_accounting 2.0 said of it."""

    noise_multiplier: float
    num_steps: int
    num_epochs: int
    delta: float
    peer_lower: float
    peer_upper: float
    peer_seconds: float

    @property
    def run(self) -> tuple[float, int, int, float]:
        """Return the numbers of `RUN`."""
        return self.noise_multiplier, self.num_steps, self.num_epochs, self.delta


CONFIGURATIONS = (
    Configuration(0.6, 2, 1, 1e-5, 7.278240836568467, 7.358480073848003, 13.51),
    Configuration(0.6, 2, 1, 1e-8, 9.5807192414756, 9.660868620213147, 12.42),
    Configuration(0.6, 2, 5, 1e-5, 18.836095789741613, 18.951503289341748, 14.56),
    Configuration(0.6, 2, 5, 1e-8, 23.80203791268275, 23.90934578672706, 13.45),
    Configuration(0.6, 2, 20, 1e-5, 47.282605895433896, 47.43329771329769, 21.07),
    Configuration(0.6, 2, 20, 1e-8, 56.72630471494428, 56.8611483205192, 22.05),
    Configuration(0.6, 10, 1, 1e-8, 7.980051410626762, 8.01237384885874, 12.48),
    Configuration(0.6, 10, 5, 1e-5, 11.99949936391989, 12.076148047223924, 17.86),
    Configuration(0.6, 10, 20, 1e-5, 26.042685050346034, 26.153827987639982, 78.2),
    Configuration(0.6, 10, 20, 1e-8, 33.25980610800166, 33.357099213252305, 121.51),
    Configuration(0.6, 100, 20, 1e-8, 13.096596663466585, 13.188194051285317, 1237.84),
    Configuration(0.6, 1000, 5, 1e-8, 4.019813830984783, 4.0863798707598376, 45.69),
    Configuration(1.0, 2, 1, 1e-8, 5.050327613560741, 5.132815636437012, 1.15),
    Configuration(1.0, 2, 5, 1e-5, 8.787473279419947, 8.88603456901483, 1.21),
    Configuration(1.0, 10, 1, 1e-8, 3.482608854576467, 3.51664143702795, 0.93),
    Configuration(1.0, 10, 5, 1e-5, 4.243452674708505, 4.322845766911284, 2.32),
    Configuration(1.0, 10, 5, 1e-8, 6.065203427638213, 6.137224281488776, 3.21),
    Configuration(1.0, 100, 5, 1e-5, 1.1792932506701461, 1.2339034724275642, 7.39),
    Configuration(1.0, 1000, 1, 1e-5, 0.13637424910075951, 0.1421825720585536, 40.47),
    Configuration(1.0, 1000, 1, 1e-8, 0.28837789125953983, 0.3001940687679946, 23.04),
    Configuration(2.0, 2, 1, 1e-5, 1.4166519093189802, 1.4909632331468052, 1.15),
    Configuration(2.0, 2, 1, 1e-8, 2.040846599330418, 2.120150353102954, 1.14),
    Configuration(2.0, 10, 1, 1e-8, 0.9163823639708503, 0.9615888549729189, 0.7),
    Configuration(2.0, 10, 5, 1e-8, 1.9857052247052678, 2.0679238149699914, 1.03),
    Configuration(2.0, 1000, 1, 1e-5, 0.04785138146696594, 0.049866803025534735, 52.45),
    Configuration(2.0, 1000, 1, 1e-8, 0.07551896981148461, 0.07837347391991213, 28.39),
)


class Settings(NamedTuple):
    """Sizes of a run; ``patience`` in seconds ends a call of the peer, and 0 leaves the peer out."""

    configurations: int = len(CONFIGURATIONS)
    repetitions: int = 3
    patience: float = 120.0


def _epsilon(at: Configuration) -> tuple[float, float]:
    """(lower, upper) of ours."""
    from gdpjax import accounting, ledger

    event = ledger.AllocationEvent(at.noise_multiplier, at.num_steps, at.num_epochs)
    return accounting.epsilon_bounds(event, delta=at.delta)


def _peer_epsilon(at: Configuration) -> tuple[float, float]:
    """(lower, upper) by PLD_accounting at its defaults."""
    upper, lower = importlib.import_module("PLD_accounting").gaussian_allocation_epsilon_range(
        delta=at.delta, sigma=at.noise_multiplier, num_steps=at.num_steps, num_epochs=at.num_epochs
    )
    return lower, upper


def _peer_is_missing(settings: Settings) -> str | None:
    if settings.patience <= 0:
        return "left out"
    try:
        importlib.import_module("PLD_accounting")
    except ImportError as failure:
        return f"{type(failure).__name__}: {failure}"
    return None


def run(settings: Settings) -> dict[str, Any]:
    """Run the whole benchmark. JAX is imported here, after the core is chosen."""
    from benchmarks import clocks

    start, load_before = time.perf_counter(), machine.load_average()
    chosen = CONFIGURATIONS[: settings.configurations]
    missing = _peer_is_missing(settings)

    # Nothing is compiled; the first call is timed by itself.
    first = clocks.time_call(lambda: _epsilon(chosen[0]))
    compiled = clocks.compilations()
    brackets = [_epsilon(each) for each in chosen]
    batch = []
    for _ in range(settings.repetitions):
        batch.append(clocks.time_call(lambda: [_epsilon(each) for each in chosen]))

    rows = []
    for configuration, (lower, upper) in zip(chosen, brackets, strict=True):
        row = _measure(configuration, float(lower), float(upper), settings.repetitions)
        peer = _recorded_peer(configuration) if missing else _measured_peer(configuration, settings.patience)
        rows.append(row | {"peer": peer} | _comparison(row, peer))

    result = {
        "what": "certified epsilon of random allocation beside PLD_accounting",
        "machine": machine.describe(PACKAGES),
        "load_average_before": load_before,
        "settings": settings._asdict(),
        "missing": {} if missing is None else {"PLD_accounting": missing},
        "first_call_seconds": first.wall,
        "compilations_after_the_first_call": clocks.compilations() - compiled,
        "batch": clocks.rates(len(chosen), batch),
        "rows": rows,
    }
    result["targets"] = targets(result)
    return result | {"load_average_after": machine.load_average(), "total_seconds": time.perf_counter() - start}


def _measure(at: Configuration, lower: float, upper: float, repetitions: int) -> dict[str, Any]:
    """Return our bracket of one configuration, and what a call for it alone takes."""
    from benchmarks import clocks

    times = []
    for _ in range(repetitions):
        times.append(clocks.time_call(lambda: _epsilon(at)))
    return {
        **dict(zip(RUN, at.run, strict=True)),
        "lower": lower,
        "upper": upper,
        "relative_width": upper / lower - 1,
        "seconds": statistics.median(each.wall for each in times),
        "cpu_seconds": statistics.median(each.cpu for each in times),
    }


def _recorded_peer(at: Configuration) -> dict[str, Any]:
    """Return what the peer said and took on a shared machine."""
    return {"lower": at.peer_lower, "upper": at.peer_upper, "seconds": at.peer_seconds, "measured": False}


def _measured_peer(at: Configuration, patience: float) -> dict[str, Any]:
    """Return what the peer says and takes here, or its error."""
    from benchmarks import clocks

    outcome = clocks.attempt(lambda: _peer_epsilon(at), patience)
    lower, upper = outcome.value or (None, None)
    wall, cpu = outcome.times
    return {
        "lower": lower,
        "upper": upper,
        "seconds": wall,
        "cpu_seconds": cpu,
        "measured": True,
        "error": outcome.error,
    }


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
        "largest relative width": writing.at_most(WIDTH_TARGET, widest),
        "times faster than the peer, least": writing.at_least(SPEED_TARGET, slowest),
        "brackets that do not meet": writing.at_most(0, apart),
    }


COLUMNS = (
    "noise",
    "steps",
    "epochs",
    "delta",
    "lower",
    "upper",
    "relative width",
    "CPU ms",
    "peer lower",
    "peer upper",
    "peer s",
    "times faster",
)


def markdown(result: dict[str, Any]) -> str:
    """Return the table of all configurations, and the targets."""
    sections = [
        ("Configurations", table(COLUMNS, [_cells(row) for row in result["rows"]])),
        ("Targets", writing.targets_table(result["targets"], "target")),
    ]
    return writing.document("Random allocation", [machine_line(result)], sections)


def _cells(row: dict[str, Any]) -> tuple[Any, ...]:
    peer = row["peer"]
    at_least = ">= " if row["times_faster_at_least"] else ""
    return (
        *(row[name] for name in RUN),
        f"{row['lower']:.6g}",
        f"{row['upper']:.6g}",
        row["relative_width"],
        1000 * row["cpu_seconds"],
        None if peer["lower"] is None else f"{peer['lower']:.6g}",
        None if peer["upper"] is None else f"{peer['upper']:.6g}",
        peer.get("cpu_seconds", peer["seconds"]),
        f"{at_least}{row['times_faster']:.3g}",
    )


def machine_line(result: dict[str, Any]) -> str:
    """Return on which machine it ran, and where the peer's figures are from."""
    peer = "measured in the same run" if not result["missing"] else "as recorded on a shared machine"
    return (
        f"{result['machine']['cpu']}, {result['machine']['cpu_cores_used']} core(s); PLD_accounting {peer}; "
        f"{result['batch']['median']:.3g} configurations a second in one call; first call "
        f"{result['first_call_seconds']:.3g} s."
    )


def main(arguments: list[str] | None = None) -> None:
    """Run, print the table, write the JSON and the table beside it."""
    machine.use_cores(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True, help="the JSON to write; a table goes beside it")
    defaults = Settings()
    parser.add_argument("--configurations", type=int, default=defaults.configurations)
    parser.add_argument("--repetitions", type=int, default=defaults.repetitions)
    parser.add_argument("--patience", type=float, default=defaults.patience)
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    result = run(Settings(**options)) | {"command": "python -m benchmarks.bench_allocation"}
    writing.write_with_tables(result, output, markdown(result))


if __name__ == "__main__":
    main()
