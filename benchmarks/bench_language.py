"""Private steps of language models, beside the step without privacy on the same rows, and beside jax_privacy.

    python -m benchmarks.bench_language --preset tiny --output benchmarks/results/language_tiny.json

writes the JSON, and tables beside it, for a processor. ``--cases`` (full, lora) and
``--contenders`` choose some; ``--merge`` keeps the other cases that the output already has, so that a long run can be
made in parts. The peer is jax_privacy (the ``benchmarks-clipping`` extra); a missing one is reported.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import harness


class Settings(NamedTuple):
    """Settings of a run: the preset is smallest, tiny or small. No names: all of its cases, all contenders."""

    preset: str = "tiny"
    threads: int = 1
    repetitions: int = 7
    cases: Sequence[str] = ()
    contenders: Sequence[str] = ()


def measure(settings: Settings) -> Iterator[dict[str, Any]]:
    """Yield what there is after each case."""
    from benchmarks.language import race, steps

    def of_case(case: Any, present: list[Any]) -> dict[str, Any]:
        return race.run(case, present, settings.repetitions)

    yield from harness.case_by_case(BENCHMARK, settings, steps.CONTENDERS, of_case)


BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_language",
    what="language models: private steps beside the step without privacy on the same rows",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "flax", "jax-privacy"),
    settings=Settings,
    measure=measure,
    report="benchmarks.language.report",
    cases=("cases", "benchmarks.language.cases"),
    keeps_memory=True,
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
