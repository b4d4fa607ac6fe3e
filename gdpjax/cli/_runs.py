"""The run that options, or the columns of a file, describe."""

import argparse
import math
from collections.abc import Callable, Mapping

from gdpjax._core.epochs import steps_of_epochs
from gdpjax.cli._report import require

RUN_OPTIONS = {
    "num_examples": "size of the data set",
    "batch_size": "expected batch size",
    "sampling_prob": "probability that an example joins a batch, instead of --max-examples and --expected-batch-size",
    "epochs": "passes over the data: the number of steps is round(EPOCHS * MAX_EXAMPLES / EXPECTED_BATCH_SIZE)",
    "num_steps": "number of steps, instead of --epochs",
}

PLAN_NAMES = {"num_examples": "max_examples", "batch_size": "expected_batch_size"}
"""What `gdpjax.make_plan` calls the same quantities, as these options may be called too."""


def as_option(name: str) -> str:
    """Return a quantity such as num_steps as it is spelled on the command line."""
    return "--" + name.replace("_", "-")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how often the data are sampled and for how long, one number each."""
    length = parser.add_mutually_exclusive_group(required=True)
    for name, text in RUN_OPTIONS.items():
        group = length if name in ("epochs", "num_steps") else parser
        metavar = PLAN_NAMES.get(name, name).upper()
        group.add_argument(*spellings(name), dest=name, type=float, metavar=metavar, help=text)


def spellings(name: str) -> list[str]:
    """Return the options for a quantity: the plan's name first, then the one of the columns of a sweep."""
    options = [as_option(PLAN_NAMES.get(name, name))]
    if name in PLAN_NAMES:
        options.append(as_option(name))
    return options


def option_of(name: str) -> str:
    """Return the option for a quantity, as messages have it.

    >>> option_of("num_examples")
    '--max-examples'
    """
    return spellings(name)[0]


def run_of_options(arguments: argparse.Namespace) -> tuple[float, int]:
    """Return (sampling_prob, num_steps) of the run that the options of `add_run_options` describe."""
    return resolve_run(vars(arguments), option_of)


def resolve_run(values: Mapping[str, float | None], spell: Callable[[str], str] = str) -> tuple[float, int]:
    """Return (sampling_prob, num_steps) from the quantities of `RUN_OPTIONS`; ``spell`` names them in messages."""
    sampling_prob, num_examples, batch_size = _sampling(values, spell)
    num_steps = values.get("num_steps")
    if num_steps is None:
        epochs = values.get("epochs")
        if epochs is None:
            raise ValueError(f"give either {spell('epochs')} or {spell('num_steps')}")
        require(0 <= epochs < math.inf, spell("epochs"), "a finite number >= 0", epochs)
        require(sampling_prob > 0, spell("sampling_prob"), f"above 0 when {spell('epochs')} is given", sampling_prob)
        require(epochs > 0, "number of steps", "a whole number >= 1", 0)
        num_steps = steps_of_epochs(epochs, num_examples, batch_size)
    is_count = 1 <= num_steps < 2**53 and num_steps == num_steps // 1
    require(is_count, "number of steps", "a whole number >= 1", num_steps)
    return sampling_prob, int(num_steps)


def _sampling(values: Mapping[str, float | None], spell: Callable[[str], str]) -> tuple[float, float, float]:
    """Return (sampling_prob, num_examples, batch_size), the last two up to a common factor."""
    num_examples = values.get("num_examples")
    batch_size = values.get("batch_size")
    sampling_prob = values.get("sampling_prob")
    if num_examples is not None and batch_size is not None and sampling_prob is None:
        is_count = 1 <= num_examples < math.inf and num_examples == num_examples // 1
        is_batch = 0 < batch_size <= num_examples
        require(is_count, spell("num_examples"), "whole and >= 1", num_examples)
        require(is_batch, spell("batch_size"), f"above 0 and at most {spell('num_examples')}", batch_size)
        return batch_size / num_examples, num_examples, batch_size
    if num_examples is None and batch_size is None and sampling_prob is not None:
        require(0 <= sampling_prob <= 1, spell("sampling_prob"), "a number in [0, 1]", sampling_prob)
        return sampling_prob, 1.0, sampling_prob
    raise ValueError(f"give either {spell('num_examples')} and {spell('batch_size')}, or {spell('sampling_prob')}")
