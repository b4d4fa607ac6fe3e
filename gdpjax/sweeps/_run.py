"""Run the trials of a sweep in chunks of one shape, wherever there is room; only this process writes the records.

A backend takes a chunk and promises its result. A chunk is on record, once, when its result has arrived here; other
chunks are run again by ``--resume``.
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
    """An observer of a sweep, which is told what happens."""

    def on_start(self, num_trials: int, on_record: Sequence[Row]) -> None:
        """The sweep begins; the rows of trials that were finished earlier are ``on_record``."""
        ...

    def on_plans(self, done: int) -> None:
        """Called when ``done`` plans are made, and their noise is calibrated."""
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
    """The largest number of trials in a chunk, the memory of one node, and how many chunks run in it at a time."""

    width: int
    memory_bytes: int
    slots: int = 1


class ChunkLost(Exception):
    """A backend's word that a chunk ended its worker, and more than once: the chunk is at fault."""


class Backend(Protocol):
    """A place where chunks run."""

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
        self.limits = limits
        self.observer = observer
        self._worker = Worker(task, examples, limits.memory_bytes, limits.slots)
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(limits.slots)

    def submit(self, chunk: Chunk) -> "concurrent.futures.Future[Result]":
        """Put the chunk into the queue of the threads."""
        return self._pool.submit(self._worker.run, chunk, self._on_steps)

    def _on_steps(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self.observer.on_steps(done, total)

    def close(self) -> None:
        """End the running chunks at their next call of a program."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep for `run_trials`: its folder, task and columns, its trials, and the key of the unseeded ones."""

    folder: Path
    task: Task
    layout: Layout
    trials: Sequence[Trial]
    root: jax.Array

    def record(self, outcomes: Sequence[Outcome], observer: Observer) -> None:
        """Put finished trials on disk first, then on the screen."""
        rows = [row_of(outcome, self.layout) for outcome in outcomes]
        write_part(self.folder, rows, self.layout)
        observer.on_chunk(rows)


def run_trials(sweep: Sweep, on_record: Sequence[Row], backend: Backend, observer: Observer) -> None:
    """Run the trials that are not ``on_record``, and record each chunk as it ends."""
    observer.on_start(len(sweep.trials), on_record)
    done = {row["trial"] for row in on_record}
    remaining = [trial for trial in sweep.trials if trial.number not in done]
    refused = [Outcome(trial, error=trial.error) for trial in remaining if trial.error]
    if refused:
        sweep.record(refused, observer)

    # No two trials may share a key, those on record included.
    keys: dict[int, Keys] = {}
    for trial in sweep.trials:
        if trial.plan is not None:
            keys[trial.number] = folders.keys_of(trial, sweep.root)
    refuse_shared_keys(list(keys.values()))

    # Submit all chunks, and record each as it ends.
    chunk_of_future: dict[concurrent.futures.Future[Result], Chunk] = {}
    for shape, trials in by_shape(sweep.task, remaining).items():
        chunks = list(chunks_of(shape, trials, keys, backend.limits))
        observer.on_chunks(_announced(shape, len(trials), chunks, backend.limits))
        for chunk in chunks:
            chunk_of_future[backend.submit(chunk)] = chunk
    for future in concurrent.futures.as_completed(chunk_of_future):
        result = result_of(future, chunk_of_future[future])
        if result.program is not None:
            folders.record_program(sweep.folder, result.program)
        sweep.record(result.outcomes, observer)


def _announced(shape: Shape, num_trials: int, chunks: Sequence[Chunk], limits: Limits) -> str:
    """Return in words what is to run of one shape."""
    num_steps, batch_size, *constants = shape
    own = "".join(f", {name} {value}" for name, value in constants)
    at_a_time = min(len(chunks), limits.slots)
    return (
        f"{count(num_trials, 'trial')} of {num_steps} steps with batches of {batch_size:g}{own}: "
        f"{count(len(chunks), 'chunk')} of up to {chunks[0].width} side by side, {at_a_time} at a time"
    )


def by_shape(task: Task, trials: Sequence[Trial]) -> dict[Shape, list[Trial]]:
    """Return the trials that share a program."""
    shapes: dict[Shape, list[Trial]] = {}
    for trial in trials:
        if trial.plan is not None:
            shapes.setdefault(shape_of(task, trial), []).append(trial)
    return shapes


def chunks_of(shape: Shape, trials: Sequence[Trial], keys: dict[int, Keys], limits: Limits) -> Iterator[Chunk]:
    """Yield chunks of equal size but for the last; their number is a multiple of the slots, as far as trials go."""
    fewest_chunks = math.ceil(len(trials) / limits.width)
    num_rounds = math.ceil(fewest_chunks / limits.slots)
    width = math.ceil(len(trials) / (num_rounds * limits.slots))
    for first in range(0, len(trials), width):
        members = trials[first : first + width]
        key_data = [_key_data(keys[trial.number]) for trial in members]
        yield Chunk(tuple(members), np.asarray(key_data), shape, width)


def _key_data(keys: Keys) -> list[np.ndarray]:
    """Return the data of both keys of a trial."""
    return [np.asarray(jax.random.key_data(key)) for key in keys]


def result_of(future: "concurrent.futures.Future[Result]", chunk: Chunk) -> Result:
    """Return a chunk's result; the loss of its workers is an error of its trials, and other errors are raised."""
    try:
        return future.result()
    except ChunkLost as error:
        return Result([Outcome(trial, error=described(error)) for trial in chunk.trials], None)


def refuse_shared_keys(keys: Sequence[Keys]) -> None:
    """Refuse trials with the same noise: the difference of their results would have none."""
    distinct: set[bytes] = set()
    for of_trial in keys:
        distinct.update(data.tobytes() for data in _key_data(of_trial))
    if len(distinct) != 2 * len(keys):
        raise RuntimeError("two trials share a key; please report this")
