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
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpjax._core.shown import shown
from gdpjax.sweeps._errors import UserError

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The normal numbers of float32, which real hyperparameters are in compiled code."""


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
            least = 1 if self.positive else -(2**31)
            most = 2**31 - 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                expected = f"a whole number from {least} to {most}"
                raise UserError(f"{self.name} must be {expected}, got {shown(value)}{_advice(value)}")
            return value
        is_finite = math.isfinite(_float_of(value))
        if is_finite and (abs(value) > LARGEST or (self.positive and 0 < value < SMALLEST)):
            # Compiled code would have infinity, or zero, in its place.
            least = SMALLEST if self.positive else -LARGEST
            domain = f"from {least:.2g} to {LARGEST:.2g}, as float32 holds it"
            raise UserError(f"{self.name} must be {domain}, got {shown(value)}")
        if not is_finite or (self.positive and not value > 0):
            domain = "a finite number > 0" if self.positive else "a finite number"
            raise UserError(f"{self.name} must be {domain}, got {shown(value)}{_advice(value)}")
        return float(value)


ONLY_NUMBERS = "only numbers can be searched; take an int and branch on it"
"""What to do about a text, such as the name of an optimizer."""


def _advice(value: Any) -> str:
    """Return what to do about a text where a number belongs."""
    if not isinstance(value, str):
        return ""
    try:
        float(value)
    except ValueError:
        return f": {ONLY_NUMBERS}"
    return ": write it without quotation marks"


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


def own_hyperparameters(function: Callable[..., Any], *, skip: int, what: str) -> dict[str, Hyperparameter]:
    """Return the hyperparameters among the parameters of ``function``, without its first ``skip``.

    A parameter that is neither annotated as a number (``float``, ``int | None``) nor has one as its default is not one,
    unless it has no default at all, and keeps its default.

    Raises:
      UserError: a parameter has a reserved name.
    """
    hyperparameters = {}
    for parameter in _parameters(function, what)[skip:]:
        name = parameter.name
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not is_named or name == NUM_STEPS:
            continue

        # Other options than numbers keep their defaults.
        is_needed = parameter.default is parameter.empty
        declared_kind = _declared_kind(parameter.annotation)
        if not is_needed and not _is_number(parameter.default) and declared_kind is None:
            continue
        if name in RESERVED:
            raise UserError(f"{what} has a parameter {name}, which is the name of something else; rename it")

        # A learning rate is a positive number, however its default is written.
        has_whole_default = declared_kind is None and isinstance(parameter.default, int)
        is_whole = declared_kind is int or has_whole_default
        is_rate = name == LEARNING_RATE
        hyperparameters[name] = Hyperparameter(
            name,
            whole=is_whole and not is_rate,
            positive=is_rate,
            needed=is_needed,
        )
    return hyperparameters


def other_options(function: Callable[..., Any], *, skip: int, what: str) -> list[str]:
    """Return the names of the parameters that are no hyperparameters: options that are not numbers."""
    hyperparameters = own_hyperparameters(function, skip=skip, what=what)
    parameters = _parameters(function, what)[skip:]
    return [each.name for each in parameters if each.name not in hyperparameters and each.name != NUM_STEPS]


def parameters_of(function: Callable[..., Any], what: str) -> list[str]:
    """Return the names of all parameters of a function."""
    return [parameter.name for parameter in _parameters(function, what)]


def defaults_of(function: Callable[..., Any], *, skip: int, what: str) -> dict[str, Any]:
    """Return the defaults of all parameters without the first ``skip``, those that JSON can hold."""
    defaults = {}
    for parameter in _parameters(function, what)[skip:]:
        if isinstance(parameter.default, int | float | str | None):
            defaults[parameter.name] = parameter.default
    return defaults


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _float_of(value: Any) -> float:
    """Return a number as a float, NaN for what is no number."""
    return float(value) if _is_number(value) else math.nan


def _declared_kind(annotation: Any) -> type | None:
    """Return float or int for such an annotation, also for one that is a text or that allows None."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = {word.strip() for word in text.split("|")} - {"None"}
    if words == {"float"}:
        return float
    if words == {"int"}:
        return int
    return None


def takes_num_steps(function: Callable[..., Any]) -> bool:
    """Return whether a factory asks for the number of steps of the plan."""
    return any(parameter.name == NUM_STEPS for parameter in _parameters(function, "optimizer"))


def _parameters(function: Callable[..., Any], what: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must be a function with a signature, got {shown(function)}") from error
