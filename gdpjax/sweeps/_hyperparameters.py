"""The hyperparameters of a task: those that every private training has, and the user's own.

The user's own are the parameters of the optimizer factory and of ``build``, found in their signatures:

    def build(example, label_smoothing=0.0, width=32): ...
    def optimizer(learning_rate, momentum=0.9): ...

A *real* one (``label_smoothing``, ``learning_rate``, ``momentum``) is an argument of the compiled program, so that any
number of its values share one. A *whole* one (``width``), by its annotation or its default, is a constant: it may
decide shapes, and each of its values has a program of its own.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gdpjax._core.shown import shown
from gdpjax.sweeps._errors import UserError

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The normal numbers of float32, which real hyperparameters are in compiled code."""
MOST_WHOLE = 2**31 - 1
ONLY_NUMBERS = "only numbers can be searched; take an int and branch on it"
"""What to do about a text, such as the name of an optimizer."""


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """A number that may be searched.

    Fields:
      name: as in the spec, in the table of results, and in the signature of what takes it.
      whole: whether it is a whole number, and each value needs a program of its own.
      positive: whether 0 and negative numbers are refused.
      needed: whether it has no value unless the spec gives one.
      label: what people read in place of its name, or None for the name with spaces.
    """

    name: str
    whole: bool = False
    positive: bool = False
    needed: bool = True
    label: str | None = None

    @property
    def column(self) -> str:
        """The Arrow type of its column."""
        return "int64" if self.whole else "double"

    def checked(self, value: Any) -> float:
        """Return ``value`` as a number of this kind, or raise UserError."""
        if self.whole:
            least = 1 if self.positive else -MOST_WHOLE
            if isinstance(value, int) and not isinstance(value, bool) and least <= value <= MOST_WHOLE:
                return value
            expected = f"a whole number from {least} to {MOST_WHOLE}"
        else:
            least = SMALLEST if self.positive else -LARGEST
            if _is_number(value) and least <= value <= LARGEST:
                return float(value)
            expected = "a number > 0 that float32 holds" if self.positive else "a number that float32 holds"
        advice = f": {ONLY_NUMBERS}" if isinstance(value, str) else ""
        raise UserError(f"{self.name} must be {expected}, got {shown(value)}{advice}")


LEARNING_RATE = "learning_rate"
NUM_STEPS = "num_steps"
"""A parameter of this name is no hyperparameter: it is given the number of steps of the plan, for a schedule."""
STANDARD = {
    "l2_clip_norm": Hyperparameter("l2_clip_norm", positive=True, label="clip norm"),
    "noise_multiplier": Hyperparameter("noise_multiplier", positive=True, needed=False),
    "epsilon": Hyperparameter("epsilon", positive=True, needed=False, label="target epsilon"),
    "batch_size": Hyperparameter("batch_size", whole=True, positive=True, label="expected batch size (examples)"),
    "epochs": Hyperparameter("epochs", whole=True, positive=True),
}
"""The hyperparameters of every private training; noise_multiplier and epsilon, a target, are alternatives."""
RESERVED = (
    *STANDARD,
    *("seed", "seeds", "delta", "trial", "replicate", "error", "seconds", "diagnostics"),
    *("num_steps", "sampling_prob", "overflow", "neighboring_relation", "mu_clt", "epsilon_clt"),
    *("epsilon_moments_accountant", "epsilon_lower", "epsilon_upper"),
    *("dataset", "data", "model", "optimizer"),
    *("search", "num_configurations", "search_seed", "one_program", "hold_out", "score", "minimize"),
)
"""Names that have a meaning in a spec or in the results, and cannot be a user's own."""


class Parameters(NamedTuple):
    """The parameters of one of the user's functions.

    Fields:
      numbers: the hyperparameters among them.
      options: the names of the others, which keep their defaults.
      defaults: all defaults that JSON can hold, for a record.
      takes_num_steps: whether it asks for the number of steps of the plan.
    """

    numbers: dict[str, Hyperparameter]
    options: list[str]
    defaults: dict[str, Any]
    takes_num_steps: bool


def parameters_of(function: Callable[..., Any], skip: int, what: str) -> Parameters:
    """Return the parameters of ``function`` without its first ``skip``.

    One that is annotated as a number (``float``, ``int | None``), has a number as its default, or has no default at all
    is a hyperparameter.

    Raises:
      UserError: a hyperparameter has a reserved name.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must be a function with a signature, got {shown(function)}") from error
    found = Parameters({}, [], {}, NUM_STEPS in signature.parameters)
    for name, parameter in list(signature.parameters.items())[skip:]:
        has_default = parameter.default is not parameter.empty
        if has_default and isinstance(parameter.default, int | float | str | None):
            found.defaults[name] = parameter.default
        if name == NUM_STEPS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        declared = _declared_kind(parameter.annotation)
        if has_default and declared is None and not _is_number(parameter.default):
            found.options.append(name)
            continue
        if name in RESERVED:
            raise UserError(f"{what} has a parameter {name}, which is the name of something else; rename it")

        # A learning rate is a positive number, however its default is written.
        is_rate = name == LEARNING_RATE
        is_whole = declared is int or (declared is None and isinstance(parameter.default, int))
        found.numbers[name] = Hyperparameter(name, is_whole and not is_rate, is_rate, not has_default)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _declared_kind(annotation: Any) -> type | None:
    """Return float or int for such an annotation, also for one that is a text or that allows None."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = {word.strip() for word in text.split("|")} - {"None"}
    return {"float": float, "int": int}.get(words.pop()) if len(words) == 1 else None
