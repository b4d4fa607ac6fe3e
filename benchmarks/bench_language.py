"""Private steps of language models, beside the step without privacy on the same rows, and beside jax_privacy.

    python -m benchmarks.bench_language --preset tiny --output benchmarks/results/language_tiny.json

writes the JSON, and tables beside it, for a processor; presets are smallest, tiny and small. ``--cases`` (full, lora)
and ``--contenders`` choose some. The peer is jax_privacy (the ``benchmarks-clipping`` extra); it may be missing.
"""

from benchmarks import harness

BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_language",
    what="language models: private steps beside the step without privacy on the same rows",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "flax", "jax-privacy"),
    settings=harness.CaseSettings("tiny", repetitions=7),
    report="benchmarks.language.report",
    room="benchmarks.language",
    keeps_memory=True,
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
