"""What trains a chunk of trials, wherever it runs: in threads of this process, or in a process on a node of a cluster.

A trial's keys come with it, so that a chunk that is run again, here or elsewhere, is the same trainings with the same
noise: not another draw from the mechanism, for which another epsilon would be due.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import gdpjax
from experiments.datasets import Dataset
from experiments.engine import build_model, build_training, make_scores
from experiments.errors import UserError
from experiments.sweeps._program import Hyperparameters, Keys, Program, lane, make_program, stack
from experiments.sweeps._results import Row, row_of
from experiments.sweeps._trials import Trial
from gdpjax.sampling import BatchOverflowError
from gdpjax.training import OVERFLOWED, Data, State, check_status

Shape = tuple[int, float]
"""The number of steps and the expected batch size: what a program is compiled for."""


@dataclasses.dataclass(frozen=True)
class Chunk:
    """Trials of one shape, and the data of each one's two keys ``uint32[trials, 2, ...]``; not for release."""

    trials: tuple[Trial, ...]
    key_data: np.ndarray
    width: int

    @property
    def shape(self) -> Shape:
        """Of all its trials."""
        return shape_of(self.trials[0])


class Result(NamedTuple):
    """What became of a chunk's trials, and what was compiled for it, if anything was."""

    rows: list[Row]
    program: dict[str, Any] | None


class Stopped(Exception):
    """Raised by an observer of steps, to end a chunk that nobody waits for any more."""


class _Compiled(NamedTuple):
    program: Program
    data: Data
    scores: Callable[[Any], dict[str, float]]


class Worker:
    """Trains chunks in ``slots`` threads that share the memory; the program of each shape is compiled once."""

    def __init__(self, dataset: Dataset, memory_bytes: int, slots: int = 1) -> None:
        self.dataset, self.memory_bytes, self.slots = dataset, memory_bytes, slots
        self._lock, self._alone = threading.Lock(), threading.Lock()
        self._compiled: dict[tuple[Shape, int], _Compiled | Exception] = {}

    def run(self, chunk: Chunk, on_steps: Callable[[int, int], None] = lambda done, total: None) -> Result:
        """What goes wrong is the record of the trials that it happened to."""
        try:
            compiled, description = self.compiled(chunk)
        except Exception as error:  # whatever the compiler or the model says: the other shapes go on
            return Result([row_of(trial, error=described(error)) for trial in chunk.trials], None)
        outcomes: list[dict[str, Any]] = []
        large = compiled.program.memory_bytes > self.memory_bytes // self.slots
        with self._alone if large else contextlib.nullcontext():
            begun = time.perf_counter()
            for first in range(0, len(chunk.trials), compiled.program.width):
                part = slice(first, first + compiled.program.width)
                outcomes += self.outcomes(compiled, chunk.trials[part], chunk.key_data[part], on_steps)
            seconds = (time.perf_counter() - begun) / len(chunk.trials)
        pairs = zip(chunk.trials, outcomes, strict=True)
        return Result([row_of(t, seconds=seconds, **ended) for t, ended in pairs], description)

    def compiled(self, chunk: Chunk) -> tuple[_Compiled, dict[str, Any] | None]:
        """The program for a chunk, and its description where it had to be compiled."""
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
        try:
            program, data = compile_shape(chunk.trials, self.dataset, chunk.width, self.memory_bytes, self.slots)
            model = build_model(chunk.trials[0].config, self.dataset)
            return _Compiled(program, self._shared(data), make_scores(model, self.dataset))
        except Exception as error:
            return error

    def _shared(self, data: Data) -> Data:
        """The data as an earlier shape has them on the device: all plans of a sweep are for one number of rows."""
        others = [other.data for other in self._compiled.values() if isinstance(other, _Compiled)]
        same = [other for other in others if [a.shape for a in other.arrays] == [a.shape for a in data.arrays]]
        return same[0] if same else data

    def outcomes(
        self, compiled: _Compiled, trials: Sequence[Trial], key_data: np.ndarray, on_steps: Callable[[int, int], None]
    ) -> list[dict[str, Any]]:
        """How trials that are side by side ended."""
        try:
            state = self.train(compiled, trials, key_data, on_steps)
        except Stopped:
            raise
        except Exception as error:  # out of memory, say: the other chunks go on
            return [{"error": described(error)}] * len(trials)
        return [outcome(compiled, trial, lane(state, index)) for index, trial in enumerate(trials)]

    def train(
        self, compiled: _Compiled, trials: Sequence[Trial], key_data: np.ndarray, on_steps: Callable[[int, int], None]
    ) -> State:
        """Trials through their program."""
        program = compiled.program
        total = program.num_calls * program.steps_per_call
        keys = [Keys(*map(jax.random.wrap_key_data, pair)) for pair in jnp.asarray(key_data)]
        arguments = arguments_of(trials, keys, program.width)
        return program.run(*arguments, compiled.data, lambda steps: on_steps(steps, total))


