"""Clipped gradients, ours and everybody else's, on one model after another: step and compile time, memory, flops.

    python -m benchmarks.bench_clipping --output benchmarks/results/clipping_cpu.json

writes the JSON, and tables and a picture beside it. ``--cases`` and ``--contenders`` choose some of them, ``--preset
cpu-tiny`` makes all of them small. The peers are the ``benchmarks-clipping`` extra; a missing one is reported.
"""

from benchmarks import harness

BENCHMARK = harness.Benchmark(
    module="benchmarks.bench_clipping",
    what="gradient steps with per-example clipping beside other libraries and beside no privacy",
    packages=("gdpjax", "jax", "jaxlib", "numpy", "optax", "jax-privacy", "torch", "opacus"),
    settings=harness.CaseSettings(),
    report="benchmarks.clipping.report",
    room="benchmarks.clipping",
)

if __name__ == "__main__":
    harness.main(BENCHMARK)
