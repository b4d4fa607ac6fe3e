"""Run the trials of a sweep in chunks of one shape, wherever there is room; only this process writes the records.

A backend takes a chunk and promises its result. A chunk is on record, once, when its result has arrived here; other
chunks are run again by ``--resume``.
"""

import concurrent.futures
import dataclasses
import math
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import jax
import numpy as np

from gdpjax._core import xla
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._folder import Row
from gdpjax.sweeps._keys import Keys
from gdpjax.sweeps._layout import Layout
from gdpjax.sweeps._progress import SweepProgress
from gdpjax.sweeps._summary import count
from gdpjax.sweeps._task import Examples, Task
from gdpjax.sweeps._trials import Trial, keys_of
from gdpjax.sweeps._worker import Chunk, Outcome, Result, Shape, Stopped, Worker, described, shape_of

MOST_SLOTS = 8
"""The other cores are for XLA's own threads, and each chunk keeps a good share of the memory."""


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

    def __init__(self, task: Task, examples: Examples, limits: Limits, progress: SweepProgress) -> None:
        self.limits = limits
        self.progress = progress
        self._worker = Worker(task, examples, limits.memory_bytes, limits.slots)
        self._stop = threading.Event()
        self._pool = concurrent.futures.ThreadPoolExecutor(limits.slots)

    def submit(self, chunk: Chunk) -> "concurrent.futures.Future[Result]":
        """Put the chunk into the queue of the threads."""
        return self._pool.submit(self._worker.run, chunk, self._on_steps)

    def _on_steps(self, done: int, total: int) -> None:
        if self._stop.is_set():
            raise Stopped
        self.progress.on_steps(done, total)

    def close(self) -> None:
        """End the running chunks at their next call of a program."""
        self._stop.set()
        self._pool.shutdown(cancel_futures=True)


def num_slots() -> int:
    """Return how many threads train trials of their own: XLA does not use all cores of a CPU for a small model."""
    if xla.platform() != "cpu":
        return 1
    num_cores = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        num_cores = len(os.sched_getaffinity(0))
    return min(num_cores, MOST_SLOTS)


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A sweep for `run_trials`: its folder, task and columns, its trials, and the keys of each."""

    folder: Path
    task: Task
    layout: Layout
    trials: Sequence[Trial]
    keys: Mapping[int, Keys]


def run_trials(sweep: Sweep, on_record: Sequence[Row], backend: Backend, progress: SweepProgress) -> None:
    """Run the trials that are not ``on_record``, and record each chunk as it ends: on disk first, then on screen."""
    progress.on_start(len(sweep.trials), on_record)
    done = {row["trial"] for row in on_record}
    shapes: dict[Shape, list[Trial]] = {}
    for trial in sweep.trials:
        if trial.number not in done:
            shapes.setdefault(shape_of(sweep.task, trial), []).append(trial)

    # Submit all chunks, and record each as it ends.
    chunk_of_future: dict[concurrent.futures.Future[Result], Chunk] = {}
    for shape, trials in shapes.items():
        chunks = list(chunks_of(shape, trials, sweep.keys, backend.limits))
        num_steps, batch_size, *constants = shape
        own = "".join(f", {name} {value}" for name, value in constants)
        progress.on_chunks(
            f"{count(len(trials), 'trial')} of {num_steps} steps with batches of {batch_size:g}{own}: "
            f"{count(len(chunks), 'chunk')} of up to {chunks[0].width} side by side"
        )
        for chunk in chunks:
            chunk_of_future[backend.submit(chunk)] = chunk
    for future in concurrent.futures.as_completed(chunk_of_future):
        outcomes, program = result_of(future, chunk_of_future[future])
        if program is not None:
            folders.record_program(sweep.folder, program)
        rows = [row_of(outcome, sweep.layout) for outcome in outcomes]
        folders.write_part(sweep.folder, rows, sweep.layout)
        progress.on_chunk(rows)


def row_of(outcome: Outcome, layout: Layout) -> Row:
    """Return the record of a trial that is over. It is charged for all planned steps, whenever it stopped."""
    trial = outcome.trial
    values: Row = {**trial.settings, **outcome.scores, **dataclasses.asdict(trial.cost)}
    values |= {"trial": trial.number, "seed": trial.seed, "replicate": trial.replicate}
    values |= {"error": outcome.error, "seconds": outcome.seconds}
    return {name: values.get(name) for name in layout.columns}


def chunks_of(shape: Shape, trials: Sequence[Trial], keys: Mapping[int, Keys], limits: Limits) -> Iterator[Chunk]:
    """Yield chunks of equal size except the last; their number is a multiple of the slots, as far as trials go."""
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


def distinct_keys(trials: Sequence[Trial], root: jax.Array) -> dict[int, Keys]:
    """Return the keys of each trial; UserError where two share one: the difference of their results has no noise.

    Targets so close that one noise multiplier meets both are one training, if it has a seed.
    """
    keys = {}
    first_with: dict[bytes, Trial] = {}
    for trial in trials:
        keys[trial.number] = keys_of(trial, root)
        for data in _key_data(keys[trial.number]):
            first = first_with.setdefault(data.tobytes(), trial)
            if first is not trial:
                raise UserError(
                    f"the trials {first.settings} and {trial.settings} with seed {trial.seed} are one and the same "
                    "training, with the same noise; leave one of them out, or move their targets apart"
                )
    return keys
