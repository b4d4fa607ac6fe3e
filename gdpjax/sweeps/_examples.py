"""The data of a task, checked, and what a failure in a function of the user says: the message, and the user's line."""

import dataclasses
import hashlib
import os
import re
import sysconfig
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_array
from gdpjax._core.shown import shown
from gdpjax.sweeps.records import UserError

_LIBRARIES = (f"{Path(__file__).parents[1]}{os.sep}", f"{sysconfig.get_path('stdlib')}{os.sep}", "<")
"""How the paths of gdpjax, of Python's own modules, and of no file begin: their lines are not the user's."""
HOLD_OUT_SEED = 20191127


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


def load_examples(load: Callable[[], Any], hold_out: float | None = None) -> Examples:
    """Return the checked data of a task; with ``hold_out`` a part of the training data is held out."""
    try:
        loaded = load()
    except (Exception, SystemExit) as error:
        raise failure_of("load", error) from error
    if not isinstance(loaded, Examples):
        if not isinstance(loaded, tuple | list) or len(loaded) != 2:
            raise UserError(
                f"load must return a pair (train, evaluation), such as ((x, y), (x_test, y_test)), got {shown(loaded)}"
            )
        loaded = Examples(_arrays("training", loaded[0]), _arrays("evaluation", loaded[1]))
    lengths = {len(array) if array.ndim else None for array in loaded.train}
    if len(lengths) != 1 or not lengths - {0, None}:
        raise UserError(f"load: all arrays of the training data need one row per example, got {lengths} rows")
    if hold_out is not None:
        return loaded.hold_out(hold_out)
    if any(array.ndim > 0 and len(array) == 0 for array in loaded.evaluation):
        raise UserError("load: the evaluation data have no rows, so that there is nothing to score on")
    return loaded


def _arrays(part: str, value: Any) -> tuple[np.ndarray, ...]:
    """Return an array, or a tuple of arrays, as a tuple of arrays of finite numbers; ``part`` names it in messages."""
    arrays = []
    for member in value if isinstance(value, tuple | list) else (value,):
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


def failure_of(what: str, error: BaseException) -> UserError:
    """Return the UserError for an exception in a function of the user, with its notes and the line that raised it."""
    if isinstance(error, UserError):
        return error
    place = _place_of(error)
    where = f" ({place})" if place else ""

    # JAX says which argument it was, but not that it is a hyperparameter.
    message = str(error)
    traced = sorted(set(re.findall(r"argument numbers\['(\w+)'\]", message)))
    if traced:
        return UserError(
            f"{what} failed: {' and '.join(traced)} is an argument of the compiled program: use jnp.where in place of "
            f"a branch, or annotate it as int, for a program of each value{where}"
        )

    # Neither where JAX was at work, nor that it left its own lines out, helps anybody.
    parts = [f"{type(error).__name__}: {message.split('The error occurred while tracing')[0]}"[:500]]
    parts += [note[:300] for note in getattr(error, "__notes__", []) if not note.startswith("-----")]
    text = " ".join("; ".join(parts).split())
    return UserError(f"{what} failed: {text}{where}")


def is_own(path: str) -> bool:
    """Return whether a file or folder is the user's own: neither installed nor of gdpjax or of Python."""
    return "site-packages" not in path and not path.startswith(_LIBRARIES)


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the user's own, with its file and function; nothing where there is none."""
    place = ""
    for frame in traceback.extract_tb(error.__traceback__):
        path = frame.filename
        if is_own(path):
            place = f"{path}, line {frame.lineno}, in {frame.name}"
    return place
