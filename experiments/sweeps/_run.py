"""Run the trials of a sweep: shape by shape, each shape's trials through one compiled program, in chunks."""

import dataclasses
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

import gdpjax
from experiments.datasets import Dataset
from experiments.engine import build_model, build_training, make_scores
from experiments.errors import UserError
from experiments.sweeps import _folder as folders
from experiments.sweeps._program import Hyperparameters, Keys, Program, lane, make_program, stack
from experiments.sweeps._results import Row, row_of, write_part
from experiments.sweeps._trials import Trial
from gdpjax.sampling import BatchOverflowError
from gdpjax.training import OVERFLOWED, Data, State, check_status


class Observer(Protocol):
    """Whoever watches a sweep."""

    def on_start(self, num_trials: int, num_done: int) -> None:
        """The sweep begins after ``num_done`` of its trials."""
        ...

    def on_program(self, description: str) -> None:
        """The program of another shape is being compiled."""
        ...

    def on_steps(self, done: int, total: int) -> None:
        """The running chunk has done that many of its steps."""
        ...

    def on_chunk(self, rows: list[Row]) -> None:
        """A chunk is over and on record."""
        ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """How many trials run side by side at most, and within how much memory."""

    width: int
    memory_bytes: int


def run_trials(
    folder: Path, trials: Sequence[Trial], done: set[int], dataset: Dataset, root: jax.Array, limits: Limits,
    observer: Observer,
) -> None:  # fmt: skip
    """Run the trials that are not done, and record each chunk as it ends."""
    observer.on_start(len(trials), len(done))
    left = [trial for trial in trials if trial.number not in done]
    refused = [row_of(trial, error=trial.error) for trial in left if trial.error]
    if refused:
        write_part(folder, refused)
        observer.on_chunk(refused)
    shapes: dict[tuple[int, float], list[Trial]] = {}
    for trial in left:
        if trial.plan is not None:
            shapes.setdefault((trial.plan.max_steps, trial.plan.expected_batch_size), []).append(trial)
    keys = {trial.number: folders.keys_of(trial, root) for trial in left}
    _refuse_shared_keys(list(keys.values()))
    for members in shapes.values():
        _Shape(folder, members, keys, dataset, limits, observer).run()


class _Shape:
    """The trials that share a program."""

    def __init__(
        self, folder: Path, trials: list[Trial], keys: dict[int, Keys], dataset: Dataset, limits: Limits,
        observer: Observer,
    ) -> None:  # fmt: skip
        self.folder, self.trials, self.keys, self.observer = folder, trials, keys, observer
        self.dataset, self.limits = dataset, limits
        self.model = build_model(trials[0].config, dataset)
        self.scores = make_scores(self.model, dataset)

    def run(self) -> None:
        """Compile once, then chunk by chunk. What goes wrong is the record of the trials that it happened to."""
        try:
            program, data = self.compile()
        except Exception as error:  # whatever the compiler or the model says: the other shapes go on
            self.record([row_of(trial, error=described(error)) for trial in self.trials])
            return
        for first in range(0, len(self.trials), program.width):
            chunk = self.trials[first : first + program.width]
            begun = time.perf_counter()
            outcomes = self.outcomes(program, data, chunk)
            seconds = (time.perf_counter() - begun) / len(chunk)
            self.record([row_of(t, seconds=seconds, **o) for t, o in zip(chunk, outcomes, strict=True)])

    def compile(self) -> tuple[Program, Data]:
        """The program, for chunks of equal size as far as they go."""
        plan = self.trials[0].plan
        assert plan is not None  # those without have their error on record
        count = len(self.trials)
        width = math.ceil(count / math.ceil(count / self.limits.width))
        self.observer.on_program(f"{plan.max_steps} steps of {plan.expected_batch_size:g}, {width} trials side by side")
        program, data = compile_shape(self.trials, self.dataset, width, self.limits.memory_bytes)
        description = {"num_steps": plan.max_steps, "batch_size": int(plan.expected_batch_size), "trials": count}
        description |= {"width": program.width, "steps_per_call": program.steps_per_call}
        description |= {"num_compiled": program.num_compiled, "memory_bytes": program.memory_bytes}
        folders.record_program(self.folder, description | {"compile_seconds": round(program.compile_seconds, 3)})
        return program, data

    def train(self, program: Program, data: Data, chunk: list[Trial]) -> State:
        """A chunk through the program."""
        total = program.num_calls * program.steps_per_call
        arguments = arguments_of(chunk, [self.keys[trial.number] for trial in chunk], program.width)
        return program.run(*arguments, data, lambda steps: self.observer.on_steps(steps, total))

    def outcomes(self, program: Program, data: Data, chunk: list[Trial]) -> list[dict[str, Any]]:
        """How the trials of a chunk ended."""
        try:
            state = self.train(program, data, chunk)
        except Exception as error:  # out of memory, say: the other chunks go on
            return [{"error": described(error)}] * len(chunk)
        return [self.outcome(trial, lane(state, index)) for index, trial in enumerate(chunk)]

    def outcome(self, trial: Trial, state: State) -> dict[str, Any]:
        """How a trial ended. A ledger that is not the plan's stops the sweep: its epsilons would be wrong."""
        refuse_wrong_ledger(trial, state)
        try:
            check_status(state)
        except BatchOverflowError as error:
            return {"error": described(error)}
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params)):
            return {"error": "diverged: the trained parameters are not finite; take a smaller learning_rate"}
        return self.scores(state.params)

    def record(self, rows: list[Row]) -> None:
        """On disk first, then on the screen."""
        write_part(self.folder, rows)
        self.observer.on_chunk(rows)


def compile_shape(trials: Sequence[Trial], dataset: Dataset, width: int, memory_bytes: int) -> tuple[Program, Data]:
    """The program of trials of one shape, at most ``width`` side by side, and the data that it takes."""
    config, plan = trials[0].config, trials[0].plan
    assert plan is not None  # those without have their error on record
    model = build_model(config, dataset)
    training = build_training(config, model, plan, config.optimizer.learning_rate)
    data = training.place(dataset.train_inputs, dataset.train_labels)
    return make_program(config, plan, model, dataset, data, width=width, memory_bytes=memory_bytes), data


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
    same = (event.noise_multiplier, event.sampling_prob) == (planned.noise_multiplier, planned.sampling_prob)
    complete = event.num_steps == planned.num_steps or int(state.status) == OVERFLOWED
    if not same or not complete or event.num_steps > planned.num_steps:
        raise RuntimeError(f"the ledger says {event}, but the cost was computed for {planned}")


def described(error: Exception) -> str:
    """One line for an error."""
    text = " ".join(str(error).split())[:500]
    return text if isinstance(error, UserError) else f"{type(error).__name__}: {text}"


def _refuse_shared_keys(keys: Sequence[Keys]) -> None:
    """No two trials may have the same noise: the difference of their results would have none."""
    unique = {np.asarray(jax.random.key_data(key)).tobytes() for pair in keys for key in pair}
    if len(unique) != 2 * len(keys):
        raise RuntimeError("two trials share a key; please report this")
