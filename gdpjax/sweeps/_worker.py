"""Train chunks of trials, in threads of this process or in a process on a node of a cluster.

A trial's keys come with it, so that a chunk that is run again, here or elsewhere, is the same trainings with the same
noise: not another draw from the mechanism, for which another epsilon would be due.
"""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax.ledger import Event, ledger_of
from gdpjax.sampling import BatchOverflowError
from gdpjax.sweeps._blueprint import Blueprint
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._keys import Keys
from gdpjax.sweeps._program import Program, arguments_of, lane, make_program
from gdpjax.sweeps._task import Examples, Task, failure_of, with_place
from gdpjax.sweeps._trials import Trial
from gdpjax.training import Data, State

Shape = tuple[Any, ...]
"""Whatever a program is compiled for: the number of steps, the expected batch size, the whole hyperparameters."""
Steps = Callable[[int, int], None]
"""Told how many steps of how many are done; an exception of it ends the chunk."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The end of a trial: scores or an error. ``seconds`` is its share of its chunk's time."""

    trial: Trial
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Trials of one shape; not for release.

    Attributes:
      trials: to be trained.
      key_data: uint32[trials, 2, ...], the data of the two keys of each.
      shape: of their program.
      width: how many of them are trained side by side, at most.
    """

    trials: tuple[Trial, ...]
    key_data: np.ndarray
    shape: Shape
    width: int


class Result(NamedTuple):
    """The outcomes of the trials of a chunk, and what was compiled for it, if anything was."""

    outcomes: list[Outcome]
    program: dict[str, Any] | None


class Stopped(Exception):
    """Raised by an observer of steps, to end a chunk that nobody waits for any more."""


class _Compiled(NamedTuple):
    """The program of a shape, the data on the device, and the scores of its models."""

    program: Program
    data: Data
    blueprint: Blueprint
    scores: Callable[[Trial, Any], dict[str, float]]


class Worker:
    """Train chunks in ``slots`` threads that share the memory; the program of each shape is compiled once."""

    def __init__(self, task: Task, examples: Examples, memory_bytes: int, slots: int = 1) -> None:
        self.task = task
        self.examples = examples
        self.memory_bytes = memory_bytes
        self.slots = slots
        # One thread compiles at a time, and a program that needs more than its share of the memory runs alone.
        self._lock = threading.Lock()
        self._alone = threading.Lock()
        self._compiled: dict[tuple[Shape, int], _Compiled | Exception] = {}
        self._data: Data | None = None

    def run(self, chunk: Chunk, on_steps: Steps = lambda done, total: None) -> Result:
        """Train the trials of a chunk; an error is the outcome of those trials that it happened to."""
        with self._lock:
            key = chunk.shape, chunk.width
            is_new = key not in self._compiled
            if is_new:
                self._compiled[key] = self._compile(chunk)
            compiled = self._compiled[key]
        if isinstance(compiled, Exception):
            # Of the compiler or of the model: the other shapes continue.
            return Result(_failures(chunk.trials, compiled), None)

        program = compiled.program
        is_large = program.memory_bytes > self.memory_bytes // self.slots
        outcomes = []
        with self._alone if is_large else contextlib.nullcontext():
            begin = time.perf_counter()
            for first in range(0, len(chunk.trials), program.width):
                part = slice(first, first + program.width)
                outcomes += _outcomes(compiled, chunk.trials[part], chunk.key_data[part], on_steps)
            seconds = (time.perf_counter() - begin) / len(chunk.trials)
        timed = [dataclasses.replace(outcome, seconds=seconds) for outcome in outcomes]
        return Result(timed, described_program(chunk, program) if is_new else None)

    def _compile(self, chunk: Chunk) -> _Compiled | Exception:
        trial = chunk.trials[0]
        try:
            blueprint = Blueprint(self.task, self.examples, trial.plan, trial.settings)
            program, data = compile_shape(blueprint, trial.settings, chunk.width, self.memory_bytes, self.slots)
            # All plans of a sweep are for as many rows: the data are on the device once.
            self._data = self._data or data
            return _Compiled(program, self._data, blueprint, make_scores(blueprint))
        except Exception as error:
            return with_place("the training", error)


def _outcomes(compiled: _Compiled, trials: Sequence[Trial], key_data: np.ndarray, on_steps: Steps) -> list[Outcome]:
    """Take trials side by side through their program; returns how they ended."""
    program = compiled.program
    keys = []
    for init_data, training_data in jnp.asarray(key_data):
        keys.append(Keys(jax.random.wrap_key_data(init_data), jax.random.wrap_key_data(training_data)))
    settings = [trial.settings for trial in trials]
    numbers, stacked_keys = arguments_of(settings, keys, compiled.blueprint.real, program.width)
    num_steps = program.num_calls * program.steps_per_call
    try:
        state = program.run(numbers, stacked_keys, compiled.data, lambda done: on_steps(done, num_steps))
    except Stopped:
        raise
    except Exception as error:
        # Out of memory, for example: the other chunks continue.
        return _failures(trials, error)
    return [_outcome(compiled, trial, lane(state, index)) for index, trial in enumerate(trials)]


def _failures(trials: Sequence[Trial], error: Exception) -> list[Outcome]:
    """Return the same error as the outcome of each trial."""
    return [Outcome(trial, error=described(error)) for trial in trials]


def compile_shape(
    blueprint: Blueprint, settings: Mapping[str, float], width: int, memory_bytes: int, slots: int = 1
) -> tuple[Program, Data]:
    """Return the program of a shape for at most ``width`` trials side by side, and the data that it takes.

    As many trials as fit into its share of the memory, where ``slots`` of it run at a time; one may have all of it.
    """
    data = blueprint.training(settings).place(*blueprint.examples.train)
    program = make_program(blueprint, data, width=width, memory_bytes=memory_bytes // slots, most_bytes=memory_bytes)
    return program, data


def make_scores(blueprint: Blueprint) -> Callable[[Trial, Any], dict[str, float]]:
    """Return ``scores(trial, params)`` on the evaluation data: compiled once for all trials of a shape."""
    compiled = jax.jit(blueprint.scores)
    evaluation = tuple(jnp.asarray(array) for array in blueprint.examples.evaluation)

    def scores(trial: Trial, params: Any) -> dict[str, float]:
        numbers = {name: jnp.float32(trial.settings[name]) for name in blueprint.real}
        values = compiled(numbers, params, evaluation)
        return {name: python_number(value) for name, value in values.items()}

    return scores


def python_number(value: Any) -> float:
    """Return the shortest decimal number that is ``value`` in its own precision.

    >>> python_number(jnp.float32(0.836)), float(jnp.float32(0.836))
    (0.836, 0.8360000252723694)
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return float(value)
    return float(str(np.asarray(value)[()]))


