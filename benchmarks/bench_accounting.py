"""Our accountants and everybody else's on one grid, in one run, on one core: speed, error, wrong sides, memory.

    python -m benchmarks.bench_accounting --output benchmarks/results/accounting_cpu.json

writes the JSON, and tables and a picture beside it. The peers are the ``benchmarks`` extra; a missing one is reported.
On a machine with a GPU the same command measures our functions there.
"""

import argparse
import pathlib
import time
from typing import Any, NamedTuple

from benchmarks import machine, writing

OURS = ("gdpjax", "jax", "jaxlib", "numpy", "scipy")
PACKAGES = (*OURS, "dp-accounting", "prv-accountant", "gdpnum", "riskcal", "autodp")


class Settings(NamedTuple):
    """Sizes of a run."""

    configurations: int = 1000
    subset: int = 24
    repetitions: int = 3
    points: int = 1_000_000
    patience: float = 30.0
    sweep_seconds: float = 240.0
    memory_configurations: int = 10_000
    processes: bool = True


def run(settings: Settings) -> dict[str, Any]:
    """Run the whole benchmark. JAX is imported here, after the core is chosen."""
    from benchmarks import clocks
    from benchmarks.accounting import comparison, gaussian, grid, ours

    start, load_before = time.perf_counter(), machine.load_average()
    runs = grid.make_grid(settings.configurations)
    compilations = comparison.count_compilations(runs)
    lower, upper = ours.FUNCTIONS["epsilon_bounds"].call(*runs.columns())
    moments = ours.FUNCTIONS["moments_accountant_epsilon"].call(*runs.columns())
    accuracy = comparison.accuracy_of_ours(lower, upper, moments)
    raced = comparison.race(runs, settings.subset, settings.repetitions, settings.patience, settings.sweep_seconds)
    result = {
        "what": "certified epsilon, moments accountant and exact Gaussian functions beside other libraries",
        "machine": machine.describe(PACKAGES),
        "load_average_before": load_before,
        "settings": settings._asdict(),
        "grid": {
            "size": settings.configurations,
            "subset": settings.subset,
            "repetitions": settings.repetitions,
            "text": grid.TEXT,
            "epsilon": accuracy.pop("epsilon"),
        },
        "batched": {
            "per_second": {
                name: clocks.rates(settings.configurations, each) for name, each in raced["batched"].items()
            },
            "compilations": compilations,
        },
        "accuracy": accuracy,
        "comparison": comparison.summarize(runs, settings.subset, raced, *comparison.reference(runs)),
        "gaussian": gaussian.measure(settings.points, settings.repetitions),
        "mu": comparison.compare_mu(runs, settings.subset, settings.repetitions),
        "fresh": _fresh(settings) if settings.processes else {},
    }
    result["targets"] = targets(result)
    return result | {"load_average_after": machine.load_average(), "total_seconds": time.perf_counter() - start}


def _fresh(settings: Settings) -> dict[str, Any]:
    """Measure first calls and memory in processes of their own."""
    from benchmarks.accounting import fresh, ours

    results = {}
    for name, function in ours.FUNCTIONS.items():
        if function.elementwise:
            # One process for both.
            memory = fresh.in_new_process(name, settings.points)
            first_call = memory
        else:
            memory = fresh.in_new_process(name, settings.memory_configurations)
            first_call = memory
            if settings.memory_configurations != 1:
                first_call = fresh.in_new_process(name, 1)
        results[name] = {"first_call": first_call, "memory": memory}
    return results


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured."""
    from benchmarks.accounting import ours

    found = {}
    for name, function in ours.FUNCTIONS.items():
        if function.target is None:
            continue
        if function.elementwise:
            rate = result["gaussian"][name]["per_second"]["gdpjax"]
        else:
            rate = result["batched"]["per_second"][name]
        found[f"{name}, per second"] = writing.at_least(float(function.target), rate["median"])

    accuracy = result["accuracy"]["epsilon_bounds"]
    widest, num_wider = accuracy["relative_width"]["max_size"], accuracy["wider_than_target"]
    found["epsilon_bounds, largest relative width"] = writing.at_most(ours.WIDTH_TARGET, widest)
    found["epsilon_bounds, configurations wider than that"] = writing.at_most(0, num_wider)

    for name, measured in result["fresh"].items():
        seconds = measured["first_call"]["first_call_seconds"]
        peak = float(measured["memory"]["peak_bytes"])
        found[f"{name}, first call, seconds"] = writing.at_most(ours.FIRST_CALL_TARGET, seconds)
        found[f"{name}, peak memory, bytes"] = writing.at_most(ours.MEMORY_TARGET, peak)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Run, print the tables, write the JSON and the tables beside it."""
    machine.use_cores(1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--output", type=pathlib.Path, required=True, help="the JSON to write; tables and a picture go beside it"
    )
    defaults = Settings()
    for name in ("configurations", "subset", "repetitions", "points", "memory_configurations"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(defaults, name))
    for name in ("patience", "sweep_seconds"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=float, default=getattr(defaults, name))
    options = vars(parser.parse_args(arguments))
    output = options.pop("output")
    from benchmarks.accounting import figure, report

    result = run(Settings(**options)) | {"command": "python -m benchmarks.bench_accounting"}
    writing.write(result, output, report.markdown, figure.draw)


if __name__ == "__main__":
    main()
