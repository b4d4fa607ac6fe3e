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
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax._core.arguments import check_array, check_callable, check_instance, check_number, check_text
from gdpjax._core.programs import program_digest
from gdpjax._core.shown import shown
from gdpjax.sweeps import records
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._hyperparameters import (
    LEARNING_RATE,
    NUM_STEPS,
    RESERVED,
    STANDARD,
    Hyperparameter,
    defaults_of,
    other_options,
    own_hyperparameters,
    takes_num_steps,
)

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
      optimizer: ``optimizer(learning_rate)`` returns an optax transformation. Its numbers are hyperparameters, but for
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
        check_callable("load", self.load)
        check_callable("build", self.build)
        check_callable("optimizer", self.optimizer)
        check_instance("defaults", self.defaults, Mapping, "of hyperparameters to their values")
        check_instance("names", self.names, Mapping, "of data, model and optimizer to what they are called")
        for name, value in self.defaults.items():
            check_number(f"the default of {shown(name)}", value)
        for what, called in self.names.items():
            check_text(f"the name of {shown(what)}", called)
        if not self.names:
            names = {
                "data": _name_of(self.load),
                "model": _name_of(self.build),
                "optimizer": _name_of(self.optimizer),
            }
            object.__setattr__(self, "names", names)
        known = (*self.hyperparameters, "delta")
        for name in self.defaults:
            if name not in known:
                raise UserError(f"defaults has {name}, which is no hyperparameter of this task")

    @functools.cached_property
    def hyperparameters(self) -> dict[str, Hyperparameter]:
        """Everything that a spec may give a value to: the learning rate, the standard ones, the others."""
        for name in self._of_optimizer.keys() & self._of_build.keys():
            if self._of_optimizer[name].whole != self._of_build[name].whole:
                raise UserError(f"{name} is a whole number for one of build and optimizer, and real for the other")
        own = self._own
        first = {LEARNING_RATE: own.pop(LEARNING_RATE)} if LEARNING_RATE in own else {}
        return first | STANDARD | own

    @property
    def _own(self) -> dict[str, Hyperparameter]:
        return self._of_optimizer | self._of_build

    @functools.cached_property
    def _of_build(self) -> dict[str, Hyperparameter]:
        return own_hyperparameters(self.build, skip=1, what="build")

    @functools.cached_property
    def _of_optimizer(self) -> dict[str, Hyperparameter]:
        return own_hyperparameters(self.optimizer, skip=0, what="optimizer")

    @property
    def options(self) -> dict[str, str]:
        """The other parameters of ``optimizer`` and ``build``, which keep their defaults, with whose they are."""
        build = dict.fromkeys(other_options(self.build, skip=1, what="build"), "build")
        return build | dict.fromkeys(other_options(self.optimizer, skip=0, what="optimizer"), "optimizer")

    def model(self, example: tuple[jax.ShapeDtypeStruct, ...], settings: Settings) -> Model:
        """Return the model with the hyperparameters of ``build`` that ``settings`` has."""
        model = self.build(example, **_selected(self._of_build, settings))
        if not isinstance(model, Model):
            raise UserError(f"build must return gdpjax.sweeps.Model(init, loss, scores), got {shown(model)}")
        return model

    def make_optimizer(self, settings: Settings, num_steps: int) -> optax.GradientTransformation:
        """Return the optimizer of a training with the hyperparameters of its factory that ``settings`` has."""
        arguments = _selected(self._of_optimizer, settings)
        if takes_num_steps(self.optimizer):
            arguments[NUM_STEPS] = num_steps
        return self.optimizer(**arguments)

    def complete(self, settings: Settings) -> dict[str, Any]:
        """Return the settings with what they leave at the defaults of ``optimizer`` and ``build``, for a record."""
        defaults = defaults_of(self.build, skip=1, what="build")
        defaults |= defaults_of(self.optimizer, skip=0, what="optimizer")
        left_out = {name: value for name, value in defaults.items() if name not in settings}
        return {**settings, **left_out}

    def constants(self, settings: Settings) -> dict[str, Any]:
        """Return the whole hyperparameters of the user's own, which programs are compiled for."""
        whole = {name: kind for name, kind in self._own.items() if kind.whole}
        return _selected(whole, settings)

    def traced(self, settings: Settings) -> dict[str, Any]:
        """Return the real hyperparameters of the user's own, which are arguments of a program."""
        real = {name: kind for name, kind in self._own.items() if not kind.whole}
        return _selected(real, settings)


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
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise failure_of("load", error) from error
    examples = loaded if isinstance(loaded, Examples) else _examples_of(loaded)
    lengths = [len(array) for array in examples.train]
    if len(set(lengths)) != 1 or lengths[0] == 0:
        raise UserError(f"the arrays of the training data must have one row per example, got {lengths} rows")
    _refuse_infinite("training", examples.train)
    _refuse_infinite("evaluation", examples.evaluation)
    if hold_out is None:
        if any(array.ndim > 0 and len(array) == 0 for array in examples.evaluation):
            raise UserError("load: the evaluation data have no rows, so that there is nothing to score on")
        return examples
    return examples.hold_out(hold_out)