def _outcome(compiled: _Compiled, trial: Trial, state: State) -> Outcome:
    """Return how a trial ended. A ledger that is not the plan's stops the sweep: its epsilons would be wrong."""
    refuse_wrong_ledger(trial, state)
    try:
        state.check_status()
        scores = compiled.scores(trial, state.params)
    except BatchOverflowError as error:
        return Outcome(trial, error=described(error))
    except Exception as error:
        return Outcome(trial, error=described(failure_of("scores", error)))
    reason = not_finite(state.params, scores)
    return Outcome(trial, error=reason) if reason is not None else Outcome(trial, scores)


def not_finite(params: Any, scores: Mapping[str, float]) -> str | None:
    """Return in words what of a trained model is not finite; None where everything is.

    NaN would win or lose every comparison by accident.
    """
    for leaf in jax.tree.leaves(params):
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and not jnp.isfinite(leaf).all():
            return "diverged: the trained parameters are not finite; take a smaller learning_rate"
    for name, value in scores.items():
        if not math.isfinite(value):
            return f"the score {name} is {value}"
    return None


def shape_of(task: Task, trial: Trial) -> Shape:
    """Return the shape of a trial that has a plan."""
    constants = tuple(sorted(task.own(trial.settings, whole=True).items()))
    return trial.plan.num_steps, trial.plan.expected_batch_size, *constants


def described_program(chunk: Chunk, program: Program) -> dict[str, Any]:
    """Return the record of a compilation."""
    num_steps, batch_size, *constants = chunk.shape
    return {
        "num_steps": num_steps,
        "batch_size": int(batch_size),
        "constants": dict(constants),
        "width": program.width,
        "steps_per_call": program.steps_per_call,
        "num_compiled": program.num_compiled,
        "memory_bytes": program.memory_bytes,
        "compile_seconds": round(program.compile_seconds, 3),
    }


def refuse_wrong_ledger(trial: Trial, state: State) -> None:
    """Raise RuntimeError unless the state's ledger holds the event that the cost was computed for, or less of it."""
    (event,) = ledger_of(state.opt_state).events
    planned = trial.plan.event
    assert isinstance(event, Event)
    assert isinstance(planned, Event)

    # A training that was stopped by an overflowing batch has taken fewer steps.
    is_complete = event.num_steps == planned.num_steps
    was_stopped = event.num_steps < planned.num_steps and bool(state.overflowed)
    has_planned_noise = event.noise_multiplier == planned.noise_multiplier
    has_planned_sampling = event.sampling_prob == planned.sampling_prob
    if not has_planned_noise or not has_planned_sampling or not (is_complete or was_stopped):
        raise RuntimeError(f"the ledger says {event}, but the cost was computed for {planned}")


def described(error: Exception) -> str:
    """Return one line for an error."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
