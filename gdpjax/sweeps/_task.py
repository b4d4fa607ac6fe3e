"""A task: the data, the model with its loss, and the optimizer that a user brings.

    import gdpjax.sweeps as sweeps

    def load():
        return (x, y), (x_test, y_test)           # training data; evaluation data, which are public

    def build(example):
        def init(key): ...                        # the parameters, a tree of arrays
        def loss(params, x, y): ...               # of ONE example: no batch axis
        def scores(params, x, y): ...             # {"accuracy": ...} on the evaluation data
        return sweeps.Model(init, loss, scores)

    task = sweeps.Task(load=load, build=build, optimizer=optax.sgd)

``build`` sees shapes and types of one training example, never its values: nothing of the model (a number of classes, a
vocabulary) can be taken from private data unnoticed.
"""

import dataclasses
import functools
import hashlib
import os
import re
import sysconfig
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax._core.arguments import check_array, check_callable, check_instance
from gdpjax._core.shown import shown
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import LEARNING_RATE, NUM_STEPS, STANDARD, Hyperparameter, Parameters, parameters_of

_LIBRARIES = (f"{Path(__file__).parents[1]}{os.sep}", f"{sysconfig.get_path('stdlib')}{os.sep}")
"""The folders of gdpjax and of Python's own modules: their lines are not the user's."""
HOLD_OUT_SEED = 20191127
Settings = Mapping[str, Any]
"""Hyperparameters by name; real ones may be traced."""


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
        check_instance("defaults", self.defaults, Mapping, "of hyperparameters to their values")
        check_instance("names", self.names, Mapping, "of data, model and optimizer to what they are called")
        functions = {"data": self.load, "model": self.build, "optimizer": self.optimizer}
        for what, function in functions.items():
            check_callable(f"the function of the {what}", function)
        if not self.names:
            object.__setattr__(self, "names", {what: _name_of(function) for what, function in functions.items()})
        unknown = self.defaults.keys() - {*self.hyperparameters, "delta"}
        if unknown:
            raise UserError(f"defaults has {', '.join(sorted(unknown))}, which is no hyperparameter of this task")

    @functools.cached_property
    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """Everything that a spec may give a value to: the learning rate, the standard ones, the others."""
        of_build = self._of_build.numbers
        of_optimizer = self._of_optimizer.numbers
        for name in of_build.keys() & of_optimizer.keys():
            if of_build[name].whole != of_optimizer[name].whole:
                raise UserError(f"{name} is a whole number for one of build and optimizer, and real for the other")
        own = of_optimizer | of_build
        rate = {LEARNING_RATE: own[LEARNING_RATE]} if LEARNING_RATE in own else {}
        return rate | STANDARD | own

    @functools.cached_property
    def _of_build(self) -> Parameters:
        return parameters_of(self.build, 1, "build")

    @functools.cached_property
    def _of_optimizer(self) -> Parameters:
        return parameters_of(self.optimizer, 0, "optimizer")

    @property
    def options(self) -> dict[str, str]:
        """The other parameters of ``optimizer`` and ``build``, which keep their defaults, with whose they are."""
        of_build = dict.fromkeys(self._of_build.options, "build")
        return of_build | dict.fromkeys(self._of_optimizer.options, "optimizer")

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
        left_out = {name: value for name, value in defaults.items() if name not in settings}
        return {**settings, **left_out}

    def own(self, settings: Settings, *, whole: bool) -> dict[str, Any]:
        """Return the user's own hyperparameters: whole ones, which programs are compiled for, or real ones."""
        own = self._of_optimizer.numbers | self._of_build.numbers
        return _selected({name: kind for name, kind in own.items() if kind.whole == whole}, settings)


def _selected(hyperparameters: Mapping[str, Hyperparameter], settings: Settings) -> dict[str, Any]:
    """Return those settings that are of these hyperparameters, in their order."""
    return {name: settings[name] for name in hyperparameters if name in settings}


def _name_of(function: Any) -> str:
    """Return the module and the name of a function, or of the class of a callable object."""
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}:{named.__qualname__}"