def _refuse_infinite(part: str, arrays: tuple[np.ndarray, ...]) -> None:
    """Raise UserError for numbers that are not finite; it tells their owner, who runs this, that there are some."""
    for number, array in enumerate(arrays):
        if not jnp.issubdtype(array.dtype, jnp.inexact) or np.isfinite(array).all():
            continue
        raise UserError(
            f"load returned {part} data with NaN or an infinity in array {number}; every number must be finite, since "
            "an example without a finite gradient trains nothing: replace those numbers, or leave their rows out"
        )


def _examples_of(loaded: Any) -> Examples:
    """Return the examples of a pair (train, evaluation)."""
    if not isinstance(loaded, tuple | list) or len(loaded) != 2:
        raise UserError(
            "load must return a pair (train, evaluation), each an array or a tuple of arrays, got "
            f"{shown(loaded)}; for arrays of inputs and labels that is ((x, y), (x_test, y_test))"
        )
    train, evaluation = loaded
    examples = Examples(_arrays("train", train), _arrays("evaluation", evaluation))
    are_single = not isinstance(train, tuple | list) and not isinstance(evaluation, tuple | list)
    if are_single:
        _refuse_inputs_and_labels(*examples.train, *examples.evaluation)
    return examples


def _refuse_inputs_and_labels(train: np.ndarray, evaluation: np.ndarray) -> None:
    """Raise UserError for two arrays that cannot be training and evaluation data, as inputs and their labels."""
    first = _on_device(train.shape, train)
    second = _on_device(evaluation.shape, evaluation)
    if first.shape[1:] == second.shape[1:] and first.dtype == second.dtype:
        return
    raise UserError(
        f"load returned train {_short(first)}, evaluation {_short(second)}; expected (train, evaluation), such as "
        "((x, y), (x_test, y_test))"
    )


def _short(array: jax.ShapeDtypeStruct) -> str:
    """Return an array's type and shape, such as float32[1200,8]."""
    sizes = ",".join(str(size) for size in array.shape)
    return f"{array.dtype}[{sizes}]"


def _arrays(part: str, value: Any) -> tuple[np.ndarray, ...]:
    """Return an array, or a tuple of arrays, as a tuple of checked arrays; ``part`` names it in messages."""
    members = value if isinstance(value, tuple | list) else (value,)
    arrays = []
    for member in members:
        try:
            array = np.asarray(check_array(f"every array of the {part} data", member, kinds="biuf"))
        except ValueError as error:
            raise UserError(f"load: {error}") from error
        if part == "train" and array.ndim == 0:
            raise UserError("load: the arrays of the training data must have one row per example, got one number")
        arrays.append(array)
    if not arrays:
        raise UserError(f"load: there are no {part} data")
    return tuple(arrays)


def check_task(task: Task, examples: Examples, settings: Settings) -> tuple[str, ...]:
    """Trace the user's functions once, without computing, and return the names of the scores.

    Raises:
      UserError: one of them fails, or returns something else than it should; the message names the line.
    """
    traced = _Traced(task, examples, settings)
    params = traced.shapes("build and init", traced.init, traced.key)
    records.named_arrays(params)
    loss = traced.shapes("loss", traced.loss, params, examples.example)
    if getattr(loss, "shape", None) != () or not jnp.issubdtype(loss.dtype, jnp.floating):
        raise UserError(f"loss must return one real number, the loss of ONE example, got {shown(loss)}")

    scores = traced.shapes("scores", traced.scores, params, examples.evaluation_shapes)
    if not isinstance(scores, Mapping) or not scores:
        raise UserError(f'scores must return numbers by name, such as {{"accuracy": ...}}, got {shown(scores)}')
    for name, value in scores.items():
        if getattr(value, "shape", None) != () or not _is_real(value.dtype):
            raise UserError(f"scores must return real numbers, got {shown(value)} for {name!r}")
        if not _can_name_score(task, name):
            raise UserError(
                f"a score needs a name of its own (letters, digits, _) that means nothing else, got {name!r}"
            )

    updates = traced.shapes("optimizer", traced.updates, params)
    if _layout_of(updates) != _layout_of(params):
        raise UserError(
            "the optimizer must return updates in the shapes of the parameters, got "
            f"{shown(updates)} for {shown(params)}"
        )
    return tuple(scores)


def _is_real(dtype: Any) -> bool:
    """Return whether numbers of this dtype are real numbers, counts or flags, rather than complex ones or keys."""
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))


