"""Our accountants and everybody else's on one grid, in one run, on one core: speed, error, wrong sides, memory.

    python -m benchmarks.test_accounting --output benchmarks/results/accounting_cpu.json

writes the JSON, and tables and a picture beside it. The peers are the ``benchmarks`` extra; a missing one is reported.
On a machine with a GPU the same command measures our functions there. As a test (``pytest benchmarks``) a tiny run
checks that the result is complete, that nobody's bracket contradicts ours, and that nothing compiles twice; never a
time.
"""

import argparse
import json
import pathlib
import time
from typing import Any, NamedTuple

import pytest

from benchmarks import machine, writing

PACKAGES = (
    "gdpjax", "jax", "jaxlib", "numpy", "scipy", "dp-accounting", "prv-accountant", "gdpnum", "riskcal", "autodp",
)  # fmt: skip


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
    """The whole benchmark. JAX is imported here, after the core is chosen."""
    from benchmarks import clocks
    from benchmarks.accounting import comparison, gaussian, grid, ours

    start, load_before = time.perf_counter(), machine.load_average()
    runs = grid.make_grid(settings.configurations)
    compilations = comparison.count_compilations(runs)
    lower, upper = ours.FUNCTIONS["epsilon_bounds"].call(*runs.columns())
    estimate, moments = (
        ours.FUNCTIONS[name].call(*runs.columns()) for name in ("epsilon_estimate", "moments_accountant_epsilon")
    )
    accuracy = comparison.accuracy_of_ours(lower, upper, estimate, moments)
    raced = comparison.race(runs, settings.subset, settings.repetitions, settings.patience, settings.sweep_seconds)
    result = {
        "what": "certified epsilon, estimates, moments accountant and exact Gaussian functions beside other libraries",
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
    """First calls and memory in processes of their own."""
    from benchmarks.accounting import fresh, ours

    def sizes(elementwise: bool) -> tuple[int, int]:
        return (settings.points, settings.points) if elementwise else (1, settings.memory_configurations)

    found = {}
    for name, function in ours.FUNCTIONS.items():
        first, many = sizes(function.elementwise)
        memory = fresh.in_new_process(name, many)
        found[name] = {"first_call": memory if first == many else fresh.in_new_process(name, first), "memory": memory}
    return found


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What was aimed at, beside what was measured."""
    from benchmarks.accounting import ours

    found = {}
    for name, function in ours.FUNCTIONS.items():
        if function.target is not None:
            rates = result["gaussian"][name]["per_second"]["gdpjax"] if function.elementwise else None
            measured = (rates or result["batched"]["per_second"][name])["median"]
            found[f"{name}, per second"] = {"target": float(function.target), "measured": measured, "at_least": True}
    width = result["accuracy"]["epsilon_bounds"]["relative_width"]["max_size"]
    found["epsilon_bounds, largest relative width"] = {"target": ours.WIDTH_TARGET, "measured": width}
    found["epsilon_bounds, configurations wider than that"] = {
        "target": 0,
        "measured": result["accuracy"]["epsilon_bounds"]["wider_than_target"],
    }
    for name, at in result["fresh"].items():
        seconds, peak = at["first_call"]["first_call_seconds"], float(at["memory"]["peak_bytes"])
        found[f"{name}, first call, seconds"] = {"target": ours.FIRST_CALL_TARGET, "measured": seconds}
        found[f"{name}, peak memory, bytes"] = {"target": ours.MEMORY_TARGET, "measured": peak}
    for at in found.values():
        above = at.setdefault("at_least", False)
        at["met"] = bool(at["measured"] >= at["target"] if above else at["measured"] <= at["target"])
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

    result = run(Settings(**options)) | {"command": "python -m benchmarks.test_accounting"}
    writing.write(result, output, report.markdown, figure.draw)


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run(Settings(12, 2, 1, 1000, 0.0, 0.5, processes=False))


@pytest.mark.slow
def test_the_result_is_complete_json_and_a_table(result):
    from benchmarks.accounting import ours, report

    again = json.loads(json.dumps(result, allow_nan=False))
    assert set(again["batched"]["per_second"]) | set(again["gaussian"]) == set(ours.FUNCTIONS)
    assert all({"target", "measured", "met"} <= set(target) for target in again["targets"].values())
    named = [*again["comparison"]["libraries"], *again["comparison"]["missing"]]
    assert len(again["comparison"]["subset"]) == 2
    tables = report.markdown(result | {"command": "pytest"})
    assert all(name in tables for name in [*ours.FUNCTIONS, *named])


@pytest.mark.slow
def test_nobody_s_bracket_contradicts_ours(result):
    assert result["accuracy"]["epsilon_bounds"]["relative_width"]["count"] == 12
    assert result["accuracy"]["moments_accountant_epsilon"]["below_certified_lower"] == 0
    for name, at in result["comparison"]["libraries"].items():
        assert at["wrong_side"] == [], name
        assert at["standing"] != "upper" or at["relative_error"]["min"] > -1e-3, name


def test_the_arbiter_tells_a_false_end_from_a_true_one():
    from benchmarks.accounting import arbiter
    from gdpjax import accounting

    run = (2.0, 0.05, 100, 1e-6)
    low, high = (float(end) for end in accounting.epsilon_bounds(*run))
    assert arbiter.verdict(run, "upper", 0.99 * low, [low, high]) == "the peer"
    assert arbiter.verdict(run, "lower", 1.01 * high, [low, high]) == "the peer"
    assert arbiter.verdict(run, "upper", 1.01 * high, [1.02 * high, 1.03 * high]) == "gdpjax"
    assert arbiter.verdict(run, "lower", 0.99 * low, [0.97 * low, 0.98 * low]) == "gdpjax"
    assert arbiter.verdict(run, "upper", high, [low, high]) == "undecided"


@pytest.mark.slow
def test_nothing_compiles_per_configuration(result):
    for name, counts in result["batched"]["compilations"].items():
        assert counts["first_call"] <= 1, name
        assert counts["other_values"] == 0, name
        assert counts["one_alone"] <= 2, name
        assert counts["others_alone"] == 0, name
    for name, at in result["gaussian"].items():
        assert at["compilations"]["first_call"] <= 1, name
        assert at["compilations"]["other_values"] == 0, name


if __name__ == "__main__":
    main()