def outcome(compiled: _Compiled, trial: Trial, state: State) -> dict[str, Any]:
    """How a trial ended. A ledger that is not the plan's stops the sweep: its epsilons would be wrong."""
    refuse_wrong_ledger(trial, state)
    try:
        check_status(state)
    except BatchOverflowError as error:
        return {"error": described(error)}
    if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params)):
        return {"error": "diverged: the trained parameters are not finite; take a smaller learning_rate"}
    return compiled.scores(state.params)


def shape_of(trial: Trial) -> Shape:
    """Of a trial that has a plan."""
    assert trial.plan is not None  # those without have their error on record
    return trial.plan.max_steps, trial.plan.expected_batch_size


def described_program(chunk: Chunk, program: Program) -> dict[str, Any]:
    """What is kept of a compilation."""
    steps, batch_size = chunk.shape
    description = {"num_steps": steps, "batch_size": int(batch_size), "width": program.width}
    description |= {"steps_per_call": program.steps_per_call, "num_compiled": program.num_compiled}
    return description | {"memory_bytes": program.memory_bytes, "compile_seconds": round(program.compile_seconds, 3)}


def compile_shape(
    trials: Sequence[Trial], dataset: Dataset, width: int, memory_bytes: int, slots: int = 1
) -> tuple[Program, Data]:
    """The program of trials of one shape, at most ``width`` side by side, and the data that it takes.

    As many trials as fit into its share of the memory, where ``slots`` of it run at a time; one may have all of it.
    """
    config, plan = trials[0].config, trials[0].plan
    assert plan is not None  # those without have their error on record
    model = build_model(config, dataset)
    training = build_training(config, model, plan, config.optimizer.learning_rate)
    data = training.place(dataset.train_inputs, dataset.train_labels)
    share = memory_bytes // slots
    program = make_program(config, plan, model, dataset, data, width=width, memory_bytes=share, most_bytes=memory_bytes)
    return program, data


def arguments_of(trials: Sequence[Trial], keys: Sequence[Keys], width: int) -> tuple[Hyperparameters, Keys]:
    """What a program takes for a chunk of trials."""
    numbers = [
        (t.config.optimizer.learning_rate, t.config.privacy.l2_clip_norm, t.config.privacy.noise_multiplier)
        for t in trials
    ]
    return stack(keys, [Hyperparameters(*row) for row in numbers], width)


def refuse_wrong_ledger(trial: Trial, state: State) -> None:
    """RuntimeError unless the state's ledger holds what the trial's certified cost was computed for, or less."""
    assert trial.plan is not None
    (event,) = gdpjax.ledger_of(state.opt_state).events
    planned = trial.plan.event
    assert isinstance(event, gdpjax.Event)
    assert isinstance(planned, gdpjax.Event)
    same = (event.noise_multiplier, event.sampling_prob) == (planned.noise_multiplier, planned.sampling_prob)
    complete = event.num_steps == planned.num_steps or int(state.status) == OVERFLOWED
    if not same or not complete or event.num_steps > planned.num_steps:
        raise RuntimeError(f"the ledger says {event}, but the cost was computed for {planned}")


def described(error: Exception) -> str:
    """One line for an error."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"
