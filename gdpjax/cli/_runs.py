"""The run that options, or the columns of a file, describe."""

import argparse
from collections.abc import Collection, Mapping
from typing import Any

from gdpjax._core.checks import COUNT, UNIT, check
from gdpjax.sampling import steps_of_epochs

NOISE = "stddev of the noise / sensitivity"
RUN_OPTIONS = {
    "max_examples": "size of the data set",
    "expected_batch_size": "expected batch size",
    "sampling_prob": "probability that an example joins a batch, instead of --max-examples and --expected-batch-size",
    "epochs": "passes over the data: the number of steps is round(EPOCHS * MAX_EXAMPLES / EXPECTED_BATCH_SIZE)",
    "num_steps": "number of steps, instead of --epochs",
}
OTHER_NAMES = {"num_examples": "max_examples", "batch_size": "expected_batch_size"}
"""Other names of options and columns."""


def option_names(name: str) -> list[str]:
    """Return the options for a quantity.

    >>> option_names("max_examples")
    ['--max-examples', '--num-examples']
    """
    names = [name, *(other for other, known in OTHER_NAMES.items() if known == name)]
    return ["--" + some.replace("_", "-") for some in names]


def add_run_options(parser: argparse.ArgumentParser, with_cost: bool = True) -> None:
    """Add the options that describe a run, one number each; ``with_cost``, its noise and delta, too."""
    if with_cost:
        parser.add_argument("--noise-multiplier", type=float, required=True, help=NOISE)
        parser.add_argument("--delta", type=float, required=True)
    for name, text in RUN_OPTIONS.items():
        parser.add_argument(*option_names(name), type=float, help=text)


def run_of_options(arguments: argparse.Namespace) -> tuple[float, int]:
    """Return (sampling_prob, num_steps) of the run that the options of `add_run_options` describe."""
    return run_of({name: value for name, value in vars(arguments).items() if value is not None})


def check_given(names: Collection[str]) -> None:
    """Raise ValueError unless the quantities with these names describe how often and for how long."""
    sampling = set(names) & {"max_examples", "expected_batch_size", "sampling_prob"}
    if sampling not in ({"max_examples", "expected_batch_size"}, {"sampling_prob"}):
        raise ValueError("give either --max-examples and --expected-batch-size, or --sampling-prob")
    if ("epochs" in names) == ("num_steps" in names):
        raise ValueError("give either --epochs or --num-steps")


def run_of(values: Mapping[str, Any]) -> tuple[float, int]:
    """Return (sampling_prob, num_steps) from the quantities of `RUN_OPTIONS` that are given."""
    check_given(values)
    if "sampling_prob" in values:
        num_examples, batch_size = 1, values["sampling_prob"]
        check("sampling_prob", batch_size, UNIT)
    else:
        num_examples, batch_size = values["max_examples"], values["expected_batch_size"]
        check("max_examples", num_examples, COUNT)
        if not 0 < batch_size <= num_examples:
            raise ValueError(
                f"expected_batch_size must be above 0 and at most max_examples = {num_examples:g}, got {batch_size:g}"
            )
    if "epochs" in values:
        return batch_size / num_examples, steps_of_epochs(values["epochs"], num_examples, batch_size)
    check("num_steps", values["num_steps"], COUNT)
    return batch_size / num_examples, int(values["num_steps"])
