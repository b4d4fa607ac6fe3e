"""Our accountants and everybody else's on one grid, in one run, on one core: speed, error, wrong sides, memory.

    python -m benchmarks.bench_accounting --output benchmarks/results/accounting_cpu.json

writes the JSON, and tables and a picture beside it. The peers are the ``benchmarks`` extra; a missing one is reported.
On a machine with a GPU the same command measures our functions there.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import harness


class Settings(NamedTuple):
    """Sizes of a run; without ``processes`` first calls and memory are left out."""

    configurations: int = 1000
    subset: int = 24
    repetitions: int = 3
    points: int = 1_000_000
    patience: float = 30.0
    sweep_seconds: float = 240.0
    memory_configurations: int = 10_000
    processes: bool = True


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield everything at once."""
    from benchmarks import clocks
    from benchmarks.accounting import comparison, gaussian, grid, ours

    size = settings.configurations
    runs = grid.make_grid(size)
    compilations = comparison.count_compilations(runs)
    lower, upper = ours.FUNCTIONS["epsilon_bounds"].call(*runs)
    moments = ours.FUNCTIONS["moments_accountant_epsilon"].call(*runs)
    accuracy = comparison.accuracy_of_ours(lower, upper, moments)
    raced = comparison.race(runs, settings.subset, settings.repetitions, settings.patience, settings.sweep_seconds)
    yield {
        "grid": {
            "size": size,
            "subset": settings.subset,
            "repetitions": settings.repetitions,
            "text": grid.TEXT,
            "epsilon": accuracy.pop("epsilon"),
        },
        "batched": {
            "per_second": {name: clocks.rates(size, each) for name, each in raced["batched"].items()},
            "compilations": compilations,
        },
        "accuracy": accuracy,
        "comparison": comparison.summarize(runs, settings.subset, raced, *comparison.reference(runs)),
        "gaussian": gaussian.measure(settings.points, settings.repetitions),
        "mu": comparison.compare_mu(runs, settings.subset, settings.repetitions),
        "fresh": _fresh(settings) if settings.processes else {},
    }


def _fresh(settings: Settings) -> dict[str, Any]:
    """Measure first calls and memory in processes of their own; one does for both where the sizes are the same."""
    from benchmarks.accounting import fresh, ours

    results = {}
    for name, function in ours.FUNCTIONS.items():
        size = settings.points if function.elementwise else settings.memory_configurations
        memory = fresh.in_new_process(name, size)
        alone = function.elementwise or size == 1
        results[name] = {"first_call": memory if alone else fresh.in_new_process(name, 1), "memory": memory}
    return results


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_accounting",
    what="certified epsilon, moments accountant and exact Gaussian functions beside other libraries",
    packages=(
        *("gdpjax", "jax", "jaxlib", "numpy", "scipy"),
        *("dp-accounting", "prv-accountant", "gdpnum", "riskcal", "autodp"),
    ),
    settings=Settings,
    measure=measure,
    report="benchmarks.accounting.report",
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
