"""A task: the data, the model with its loss, and the optimizer that a user brings; and what of it may be searched.

    import gdpjax.sweeps as sweeps

    def load():
        return (x, y), (x_test, y_test)           # training data; evaluation data, which are public

    def build(example, label_smoothing=0.0, width=32):
        def init(key): ...                        # the parameters, a tree of arrays
        def loss(params, x, y): ...               # of ONE example: no batch axis
        def scores(params, x, y): ...             # {"accuracy": ...} on the evaluation data
        return sweeps.Model(init, loss, scores)

    task = sweeps.Task(load=load, build=build, optimizer=optax.sgd)

``build`` sees shapes and types of one training example, never its values: nothing of the model (a number of classes, a
vocabulary) can be taken from private data unnoticed.

The parameters of ``build`` and of the optimizer factory are the user's own hyperparameters. A *real* one
(``label_smoothing``, ``learning_rate``) is an argument of the compiled program, so that any number of its values share
one. A *whole* one (``width``), by its annotation or its default, is a constant: it may decide shapes, and each of its
values has a program of its own.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from gdpjax._core.arguments import check_callable
from gdpjax._core.shown import shown
from gdpjax.sweeps.records import UserError

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The normal numbers of float32, which real hyperparameters are in compiled code."""
MOST_WHOLE = 2**31 - 1
LEARNING_RATE = "learning_rate"
NUM_STEPS = "num_steps"
"""A parameter of this name is no hyperparameter: it is given the number of steps of the plan, for a schedule."""
Settings = Mapping[str, Any]
"""Hyperparameters by name; real ones may be traced."""


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

    def checked(self, value: Any) -> float:
        """Return ``value`` as a number of this kind, or raise UserError."""
        smallest, largest = (1, MOST_WHOLE) if self.whole else (SMALLEST, LARGEST)
        least = smallest if self.positive else -largest
        if _is_number(value) and least <= value <= largest:
            number = int(value) if self.whole else float(value)
            if number == value:
                return number
        kind = "a whole number" if self.whole else "a number"
        raise UserError(f"{self.name} must be {kind} from {least:.6g} to {largest:.6g}, got {shown(value)}")


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
    *("seed", "seeds", "delta", "trial", "replicate", "error", "seconds", "diagnostics", "tuned", "unit"),
    *("num_steps", "sampling_prob", "overflow", "neighboring_relation", "mu_clt", "epsilon_clt"),
    *("epsilon_moments_accountant", "epsilon_lower", "epsilon_upper"),
    *("dataset", "data", "model", "optimizer"),
    *("search", "num_configurations", "search_seed", "one_program", "hold_out", "score", "minimize"),
)
"""Names that have a meaning in a spec or in the results, and cannot be a user's own."""


class Model(NamedTuple):
    """The functions of a model, all of them JAX functions.

    Attributes:
      init: ``init(key)`` returns the parameters, a tree of arrays.
      loss: ``loss(params, *example)`` is the scalar loss of ONE example.
      scores: ``scores(params, *evaluation)`` returns numbers by name, such as ``{"accuracy": ...}``.
    """

    init: Callable[[Any], Any]
    loss: Callable[..., Any]
    scores: Callable[..., Mapping[str, Any]]


