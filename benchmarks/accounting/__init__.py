"""The parts of `benchmarks.bench_accounting`: one grid, our functions, the peers, clocks and counters, tables."""
