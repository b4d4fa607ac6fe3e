"""Clipped gradients, ours and everybody else's, on one model after another: step and compile time, memory, flops.

    python -m benchmarks.bench_clipping --output benchmarks/results/clipping_cpu.json

writes the JSON, and tables and a picture beside it. ``--models`` and ``--contenders`` choose some of them; ``--merge``
keeps the other models that the output already has, so that a long run can be made in parts. The peers are the
``benchmarks-clipping`` extra; a missing one is reported.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import harness


class Settings(NamedTuple):
    """Settings of a run: the preset is cpu or cpu-tiny; threads, and cores, are of JAX and of torch.

    No names: all of the preset's models, all contenders.
    """

    preset: str = "cpu"
    threads: int = 1
    repetitions: int = 11
    models: Sequence[str] = ()
    contenders: Sequence[str] = ()


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield what there is after each model."""
    from benchmarks.clipping import contenders, race

    def of_case(case: Any, present: list[Any]) -> dict[str, Any]:
        return race.run(case, present, settings.repetitions)

    yield from harness.case_by_case(BENCHMARK, settings, contenders.CONTENDERS, of_case)


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_clipping",
    what="gradient steps with per-example clipping beside other libraries and beside no privacy",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "torch", "opacus"),
    settings=Settings,
    measure=measure,
    report="benchmarks.clipping.report",
    cases=("models", "benchmarks.clipping.cases"),
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
