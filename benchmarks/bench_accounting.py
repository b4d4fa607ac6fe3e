"""Our accountants and everybody else's on one grid, in one run, on one core: speed, error, wrong sides.

    python -m benchmarks.bench_accounting --output benchmarks/results/accounting_cpu.json

writes the JSON, and tables and a picture beside it. The peers are the ``benchmarks`` extra; a missing one is reported.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from benchmarks import harness


class Settings(NamedTuple):
    """Sizes of a run."""

    configurations: int = 1000
    subset: int = 24
    repetitions: int = 3
    patience: float = 30.0
    sweep_seconds: float = 240.0


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield everything at once."""
    from benchmarks import clocks
    from benchmarks.accounting import comparison, grid

    size = settings.configurations
    runs = grid.make_grid(size)
    accuracy = comparison.accuracy_of_ours(runs)
    raced = comparison.race(runs, settings.subset, settings.repetitions, settings.patience, settings.sweep_seconds)
    yield {
        "grid": {
            "size": size,
            "subset": settings.subset,
            "repetitions": settings.repetitions,
            "text": grid.TEXT,
            "epsilon": accuracy.pop("epsilon"),
        },
        "batched": {"per_second": {name: clocks.rates(size, each) for name, each in raced["batched"].items()}},
        "accuracy": accuracy,
        "comparison": comparison.summarize(runs, settings.subset, raced, *comparison.reference(runs)),
    }


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_accounting",
    what="certified epsilon and moments accountant beside other libraries",
    packages=(
        *("gdpjax", "jax", "jaxlib", "numpy", "scipy"),
        *("dp-accounting", "prv-accountant", "gdpnum", "riskcal", "autodp"),
    ),
    settings=Settings(),
    measure=measure,
    report="benchmarks.accounting.report",
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
