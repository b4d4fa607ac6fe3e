"""Run the trials of a sweep in chunks of one shape, wherever there is room; this process alone writes what is kept.

A backend takes a chunk and promises its result. A chunk is on record when its result is here, once; what is not here
is run again by ``--resume``.
"""

import concurrent.futures
import dataclasses
import math
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._keys import Keys
from gdpjax.sweeps._layout import Layout
from gdpjax.sweeps._results import Row, row_of, write_part
from gdpjax.sweeps._summary import count
from gdpjax.sweeps._task import Examples, Task
from gdpjax.sweeps._trials import Trial
from gdpjax.sweeps._worker import Chunk, Outcome, Result, Shape, Stopped, Worker, described, shape_of


class Observer(Protocol):
    """Whoever watches a sweep."""

    def on_start(self, num_trials: int, num_done: int) -> None:
        """The sweep begins after ``num_done`` of its trials."""
        ...

    def on_plans(self, done: int) -> None:
        """That many plans are made, and their noise is calibrated."""
        ...

    def on_chunks(self, description: str) -> None:
        """Chunks of another shape are on their way."""
        ...

    def on_steps(self, done: int, total: int) -> None:
        """A running chunk has done that many of its steps."""
        ...

    def on_chunk(self, rows: list[Row]) -> None:
        """A chunk is over and on record."""
        ...


@dataclasses.dataclass(frozen=True)
class Limits:
    """How many trials a chunk has at most, how many chunks run at a time, and in how much memory (of one node)."""

    width: int
    memory_bytes: int
    slots: int = 1


class ChunkLost(Exception):
    """A backend's word that a chunk ended its worker, and more than once: the chunk is at fault."""


class Backend(Protocol):
    """Where chunks run."""

    limits: Limits

    def submit(self, chunk: Chunk) -> "concurrent.futures.Future[Result]":
        """Have a chunk run; in the order of submission, as places become free."""
        ...

    def close(self) -> None:
        """Nobody waits for what still runs."""
        ...


class LocalBackend:
    """Threads of this process. XLA uses all cores for large operations, but not for those of small models."""

    def __init__(self, task: Task, examples: Examples, limits: Limits, observer: Observer) -> None:
        self.limits, self.observer = limits, observer
        self._worker = Worker(task, examples, limits.memory_bytes, limits.slots)
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(limits.slots)

    def submit(self, chunk: Chunk) -> "concurrent.futures.Future[Result]":
        """Into the queue of the threads."""
        return self._pool.submit(self._worker.run, chunk, self._on_steps)

    def _on_steps(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self.observer.on_steps(done, total)

    def close(self) -> None:
        """Ends what runs at its next call of a program."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """What `run_trials` needs of a sweep: its folder, task and columns, its trials, and the key of the unseeded."""

    folder: Path
    task: Task
    layout: Layout
    trials: Sequence[Trial]
    root: jax.Array

    def record(self, outcomes: Sequence[Outcome], observer: Observer) -> None:
        """Put what is over on disk first, then on the screen."""
        rows = [row_of(outcome, self.layout) for outcome in outcomes]
        write_part(self.folder, rows, self.layout)
        observer.on_chunk(rows)


def run_trials(sweep: Sweep, done: set[int], backend: Backend, observer: Observer) -> None:
    """Run the trials that are not ``done``, and record each chunk as it ends."""
    observer.on_start(len(sweep.trials), len(done))
    left = [trial for trial in sweep.trials if trial.number not in done]
    refused = [Outcome(trial, error=trial.error) for trial in left if trial.error]
    if refused:
        sweep.record(refused, observer)
    # Of all trials, those on record included.
    keys = {trial.number: folders.keys_of(trial, sweep.root) for trial in sweep.trials if trial.plan is not None}
    refuse_shared_keys(list(keys.values()))

    waiting: dict[concurrent.futures.Future[Result], Chunk] = {}
    for shape, members in by_shape(sweep.task, left).items():
        chunks = list(chunks_of(shape, members, keys, backend.limits))
        observer.on_chunks(_announced(shape, len(members), chunks, backend.limits))
        waiting |= {backend.submit(chunk): chunk for chunk in chunks}
    for future in concurrent.futures.as_completed(waiting):
        result = result_of(future, waiting[future])
        if result.program is not None:
            folders.record_program(sweep.folder, result.program)
        sweep.record(result.outcomes, observer)


def _announced(shape: Shape, num_trials: int, chunks: Sequence[Chunk], limits: Limits) -> str:
    steps, batch_size, *constants = shape
    own = "".join(f", {name} {value}" for name, value in constants)
    return (
        f"{count(num_trials, 'trial')} of {steps} steps with batches of {batch_size:g}{own}: "
        f"{count(len(chunks), 'chunk')} of up to {chunks[0].width} side by side, "
        f"{min(len(chunks), limits.slots)} at a time"
    )


def by_shape(task: Task, trials: Sequence[Trial]) -> dict[Shape, list[Trial]]:
    """Return the trials that share a program."""
    shapes: dict[Shape, list[Trial]] = {}
    for trial in trials:
        if trial.plan is not None:
            shapes.setdefault(shape_of(task, trial), []).append(trial)
    return shapes


def chunks_of(shape: Shape, trials: Sequence[Trial], keys: dict[int, Keys], limits: Limits) -> Iterator[Chunk]:
    """Yield chunks of equal size as far as they go, as many at least as there are places for."""
    least = math.ceil(len(trials) / limits.width)
    width = math.ceil(len(trials) / (math.ceil(least / limits.slots) * limits.slots))
    for first in range(0, len(trials), width):
        members = trials[first : first + width]
        data = [[np.asarray(jax.random.key_data(key)) for key in keys[trial.number]] for trial in members]
        yield Chunk(tuple(members), np.asarray(data), shape, width)


def result_of(future: "concurrent.futures.Future[Result]", chunk: Chunk) -> Result:
    """Return a chunk's result; one that took its workers down is a failure of its trials, other errors are raised."""
    try:
        return future.result()
    except ChunkLost as error:
        return Result([Outcome(trial, error=described(error)) for trial in chunk.trials], None)


def refuse_shared_keys(keys: Sequence[Keys]) -> None:
    """No two trials may have the same noise: the difference of their results would have none."""
    unique = {np.asarray(jax.random.key_data(key)).tobytes() for pair in keys for key in pair}
    if len(unique) != 2 * len(keys):
        raise RuntimeError("two trials share a key; please report this")
