"""Epochs are so many steps for everybody."""

import pytest

from gdpjax import make_plan
from gdpjax._core.epochs import steps_of_epochs
from gdpjax.cli._runs import run_of

LENGTHS = [(1, 1000, 16, 63), (15, 60_000, 256, 3516), (1, 1000, 400, 3), (0.3, 1000, 400, 1), (1e-9, 10, 10, 1)]


@pytest.mark.parametrize(("epochs", "num_examples", "batch_size", "num_steps"), LENGTHS)
def test_the_plan_and_the_command_line_count_the_same_steps(epochs, num_examples, batch_size, num_steps):
    assert steps_of_epochs(epochs, num_examples, batch_size) == num_steps
    run = {"epochs": epochs, "max_examples": num_examples, "expected_batch_size": batch_size}
    assert run_of(run) == (batch_size / num_examples, num_steps)
    plan = make_plan(
        clip=1.0, max_examples=num_examples, expected_batch_size=batch_size, epochs=epochs, delta=1e-5,
        noise_multiplier=2.0,
    )  # fmt: skip
    assert plan.num_steps == num_steps


@pytest.mark.parametrize("epochs", [0, -1.0, float("nan"), float("inf"), 1e300, "many", None, True])
def test_epochs_that_are_no_length_are_refused(epochs):
    with pytest.raises(ValueError, match="epochs must"):
        steps_of_epochs(epochs, 1000, 16)
