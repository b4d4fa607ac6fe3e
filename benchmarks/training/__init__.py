"""The parts of `benchmarks.bench_training`: cases, the private step in parts, whole trainings, tables and a picture."""
