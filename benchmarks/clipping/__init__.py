"""The parts of `benchmarks.test_clipping`: models, contenders, one interleaved race, targets, tables and a picture."""
