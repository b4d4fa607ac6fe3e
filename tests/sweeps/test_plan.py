"""The public constants of a run."""

import dataclasses

import pytest

from experiments.config import PRESETS
from experiments.train.tasks import numbers_of
from gdpjax.sweeps import UserError, plan_of


def make_plan(config, num_examples):
    """The plan of a configuration of the experiments."""
    return plan_of(numbers_of(config), config.privacy.delta, num_examples)


def test_overflow_is_paid_from_delta():
    assert 0 < make_plan(PRESETS["mnist"], 60_000).overflow <= 1e-12
    small = dataclasses.replace(PRESETS["mnist"].privacy, delta=1e-10)
    assert make_plan(dataclasses.replace(PRESETS["mnist"], privacy=small), 60_000).overflow <= 1e-13


def test_mistakes_are_the_users():
    with pytest.raises(UserError, match="expected_batch_size must be"):
        make_plan(PRESETS["digits"], 50)
    loud = dataclasses.replace(PRESETS["digits"].privacy, noise_multiplier=0.05)
    with pytest.raises(UserError, match="too small for finite noise"):
        make_plan(dataclasses.replace(PRESETS["digits"], privacy=loud), 1437)