@dataclasses.dataclass(frozen=True)
class Examples:
    """The data of a task. Training data are private, except for their number; evaluation data are public."""

    train: tuple[np.ndarray, ...]
    evaluation: tuple[np.ndarray, ...]

    @property
    def num_examples(self) -> int:
        """The number of training examples, taken as public."""
        return len(self.train[0])

    @property
    def example(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and types of one training example, as compiled code has them."""
        return tuple(_on_device(array.shape[1:], array) for array in self.train)

    @property
    def evaluation_shapes(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Shapes and types of the evaluation data."""
        return tuple(_on_device(array.shape, array) for array in self.evaluation)

    def hold_out(self, fraction: float) -> "Examples":
        """Return the training data alone, a ``fraction`` of them, always the same, in place of the evaluation data.

        What is chosen by such scores has not seen the evaluation data. The scores are private then.
        """
        num_evaluation = round(fraction * self.num_examples)
        if not 0 < num_evaluation < self.num_examples:
            raise UserError(f"hold_out = {fraction} leaves nothing to train or to evaluate on")
        order = np.random.default_rng(HOLD_OUT_SEED).permutation(self.num_examples)
        train, evaluation = np.split(order, [self.num_examples - num_evaluation])
        return Examples(
            train=tuple(array[train] for array in self.train),
            evaluation=tuple(array[evaluation] for array in self.train),
        )

    def digest(self) -> str:
        """Return a hash of all arrays. It is a function of private data: keep it with the keys, never publish it."""
        sha = hashlib.sha256()
        for array in (*self.train, *self.evaluation):
            sha.update(f"{array.shape}{array.dtype}".encode())
            sha.update(np.ascontiguousarray(array).tobytes())
        return sha.hexdigest()


def _on_device(shape: tuple[int, ...], array: np.ndarray) -> jax.ShapeDtypeStruct:
    """Return a shape with the dtype that an array gets on a device."""
    return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(array.dtype))


def load_examples(task: Task, hold_out: float | None = None) -> Examples:
    """Return the checked data of a task; with ``hold_out`` a part of the training data is held out."""
    try:
        loaded = task.load()
    except (Exception, SystemExit) as error:
        raise failure_of("load", error) from error
    examples = loaded if isinstance(loaded, Examples) else _examples_of(loaded)
    lengths = {len(array) if array.ndim else None for array in examples.train}
    if len(lengths) != 1 or not lengths - {0, None}:
        raise UserError(f"load: all arrays of the training data need one row per example, got {lengths} rows")
    if hold_out is not None:
        return examples.hold_out(hold_out)
    if any(array.ndim > 0 and len(array) == 0 for array in examples.evaluation):
        raise UserError("load: the evaluation data have no rows, so that there is nothing to score on")
    return examples


def _examples_of(loaded: Any) -> Examples:
    """Return the examples of a pair (train, evaluation)."""
    if not isinstance(loaded, tuple | list) or len(loaded) != 2:
        raise UserError(
            "load must return a pair (train, evaluation), each an array or a tuple of arrays, got "
            f"{shown(loaded)}; for arrays of inputs and labels that is ((x, y), (x_test, y_test))"
        )
    return Examples(_arrays("training", loaded[0]), _arrays("evaluation", loaded[1]))


def _arrays(part: str, value: Any) -> tuple[np.ndarray, ...]:
    """Return an array, or a tuple of arrays, as a tuple of arrays of finite numbers; ``part`` names it in messages."""
    members = value if isinstance(value, tuple | list) else (value,)
    arrays = []
    for member in members:
        try:
            array = np.asarray(check_array(f"every array of the {part} data", member, kinds="biuf"))
        except ValueError as error:
            raise UserError(f"load: {error}") from error
        # An example without a finite gradient trains nothing. This is for the owner of the data, who runs it.
        if jnp.issubdtype(array.dtype, jnp.inexact) and not np.isfinite(array).all():
            raise UserError(f"load: the {part} data have NaN or an infinity; replace these numbers or drop their rows")
        arrays.append(array)
    if not arrays:
        raise UserError(f"load: there are no {part} data")
    return tuple(arrays)


def shapes_of(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the shapes of the results of a function, or raise the UserError for what it raises; ``what`` names it."""
    try:
        return jax.eval_shape(function, *arguments)
    except (Exception, SystemExit) as error:
        raise failure_of(what, error) from error


def failure_of(what: str, error: BaseException) -> UserError:
    """Return the UserError for an exception in a function of the user, with its notes and the line that raised it."""
    if isinstance(error, UserError):
        return error
    place = _place_of(error)
    where = f" ({place})" if place else ""

    # JAX says which argument it was, but not that it is a hyperparameter.
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    traced = sorted(set(re.findall(r"argument numbers\['(\w+)'\]", message)))
    if traced:
        return UserError(
            f"{what} failed: {' and '.join(traced)} is an argument of the compiled program, without a value while that "
            "is made: use jnp.where in place of a branch, or annotate a whole number as int, each of whose values has "
            f"a program of its own{where}"
        )

    # Neither where JAX was at work, nor that it left its own lines out, helps anybody.
    parts = [f"{type(error).__name__}: {message.split('The error occurred while tracing')[0]}"[:500]]
    parts += [note[:300] for note in getattr(error, "__notes__", []) if not note.startswith("-----")]
    text = " ".join("; ".join(parts).split())
    return UserError(f"{what} failed: {text}{where}")


def with_place(what: str, error: Exception) -> Exception:
    """Return the UserError for an exception that a function of the user raised, and any other one as it is."""
    return failure_of(what, error) if _place_of(error) else error


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the user's own, with its file and function; nothing where there is none."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f"{error.filename}, line {error.lineno}"
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename
        is_of_library = "site-packages" in path or path.startswith(("<", *_LIBRARIES))
        if not is_of_library:
            place = f"{path}, line {frame.lineno}, in {frame.name}"
    return place
