"""The parts of `benchmarks.bench_clipping`: models, contenders, one interleaved race, targets, tables and a picture."""