def _layout_of(tree: Any) -> tuple[Any, list[tuple[int, ...]]]:
    """Return the structure of a tree, and the shapes of its arrays."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [leaf.shape for leaf in leaves]


def _can_name_score(task: Task, name: Any) -> bool:
    """Return whether a name is a word that means nothing else in the results of a sweep or the records of a run."""
    if not isinstance(name, str) or re.fullmatch(r"[A-Za-z]\w*", name) is None:
        return False
    is_taken = name in task.hyperparameters or name in RESERVED or name in records.NOT_SCORES
    return not is_taken and not name.startswith(("epsilon_", "mu_"))


def digest_of_programs(task: Task, examples: Examples, each_settings: Iterable[Settings]) -> str:
    """Return a hash of what model and optimizer compute with each of these settings, one of each program.

    It is a hash of the lowered programs, in which every constant stands with its bits; another version of jax may give
    another one.
    """
    digest = hashlib.sha256()
    for settings in each_settings:
        traced = _Traced(task, examples, settings)
        shapes = (traced.real, traced.key, examples.example, examples.evaluation_shapes)
        digest.update(program_digest(jax.jit(traced.everything), *shapes).encode())
    return digest.hexdigest()


def shapes_of(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the shapes of the results of a function, or raise the UserError for what it raises; ``what`` names it."""
    try:
        return jax.eval_shape(function, *arguments)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise failure_of(what, error) from error


class _Traced:
    """The functions of a task with its real hyperparameters as traced arguments, as compiled programs call them."""

    def __init__(self, task: Task, examples: Examples, settings: Settings) -> None:
        self.task = task
        self.examples = examples
        self.constants = task.constants(settings)
        self.real = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in task.traced(settings)}
        self.key = jax.eval_shape(lambda: jax.random.key(0))

    def everything(self, real: Settings, key: Any, example: Any, evaluation: Any) -> Any:
        params = self.init(real, key)
        loss = self.loss(real, params, example)
        scores = self.scores(real, params, evaluation)
        updates = self.update(real, params)
        return params, loss, scores, updates

    def model(self, real: Settings) -> Model:
        return self.task.model(self.examples.example, {**self.constants, **real})

    def init(self, real: Settings, key: Any) -> Any:
        return self.model(real).init(key)

    def loss(self, real: Settings, params: Any, example: Any) -> Any:
        model = self.model(real)
        try:
            return model.loss(params, *example)
        except Exception as error:
            shapes = ", ".join(_short(part) for part in self.examples.example)
            error.add_note(f"loss is called with ONE example, here {shapes}: its arrays have no batch axis")
            raise

    def scores(self, real: Settings, params: Any, evaluation: Any) -> Any:
        return self.model(real).scores(params, *evaluation)

    def update(self, real: Settings, params: Any) -> Any:
        optimizer = self.task.make_optimizer({**self.constants, **real}, num_steps=100)
        return optimizer.update(params, optimizer.init(params), params)

    def updates(self, real: Settings, params: Any) -> Any:
        updates, _ = self.update(real, params)
        return updates

    def shapes(self, what: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the shapes of the results of ``function``, or raise the UserError for what it raises."""
        return shapes_of(what, function, self.real, *arguments)


def failure_of(what: str, error: BaseException) -> UserError:
    """Return the UserError for an exception in a function of the user, with its notes and the line that raised it."""
    name = type(error).__name__
    place = _place_of(error)
    where = f" ({place})" if place else ""
    if isinstance(error, SyntaxError):
        return UserError(f"{what} failed: {name}: {error.msg}{where}")

    # JAX says which argument it was, but not that it is a hyperparameter.
    message = str(error)
    traced = sorted(set(re.findall(r"argument real\['(\w+)'\]", message)))
    if traced:
        are = "is an argument" if len(traced) == 1 else "are arguments"
        return UserError(
            f"{what} failed: {' and '.join(traced)} {are} of the compiled program, without a value while that is made: "
            f"use jnp.where in the place of a branch, or annotate a whole number as int, each of whose values has a "
            f"program of its own{where}"
        )

    # Neither where JAX was at work, nor that it left its own lines out, helps anybody.
    message = message.split("The error occurred while tracing")[0]
    parts = [f"{name}: {message}".strip()[:500]]
    for note in getattr(error, "__notes__", []):
        if not note.startswith("-----"):
            parts.append(note[:300])
    text = " ".join("; ".join(parts).split())
    return UserError(f"{what} failed: {text}{where}")


def with_place(what: str, error: Exception) -> Exception:
    """Return the UserError for an exception that a function of the user raised, and any other one as it is."""
    if isinstance(error, UserError) or not _place_of(error):
        return error
    return failure_of(what, error)


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
