"""The private training loop: what its bookkeeping costs, and steps per second beside other libraries.

    python -m benchmarks.bench_training --output benchmarks/results/training_cpu.json

writes the JSON, and tables beside it. ``--cases`` and ``--contenders`` choose some of them; ``--merge``
keeps the other cases that the output already has, so that a long run can be made in parts. The peers are the
``benchmarks-clipping`` extra; a missing one is reported.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import harness


class Settings(NamedTuple):
    """Settings of a run: the preset is cpu or cpu-tiny; threads, and cores, are of JAX and of torch.

    No names: all of the preset's cases, all contenders.
    """

    preset: str = "cpu"
    threads: int = 1
    repetitions: int = 11
    cases: Sequence[str] = ()
    contenders: Sequence[str] = ()


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield what there is after each case."""
    from benchmarks.training import race, trainers

    def of_case(case: Any, present: list[Any]) -> dict[str, Any]:
        return race.run(case, present, settings.repetitions)

    yield from harness.case_by_case(BENCHMARK, settings, trainers.CONTENDERS, of_case)


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_training",
    what="private training: its bookkeeping, and steps per second beside other libraries",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "dp-accounting", "torch", "opacus"),
    settings=Settings,
    measure=measure,
    report="benchmarks.training.report",
    cases=("cases", "benchmarks.training.cases"),
    keeps_memory=True,
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
