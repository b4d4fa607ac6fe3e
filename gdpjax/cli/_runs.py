"""The run that options, or the columns of a file, describe."""

import argparse
import math
from collections.abc import Callable, Mapping

from gdpjax.accounting import steps_of_epochs
from gdpjax.cli._report import require

RUN_OPTIONS = {
    "num_examples": "size of the data set",
    "batch_size": "expected batch size",
    "sampling_prob": "probability that an example joins a batch, instead of num_examples and batch_size",
    "epochs": "passes over the data: num_steps = round(epochs num_examples / batch_size)",
    "num_steps": "number of steps, instead of epochs",
}

PLAN_NAMES = {"num_examples": "max_examples", "batch_size": "expected_batch_size"}
"""What `gdpjax.make_plan` calls the same quantities, as these options may be called too."""


def as_option(name: str) -> str:
    """num_steps as it is spelled on the command line."""
    return "--" + name.replace("_", "-")


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how often the data are sampled and for how long, one number each."""
    length = parser.add_mutually_exclusive_group(required=True)
    for name, text in RUN_OPTIONS.items():
        group = length if name in ("epochs", "num_steps") else parser
        group.add_argument(*spellings(name), dest=name, type=float, help=text)


def spellings(name: str) -> list[str]:
    """The options for a quantity: the plan's name first, then the one of the columns of a sweep."""
    return list(dict.fromkeys(as_option(spelling) for spelling in (PLAN_NAMES.get(name, name), name)))


def run_of_options(arguments: argparse.Namespace) -> tuple[float, int]:
    """(sampling_prob, num_steps) of the run that the options of `add_run_options` describe."""
    return resolve_run(vars(arguments), lambda name: spellings(name)[0])


def resolve_run(values: Mapping[str, float | None], spell: Callable[[str], str] = str) -> tuple[float, int]:
    """(sampling_prob, num_steps) from the quantities of `RUN_OPTIONS`; ``spell`` names them in messages."""
    prob, examples, batch = _sampling(values, spell)
    steps = values.get("num_steps")
    if steps is None:
        epochs = values.get("epochs")
        if epochs is None:
            raise ValueError(f"give either {spell('epochs')} or {spell('num_steps')}")
        require(0 <= epochs < math.inf, spell("epochs"), "a finite number >= 0", epochs)
        require(prob > 0, spell("sampling_prob"), f"above 0 when {spell('epochs')} is given", prob)
        require(epochs > 0, "number of steps", "a whole number >= 1", 0)
        steps = steps_of_epochs(epochs, examples, batch)
    require(1 <= steps < 2**53 and steps == steps // 1, "number of steps", "a whole number >= 1", steps)
    return prob, int(steps)


def _sampling(values: Mapping[str, float | None], spell: Callable[[str], str]) -> tuple[float, float, float]:
    """(sampling_prob, num_examples, batch_size), the last two up to a common factor."""
    examples, batch, prob = (values.get(name) for name in ("num_examples", "batch_size", "sampling_prob"))
    if examples is not None and batch is not None and prob is None:
        whole = 1 <= examples < math.inf and examples == examples // 1
        require(whole, spell("num_examples"), "whole and >= 1", examples)
        require(0 < batch <= examples, spell("batch_size"), f"above 0 and at most {spell('num_examples')}", batch)
        return batch / examples, examples, batch
    if examples is None and batch is None and prob is not None:
        require(0 <= prob <= 1, spell("sampling_prob"), "a number in [0, 1]", prob)
        return prob, 1.0, prob
    raise ValueError(f"give either {spell('num_examples')} and {spell('batch_size')}, or {spell('sampling_prob')}")
