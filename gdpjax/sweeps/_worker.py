"""What trains a chunk of trials, wherever it runs: in threads of this process, or in a process on a node of a cluster.

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
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._keys import Keys
from gdpjax.sweeps._program import Blueprint, Program, arguments_of, blueprint_of, lane, make_program
from gdpjax.sweeps._task import Examples, Task, failure_of
from gdpjax.sweeps._trials import Trial
from gdpjax.training import OVERFLOWED, Data, State, check_status

Shape = tuple[Any, ...]
"""What a program is compiled for: the number of steps, the expected batch size, the whole hyperparameters."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a trial ended: with scores, or with an error. ``seconds`` is its share of its chunk's time."""

    trial: Trial
    scores: dict[str, float] = dataclasses.field(default_factory=dict)
    error: str | None = None
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Trials of one shape, and the data of each one's two keys ``uint32[trials, 2, ...]``; not for release."""

    trials: tuple[Trial, ...]
    key_data: np.ndarray
    shape: Shape
    width: int


class Result(NamedTuple):
    """What became of a chunk's trials, and what was compiled for it, if anything was."""

    outcomes: list[Outcome]
    program: dict[str, Any] | None


class Stopped(Exception):
    """Raised by an observer of steps, to end a chunk that nobody waits for any more."""


class _Compiled(NamedTuple):
    program: Program
    data: Data
    blueprint: Blueprint
    scores: Callable[[Trial, Any], dict[str, float]]


class Worker:
    """Trains chunks in ``slots`` threads that share the memory; the program of each shape is compiled once."""

    def __init__(self, task: Task, examples: Examples, memory_bytes: int, slots: int = 1) -> None:
        self.task, self.examples, self.memory_bytes, self.slots = task, examples, memory_bytes, slots
        self._lock, self._alone = threading.Lock(), threading.Lock()
        self._compiled: dict[tuple[Shape, int], _Compiled | Exception] = {}

    def run(self, chunk: Chunk, on_steps: Callable[[int, int], None] = lambda done, total: None) -> Result:
        """Train the trials of a chunk; what goes wrong is the record of those that it happened to."""
        try:
            compiled, description = self.compiled(chunk)
        except Exception as error:  # whatever the compiler or the model says: the other shapes go on
            return Result([Outcome(trial, error=described(error)) for trial in chunk.trials], None)
        program, outcomes = compiled.program, []
        is_large = program.memory_bytes > self.memory_bytes // self.slots
        with self._alone if is_large else contextlib.nullcontext():
            begun = time.perf_counter()
            for first in range(0, len(chunk.trials), program.width):
                part = slice(first, first + program.width)
                outcomes += self.outcomes(compiled, chunk.trials[part], chunk.key_data[part], on_steps)
            seconds = (time.perf_counter() - begun) / len(chunk.trials)
        return Result([dataclasses.replace(outcome, seconds=seconds) for outcome in outcomes], description)

    def compiled(self, chunk: Chunk) -> tuple[_Compiled, dict[str, Any] | None]:
        """Return the program for a chunk, and its description where it had to be compiled."""
        key, description = (chunk.shape, chunk.width), None
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = self._compile(chunk)
                if isinstance(made := self._compiled[key], _Compiled):
                    description = described_program(chunk, made.program)
            found = self._compiled[key]
        if isinstance(found, Exception):
            raise found
        return found, description

    def _compile(self, chunk: Chunk) -> _Compiled | Exception:
        trial = chunk.trials[0]
        assert trial.plan is not None  # those without have their error on record
        try:
            blueprint = blueprint_of(self.task, self.examples, trial.plan, trial.settings)
            program, data = compile_shape(blueprint, trial.settings, chunk.width, self.memory_bytes, self.slots)
            return _Compiled(program, self._shared(data), blueprint, make_scores(blueprint))
        except Exception as error:
            return error

    def _shared(self, data: Data) -> Data:
        """The data as an earlier shape has them on the device: all plans of a sweep are for one number of rows."""
        for other in self._compiled.values():
            if isinstance(other, _Compiled):
                return other.data
        return data

    def outcomes(
        self, compiled: _Compiled, trials: Sequence[Trial], key_data: np.ndarray, on_steps: Callable[[int, int], None]
    ) -> list[Outcome]:
        """Return how trials that are side by side ended."""
        try:
            state = self.train(compiled, trials, key_data, on_steps)
        except Stopped:
            raise
        except Exception as error:  # out of memory, say: the other chunks go on
            return [Outcome(trial, error=described(error)) for trial in trials]
        return [outcome(compiled, trial, lane(state, index)) for index, trial in enumerate(trials)]

    def train(
        self, compiled: _Compiled, trials: Sequence[Trial], key_data: np.ndarray, on_steps: Callable[[int, int], None]
    ) -> State:
        """Take trials through their program."""
        program = compiled.program
        total = program.num_calls * program.steps_per_call
        keys = [Keys(*map(jax.random.wrap_key_data, pair)) for pair in jnp.asarray(key_data)]
        settings = [trial.settings for trial in trials]
        numbers, stacked = arguments_of(settings, keys, compiled.blueprint.real, program.width)
        return program.run(numbers, stacked, compiled.data, lambda steps: on_steps(steps, total))


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
    names = blueprint.task.traced(dict.fromkeys(blueprint.real))
    evaluation = tuple(jnp.asarray(array) for array in blueprint.examples.evaluation)

    def scores(trial: Trial, params: Any) -> dict[str, float]:
        numbers = {name: jnp.float32(trial.settings[name]) for name in names}
        return {name: python_number(value) for name, value in compiled(numbers, params, evaluation).items()}

    return scores


