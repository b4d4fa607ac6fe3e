"""Small sweeps for the tests; as a script, one in a process of its own, to be killed: ``python sweeps.py FOLDER``."""

import io
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from experiments import datasets
from experiments.sweeps import _command, _progress
from experiments.sweeps._run import Limits, LocalBackend
from experiments.sweeps._spec import parse_spec

SMALL = """
dataset = "digits"
[hyperparameters]
batch_size = 8
epochs = 1
"""
SEVERAL = SMALL + "learning_rate = [0.25, 0.5]\nl2_clip_norm = [0.5, 1.0]\nnoise_multiplier = [2.0, 4.0]\nseeds = [3]\n"


def small(full):
    """64 training and 40 test images."""
    return datasets.Dataset(
        full.train_inputs[:64], full.train_labels[:64], full.test_inputs[:40], full.test_labels[:40]
    )


def spec_of(text):
    """A spec that is in no file."""
    return parse_spec(Path("sweep.toml"), text)


def local(width=2, slots=1):
    """This process, with chunks of at most ``width`` trials."""
    limits = Limits(width, 10**9, slots)
    return lambda dataset, observer: LocalBackend(dataset, limits, observer)


def run_small(text, dataset, folder, *, resume=False, backend_for=None):
    """Run a sweep, without its report."""
    backend_for = backend_for or local()
    _command.run_sweep(spec_of(text), dataset, folder, resume, backend_for, Console(file=io.StringIO()))


class Talking(_progress.ProgressObserver):
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
    _command.ProgressObserver = Talking
    run_small(SEVERAL, small(datasets.load("digits")), Path(sys.argv[1]))
