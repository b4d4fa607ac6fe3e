"""Train chunks of trials, in threads of this process or in a process on a node of a cluster.

A trial's keys come with it, so that a chunk that is run again, here or elsewhere, is the same trainings with the same
noise: not another draw from the mechanism, for which another epsilon would be due.
"""

import concurrent.futures
import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax.ledger import Event, ledger_of
from gdpjax.sweeps._examples import Examples
from gdpjax.sweeps._plans import Keys, Trial
from gdpjax.sweeps._program import Blueprint, Program, arguments_of, make_program, make_scores, not_finite
from gdpjax.sweeps._results import Row
from gdpjax.sweeps._task import Settings, Task
from gdpjax.sweeps.records import UserError
from gdpjax.training import Data, State

Shape = tuple[Any, ...]
"""Whatever a program is compiled for: the number of steps, the expected batch size, the whole hyperparameters."""
Steps = Callable[[int, int], None]
"""Told how many steps of how many are done; an exception of it ends the chunk."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """The largest number of trials in a chunk, the memory of one node, and how many chunks run in it at a time."""

    width: int
    memory_bytes: int
    slots: int = 1


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


class ChunkLost(Exception):
    """A backend's word that a chunk ended its worker, and more than once: the chunk is at fault."""


class Stopped(Exception):
    """Raised by an observer of steps, to end a chunk that nobody waits for any more."""


class _Compiled(NamedTuple):
    """The program of a shape, the data on the device, and the scores of its models."""

    program: Program
    data: Data
    blueprint: Blueprint
    scores: Callable[[Settings, Any], dict[str, float]]


class LocalBackend:
    """Threads of this process. XLA uses all cores for large operations, but not for those of small models."""

    def __init__(self, task: Task, examples: Examples, limits: Limits, on_steps: Steps) -> None:
        self.limits = limits
        self._worker = Worker(task, examples, limits.memory_bytes, limits.slots)
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(limits.slots)
        self._observer = on_steps

    def submit(self, chunk: Chunk) -> "concurrent.futures.Future[list[Row]]":
        """Put the chunk into the queue of the threads."""
        return self._pool.submit(self._worker.run, chunk, self._on_steps)

    def result(self, future: "concurrent.futures.Future[list[Row]]") -> list[Row]:
        """Return the records of the trials of a chunk that is over."""
        return future.result()

    def _on_steps(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self._observer(done, total)

    def close(self) -> None:
        """End the running chunks at their next call of a program."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


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

    def run(self, chunk: Chunk, on_steps: Steps = lambda done, total: None) -> list[Row]:
        """Train the trials of a chunk; an error is the outcome of those trials that it happened to."""
        with self._lock:
            key = chunk.shape, chunk.width
            if key not in self._compiled:
                self._compiled[key] = self._compile(chunk)
            compiled = self._compiled[key]
        if isinstance(compiled, Exception):
            # Of the compiler or of the model: the other shapes continue.
            return failures(chunk.trials, compiled)

        program = compiled.program
        is_large = program.memory_bytes > self.memory_bytes // self.slots
        rows = []
        with self._alone if is_large else contextlib.nullcontext():
            begin = time.perf_counter()
            for first in range(0, len(chunk.trials), program.width):
                part = slice(first, first + program.width)
                rows += _train(compiled, chunk.trials[part], chunk.key_data[part], on_steps)
            seconds = (time.perf_counter() - begin) / len(chunk.trials)
        return [row | {"seconds": seconds} for row in rows]

    def _compile(self, chunk: Chunk) -> _Compiled | Exception:
        trial = chunk.trials[0]
        try:
            blueprint = Blueprint(self.task, self.examples, trial.plan, trial.settings)
            if self._data is None:
                # All plans of a sweep are for as many rows: the data are on the device once.
                self._data = blueprint.training(trial.settings).place(*self.examples.train)
            limits = {"width": chunk.width, "memory_bytes": self.memory_bytes, "slots": self.slots}
            program = make_program(blueprint, self._data, **limits)
            return _Compiled(program, self._data, blueprint, make_scores(blueprint))
        except Exception as error:
            return error


def _train(
    compiled: _Compiled,
    trials: Sequence[Trial],
    key_data: np.ndarray,
    on_steps: Steps,
) -> list[Row]:
    """Take trials side by side through their program; returns how they ended."""
    program = compiled.program
    keys = [Keys(*map(jax.random.wrap_key_data, of_trial)) for of_trial in jnp.asarray(key_data)]
    settings = [trial.settings for trial in trials]
    arguments = arguments_of(settings, keys, compiled.blueprint.real, program.width)
    num_steps = program.num_calls * program.steps_per_call
    try:
        states = program.run(*arguments, compiled.data, lambda done: on_steps(done, num_steps))
    except Stopped:
        raise
    except Exception as error:
        # Out of memory, for example: the other chunks continue.
        return failures(trials, error)
    return [_row(compiled, trial, lane(states, index)) for index, trial in enumerate(trials)]


def lane(state: State, index: int) -> State:
    """Return one trial of a batched state."""
    return jax.tree.map(lambda leaf: leaf[index], state)


def _row(compiled: _Compiled, trial: Trial, state: State) -> Row:
    """Return how a trial ended. A ledger that is not the plan's stops the sweep: its epsilons would be wrong."""
    refuse_wrong_ledger(trial, state)
    try:
        state.check_status()
        scores = compiled.scores(trial.settings, state.params)
    except Exception as error:
        return row_of(trial, error=described(error))
    reason = not_finite(state.params, scores)
    return row_of(trial, scores) if reason is None else row_of(trial, error=reason)


def row_of(trial: Trial, scores: Mapping[str, float] = {}, error: str | None = None) -> Row:
    """Return the record of a trial that is over. It is charged for all planned steps, whenever it stopped."""
    about = {
        "trial": trial.number,
        "seed": trial.seed,
        "replicate": trial.replicate,
        "error": error,
        "seconds": 0.0,
    }
    return {**trial.settings, **scores, **dataclasses.asdict(trial.cost), **about}


def failures(trials: Sequence[Trial], error: Exception) -> list[Row]:
    """Return the same error as the outcome of each trial."""
    return [row_of(trial, error=described(error)) for trial in trials]


def described(error: Exception) -> str:
    """Return one line for an error."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def shape_of(task: Task, trial: Trial) -> Shape:
    """Return the shape of a trial that has a plan."""
    constants = tuple(sorted(task.own(trial.settings, whole=True).items()))
    return trial.plan.num_steps, trial.plan.expected_batch_size, *constants


def refuse_wrong_ledger(trial: Trial, state: State) -> None:
    """Raise RuntimeError unless the state's ledger holds the event that the cost was computed for, or less of it."""
    (event,) = ledger_of(state.opt_state).events
    planned = trial.plan.event
    assert isinstance(event, Event)
    assert isinstance(planned, Event)

    # A training that was stopped by an overflowing batch has taken fewer steps.
    least_steps = 1 if state.overflowed else planned.num_steps
    has_planned_length = least_steps <= event.num_steps <= planned.num_steps
    has_planned_noise = event.noise_multiplier == planned.noise_multiplier
    has_planned_sampling = event.sampling_prob == planned.sampling_prob
    if not (has_planned_noise and has_planned_sampling and has_planned_length):
        raise RuntimeError(f"the ledger says {event}, but the cost was computed for {planned}")
