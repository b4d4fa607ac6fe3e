"""Epochs are so many steps for everybody."""

import json

import pytest

from gdpjax import make_plan
from gdpjax.cli import main

LENGTHS = [(1, 1000, 16, 63), (15, 60_000, 256, 3516), (1, 1000, 400, 3), (0.3, 1000, 400, 1), (1e-9, 10, 10, 1)]


@pytest.mark.parametrize(("epochs", "num_examples", "batch_size", "num_steps"), LENGTHS)
def test_the_plan_and_the_command_line_count_the_same_steps(capsys, epochs, num_examples, batch_size, num_steps):
    run = {"epochs": epochs, "max_examples": num_examples, "expected_batch_size": batch_size, "delta": 1e-5}
    assert make_plan(clip=1.0, noise_multiplier=2.0, **run).num_steps == num_steps
    options = [f"--{name.replace('_', '-')}={value}" for name, value in run.items()]
    assert main(["account", "--noise-multiplier", "0", *options, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["sampling_prob"], found["num_steps"]) == (batch_size / num_examples, num_steps)


@pytest.mark.parametrize("epochs", [0, float("nan"), 1e300])
def test_epochs_that_are_no_length_are_refused(epochs):
    with pytest.raises(ValueError, match="epochs must"):
        make_plan(clip=1.0, noise_multiplier=2.0, max_examples=1000, expected_batch_size=16, epochs=epochs, delta=1e-5)
