"""The parts of `benchmarks.bench_correlated`: errors by family, the cost of a step's noise, optimisers, and tables."""
