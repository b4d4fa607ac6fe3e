"""The parts of `benchmarks.test_accounting`: one grid, our functions, the peers, clocks and counters, tables."""
