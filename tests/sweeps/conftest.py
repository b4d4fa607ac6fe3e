"""The small data set of the experiments, and the configuration that goes with it."""

from tests.experiments.conftest import small_config, small_digits

__all__ = ["small_config", "small_digits"]