def python_number(value: Any) -> float:
    """Return the shortest decimal number that is ``value`` in its own precision.

    >>> python_number(jnp.float32(0.836)), float(jnp.float32(0.836))
    (0.836, 0.8360000252723694)
    """
    if not jnp.issubdtype(value.dtype, jnp.inexact):
        return float(value)
    return float(str(np.asarray(value)[()]))


def outcome(compiled: _Compiled, trial: Trial, state: State) -> Outcome:
    """Return how a trial ended. A ledger that is not the plan's stops the sweep: its epsilons would be wrong."""
    refuse_wrong_ledger(trial, state)
    try:
        check_status(state)
    except BatchOverflowError as error:
        return Outcome(trial, error=described(error))
    if not is_finite(state.params):
        return Outcome(trial, error="diverged: the trained parameters are not finite; take a smaller learning_rate")
    try:
        scores = compiled.scores(trial, state.params)
    except Exception as error:
        return Outcome(trial, error=described(failure_of("scores", error)))
    # NaN would win or lose every comparison by accident.
    spoiled = [name for name, value in scores.items() if not math.isfinite(value)]
    if spoiled:
        return Outcome(trial, error=f"the score {spoiled[0]} is {scores[spoiled[0]]}")
    return Outcome(trial, scores)


def is_finite(params: Any) -> bool:
    """Whether no real number among the parameters is infinite or NaN."""
    leaves = [leaf for leaf in jax.tree.leaves(params) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return all(bool(jnp.isfinite(leaf).all()) for leaf in leaves)


def shape_of(task: Task, trial: Trial) -> Shape:
    """Return the shape of a trial that has a plan."""
    assert trial.plan is not None  # those without have their error on record
    constants = tuple(sorted(task.constants(trial.settings).items()))
    return trial.plan.max_steps, trial.plan.expected_batch_size, *constants


def described_program(chunk: Chunk, program: Program) -> dict[str, Any]:
    """Return what is kept of a compilation."""
    steps, batch_size, *constants = chunk.shape
    return {
        "num_steps": steps,
        "batch_size": int(batch_size),
        "constants": dict(constants),
        "width": program.width,
        "steps_per_call": program.steps_per_call,
        "num_compiled": program.num_compiled,
        "memory_bytes": program.memory_bytes,
        "compile_seconds": round(program.compile_seconds, 3),
    }


def refuse_wrong_ledger(trial: Trial, state: State) -> None:
    """RuntimeError unless the state's ledger holds what the trial's certified cost was computed for, or less."""
    assert trial.plan is not None
    (event,) = ledger_of(state.opt_state).events
    planned = trial.plan.event
    assert isinstance(event, Event)
    assert isinstance(planned, Event)
    same = (event.noise_multiplier, event.sampling_prob) == (planned.noise_multiplier, planned.sampling_prob)
    complete = event.num_steps == planned.num_steps or int(state.status) == OVERFLOWED
    if not same or not complete or event.num_steps > planned.num_steps:
        raise RuntimeError(f"the ledger says {event}, but the cost was computed for {planned}")


def described(error: Exception) -> str:
    """Return one line for an error."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
