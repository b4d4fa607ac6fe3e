"""The private training loop: what its bookkeeping costs, and steps per second beside other libraries.

    python -m benchmarks.bench_training --output benchmarks/results/training_cpu.json

writes the JSON, and tables beside it. ``--cases`` and ``--contenders`` choose some of them, ``--preset cpu-tiny`` makes
all of them small. The peers are the ``benchmarks-clipping`` extra; a missing one is reported.
"""

from benchmarks import harness

BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_training",
    what="private training: its bookkeeping, and steps per second beside other libraries",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "dp-accounting", "torch", "opacus"),
    settings=harness.CaseSettings(),
    report="benchmarks.training.report",
    room="benchmarks.training",
    keeps_memory=True,
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
