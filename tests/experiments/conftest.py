"""A small data set and a small configuration, so that a whole run takes a second or two."""

import dataclasses

import pytest

from experiments import data
from experiments.config import PRESETS, OptimizerConfig, RunConfig


class Silent:
    """An observer that may interrupt, as Ctrl-C does, once a step is done."""

    def __init__(self, interrupt_at=None):
        self.interrupt_at = interrupt_at
        self.epochs = []
        self.changes = ()

    def on_changed(self, names, finished):
        self.changes = names
        self.was_finished = finished

    def on_start(self, plan, step):
        self.plan, self.first_step = plan, step

    def on_lost(self, num_steps):
        self.lost = num_steps

    def on_step(self, step):
        if step == self.interrupt_at:
            raise KeyboardInterrupt

    def on_epoch(self, record):
        self.epochs.append(record)


@pytest.fixture(scope="session")
def small_digits():
    """64 training and 40 test images."""
    full = data.load("digits")
    return data.Dataset(full.train_inputs[:64], full.train_labels[:64], full.test_inputs[:40], full.test_labels[:40])


@pytest.fixture(scope="session")
def small_config():
    """2 epochs of 8 steps; the capacity is below 32, so that only one padded size is compiled."""
    optimizer = OptimizerConfig("sgd", learning_rate=0.5, batch_size=8, epochs=2)
    return dataclasses.replace(PRESETS["digits"], optimizer=optimizer, run=RunConfig(seed=3))
