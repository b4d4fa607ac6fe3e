"""Small sweeps for the tests; as a script, one in a process of its own, to be killed: ``python sweeps.py FOLDER``."""

import contextlib
import dataclasses
import functools
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import pytest
from rich.console import Console

from experiments import data
from experiments.sweeps.named_task import FIELDS, named_task
from gdpjax.sweeps import Examples, _folder, _program, _ray, _sweep, _worker, read_spec

SMALL = """
dataset = "digits"
[hyperparameters]
batch_size = 8
epochs = 1
"""
SEVERAL = SMALL + "learning_rate = [0.25, 0.5]\nl2_clip_norm = [0.5, 1.0]\nnoise_multiplier = [2.0, 4.0]\nseeds = [3]\n"


def small(full):
    """64 training and 40 test images."""
    return data.Dataset(full.train_inputs[:64], full.train_labels[:64], full.test_inputs[:40], full.test_labels[:40])


def spec_of(text):
    """The spec of a text."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sweep.toml"
        path.write_text(text)
        return read_spec(path, FIELDS, named_task)


def examples_of(dataset):
    """A data set of the experiments as a task loads it."""
    return Examples((dataset.train_inputs, dataset.train_labels), (dataset.test_inputs, dataset.test_labels))


def on(dataset, text):
    """A spec whose task loads these data."""
    spec = spec_of(text)
    return dataclasses.replace(spec, task=dataclasses.replace(spec.task, load=lambda: examples_of(dataset)))


def local(width=2, slots=1):
    """This process, with chunks of at most ``width`` trials."""
    limits = _worker.Limits(width, 10**9, slots)
    return lambda task, examples, progress: _worker.LocalBackend(task, examples, limits, progress.on_steps)


def sweep_of(folder, trials, text=SMALL):
    """A sweep of these trials, without its beginning, and with a key that everybody knows."""
    spec = spec_of(text)
    keys = _sweep.distinct_keys(trials, jax.random.key(0))
    return _sweep.Sweep(folder, spec.task, _sweep.layout_of(spec, trials, ("test_accuracy",)), trials, keys)


def rows_of(folder, layout=None):
    """The rows in a folder."""
    return _folder.read_rows(folder, layout or _folder.described(folder).layout)


def write_rows(folder, rows, layout):
    """Add a finished chunk to a folder."""
    _folder.write_part(folder, rows, layout)


def timeless(rows):
    """Rows without what a clock said."""
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


class Watcher:
    """An observer that notes the rows of each chunk, and how many programs had been compiled by its end."""

    def __init__(self, compilations=None):
        self.compilations, self.rows, self.at_chunk = compilations, [], []

    def ignore(self, *news):
        pass

    on_start = on_chunks = on_steps = ignore

    def on_chunk(self, rows):
        self.rows += rows
        self.at_chunk.append(self.compilations and self.compilations.count)


Progress = _sweep.SweepProgress
RayBackend = _ray.RayBackend


def run_small(text, dataset, folder, *, resume=False, backend_for=None, progress=Progress):
    """Run a sweep, without its report, watched by an object of the class ``progress``."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_sweep, "SweepProgress", progress)
        _sweep.sweep_in(folder, on(dataset, text), resume, backend_for or local(), Console(quiet=True))


@contextlib.contextmanager
def programs_compiled_once():
    """Let sweeps of one task on the same data share the programs of their shapes, and the scores of their models."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_program, "_compile", made_once(_program._compile))
        patch.setattr(_worker, "make_scores", made_once(_worker.make_scores))
        yield


def made_once(make):
    """Remember what ``make(blueprint)`` or ``make(blueprint, data, width)`` returned for each kind of blueprint."""
    made = {}

    def remembered(blueprint, data=None, *width):
        key = (*_kind(blueprint), *width)
        if key not in made:
            made[key] = make(blueprint) if data is None else make(blueprint, data, *width)
        return made[key]

    return remembered


def _kind(blueprint):
    """Return all that a program is compiled for; clip norm and noise are arguments of it."""
    task = blueprint.task
    return (
        _identity(task.build),
        _identity(task.optimizer),
        blueprint.examples.digest(),
        blueprint.plan.replace(noise_multiplier=1.0, clip=1.0),
        tuple(sorted(blueprint.constants.items())),
        blueprint.real,
    )


def _identity(function):
    """Return what two equal partial functions have in common, or the function itself."""
    if isinstance(function, functools.partial):
        return function.func, function.args
    return function


class Talking(Progress):
    """Says what happens, and stays in the middle of the third chunk, so that another process can kill this one."""

    begun = 0

    def on_steps(self, done, total):
        self.begun += done == 1
        if self.begun == 3:
            print("third", flush=True)
            time.sleep(600)

    def on_chunk(self, rows):
        print("chunk", len(rows), flush=True)


if __name__ == "__main__":
    run_small(SEVERAL, small(data.load("digits")), Path(sys.argv[1]), progress=Talking)
