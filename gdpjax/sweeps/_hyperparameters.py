"""Which hyperparameters a task has: four that every private training has, and the user's own.

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

from gdpjax._core.shown import shown
from gdpjax.sweeps._errors import UserError


@dataclasses.dataclass(frozen=True)
class Hyperparameter:
    """A number that may be searched.

    Fields:
      name: as in the spec, in the table of results, and in the signature of what takes it.
      whole: whether it is a whole number, and each value needs a program of its own.
      positive: whether 0 and negative numbers are refused.
      needed: whether it has no value unless the spec gives one.
    """

    name: str
    whole: bool = False
    positive: bool = False
    needed: bool = True

    @property
    def column(self) -> str:
        """The Arrow type of its column."""
        return "int64" if self.whole else "double"

    def checked(self, value: Any) -> float:
        """Return ``value`` as a number of this kind, or raise UserError."""
        if self.whole:
            least, most = (1 if self.positive else -(2**31)), 2**31 - 1
            if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
                raise UserError(f"{self.name} must be a whole number from {least} to {most}, got {shown(value)}")
            return value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not math.isfinite(value) or (self.positive and not value > 0):
            domain = "a finite number > 0" if self.positive else "a finite number"
            raise UserError(f"{self.name} must be {domain}, got {shown(value)}")
        return float(value)


LEARNING_RATE = "learning_rate"
NUM_STEPS = "num_steps"
"""A parameter of this name is no hyperparameter: it is given the number of steps of the plan, for a schedule."""
STANDARD = {
    "l2_clip_norm": Hyperparameter("l2_clip_norm", positive=True),
    "noise_multiplier": Hyperparameter("noise_multiplier", positive=True, needed=False),
    "epsilon": Hyperparameter("epsilon", positive=True, needed=False),
    "batch_size": Hyperparameter("batch_size", whole=True, positive=True),
    "epochs": Hyperparameter("epochs", whole=True, positive=True),
}
"""Those of every private training; noise_multiplier and epsilon, a target, are alternatives."""
RESERVED = (
    *STANDARD,
    *("seed", "seeds", "delta", "trial", "replicate", "error", "seconds", "diagnostics"),
    *("num_steps", "sampling_prob", "overflow", "mu_clt", "epsilon_clt", "epsilon_moments_accountant"),
    *("epsilon_lower", "epsilon_upper"),
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
    found = {}
    for parameter in _parameters(function, what)[skip:]:
        is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if not is_named or parameter.name == NUM_STEPS:
            continue
        name, needed = parameter.name, parameter.default is parameter.empty
        declared = _declared_kind(parameter.annotation)
        is_number = isinstance(parameter.default, int | float) and not isinstance(parameter.default, bool)
        if not needed and not is_number and declared is None:
            continue
        if name in RESERVED:
            raise UserError(f"{what} has a parameter {name}, which is the name of something else; rename it")
        whole = declared is int or (declared is None and isinstance(parameter.default, int))
        is_rate = name == LEARNING_RATE
        found[name] = Hyperparameter(name, whole=whole and not is_rate, positive=is_rate, needed=needed)
    return found


def _declared_kind(annotation: Any) -> type | None:
    """Return float or int where an annotation says so, also as a text or as one that may be None."""
    texts = str(annotation) if not isinstance(annotation, type) else annotation.__name__
    words = {word.strip() for word in texts.split("|")} - {"None"}
    kinds: dict[frozenset[str], type] = {frozenset({"float"}): float, frozenset({"int"}): int}
    return kinds.get(frozenset(words))


def takes_num_steps(function: Callable[..., Any]) -> bool:
    """Whether a factory asks for the number of steps of the plan."""
    return any(parameter.name == NUM_STEPS for parameter in _parameters(function, "optimizer"))


def _parameters(function: Callable[..., Any], what: str) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must be a function with a signature, got {shown(function)}") from error
