"""The small data set of the experiments, the configuration that goes with it, and programs that tests share."""

import pytest

from tests.experiments.conftest import small_config, small_digits
from tests.sweeps.sweeps import programs_compiled_once

__all__ = ["small_config", "small_digits"]


@pytest.fixture(scope="module")
def shared_programs():
    """Sweeps of this module share their programs, which would take most of its time otherwise."""
    with programs_compiled_once():
        yield
