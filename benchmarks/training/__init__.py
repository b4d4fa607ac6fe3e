"""The parts of `benchmarks.test_training`: cases, the private step in parts, whole trainings, tables and a picture."""
