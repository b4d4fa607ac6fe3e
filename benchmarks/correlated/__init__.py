"""The parts of `benchmarks.test_correlated`: errors by family, the cost of a step's noise, optimisers, and tables."""