@dataclasses.dataclass(frozen=True)
class Task:
    """Something to train, privately and many times.

    Args:
      load: ``load()`` returns ``(train, evaluation)``, each an array or a tuple of arrays with one row per example. The
        evaluation data, and how many training examples there are, are taken as public.
      build: ``build(example)`` returns a `Model`; ``example`` is a tuple of `jax.ShapeDtypeStruct`, one for each array
        of the training data, without the axis of the rows. Further parameters are hyperparameters.
      optimizer: ``optimizer(learning_rate)`` returns an optax transformation. Its numbers are hyperparameters, except
        ``num_steps``: a factory with that parameter is given the number of steps, for a schedule.
      defaults: values of hyperparameters, and of delta, that a spec may leave out.
      names: what data, model and optimizer are called in records and reports; by default what the functions are.

    A real hyperparameter is traced: any number of its values share one compiled program. A whole one (annotated as int,
    or with a whole default) is a constant, with a program for each value.

    >>> import jax.numpy as jnp
    >>> def load():
    ...     x = np.linspace(-1, 1, 64, dtype=np.float32)
    ...     return (x, 2 * x), (x, 2 * x)
    >>> def build(example, penalty=0.0):
    ...     def loss(w, x, y):
    ...         return (w * x - y) ** 2 + penalty * w**2
    ...     def scores(w, x, y):
    ...         return {"mse": jnp.mean((w * x - y) ** 2)}
    ...     return Model(lambda key: jnp.zeros(()), loss, scores)
    >>> task = Task(load, build, optax.sgd)
    >>> list(task.hyperparameters)
    ['learning_rate', 'l2_clip_norm', 'noise_multiplier', 'epsilon', 'batch_size', 'epochs', 'penalty']
    """

    load: Callable[[], Any]
    build: Callable[..., Model]
    optimizer: Callable[..., optax.GradientTransformation]
    defaults: Mapping[str, float] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        functions = {"data": self.load, "model": self.build, "optimizer": self.optimizer}
        check_callable("load", self.load)
        names = dict(self.names) or {what: _name_of(function) for what, function in functions.items()}
        object.__setattr__(self, "names", names)
        unknown = self.defaults.keys() - {*self.hyperparameters, "delta"}
        if unknown:
            raise UserError(f"defaults has {', '.join(sorted(unknown))}, which is no hyperparameter of this task")

    @functools.cached_property
    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """Everything that a spec may give a value to: the learning rate, the standard ones, the others."""
        own = self._of_optimizer.numbers | self._of_build.numbers
        rate = {LEARNING_RATE: own[LEARNING_RATE]} if LEARNING_RATE in own else {}
        return rate | STANDARD | own

    @functools.cached_property
    def _of_build(self) -> "_Parameters":
        return _parameters_of(self.build, 1, "build")

    @functools.cached_property
    def _of_optimizer(self) -> "_Parameters":
        return _parameters_of(self.optimizer, 0, "optimizer")

    def model(self, example: tuple[jax.ShapeDtypeStruct, ...], settings: Settings) -> Model:
        """Return the model with the hyperparameters of ``build`` that ``settings`` has."""
        model = self.build(example, **_selected(self._of_build.numbers, settings))
        if not isinstance(model, Model):
            raise UserError(f"build must return gdpjax.sweeps.Model(init, loss, scores), got {shown(model)}")
        return model

    def make_optimizer(self, settings: Settings, num_steps: int) -> optax.GradientTransformation:
        """Return the optimizer of a training with the hyperparameters of its factory that ``settings`` has."""
        arguments = _selected(self._of_optimizer.numbers, settings)
        if self._of_optimizer.takes_num_steps:
            arguments[NUM_STEPS] = num_steps
        return self.optimizer(**arguments)

    def complete(self, settings: Settings) -> dict[str, Any]:
        """Return the settings with what they leave at the defaults of ``optimizer`` and ``build``, for a record."""
        defaults = self._of_build.defaults | self._of_optimizer.defaults
        return dict(settings) | {name: value for name, value in defaults.items() if name not in settings}

    def own(self, settings: Settings, *, whole: bool) -> dict[str, Any]:
        """Return the user's own hyperparameters: whole ones, which programs are compiled for, or real ones."""
        own = self._of_optimizer.numbers | self._of_build.numbers
        return _selected([name for name, kind in own.items() if kind.whole == whole], settings)


def _selected(names: Any, settings: Settings) -> dict[str, Any]:
    """Return the settings of these names, in their order."""
    return {name: settings[name] for name in names if name in settings}


def _name_of(function: Any) -> str:
    """Return the module and the name of a function, or of the class of a callable object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


class _Parameters(NamedTuple):
    """The parameters of one of the user's functions.

    Fields:
      numbers: the hyperparameters among them; others keep their defaults.
      defaults: all defaults that JSON can hold, for a record.
      takes_num_steps: whether it asks for the number of steps of the plan.
    """

    numbers: dict[str, Hyperparameter]
    defaults: dict[str, Any]
    takes_num_steps: bool


def _parameters_of(function: Callable[..., Any], skip: int, what: str) -> _Parameters:
    """Return the parameters of ``function`` without its first ``skip``; UserError where one has a reserved name.

    One that is annotated as a number (``float``, ``int | None``), has a number as its default, or has no default at all
    is a hyperparameter.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise UserError(f"{what} must be a function with a signature, got {shown(function)}") from error
    found = _Parameters({}, {}, NUM_STEPS in signature.parameters)
    for name, parameter in list(signature.parameters.items())[skip:]:
        default = parameter.default
        has_default = default is not parameter.empty
        if has_default and isinstance(default, int | float | str | None):
            found.defaults[name] = default
        if name == NUM_STEPS or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        declared = _declared_kind(parameter.annotation)
        if has_default and declared is None and not _is_number(default):
            continue
        if name in RESERVED:
            raise UserError(f"{what} has a parameter {name}, which is the name of something else; rename it")

        # A learning rate is a positive number, however its default is written.
        is_rate = name == LEARNING_RATE
        is_whole = declared is int or (declared is None and isinstance(default, int))
        found.numbers[name] = Hyperparameter(name, is_whole and not is_rate, is_rate, not has_default)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _declared_kind(annotation: Any) -> type | None:
    """Return float or int for such an annotation, also for one that is a text or that allows None."""
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    words = {word.strip() for word in text.split("|")} - {"None"}
    return {"float": float, "int": int}.get(words.pop()) if len(words) == 1 else None
