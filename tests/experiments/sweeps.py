"""Small sweeps for the tests; as a script, one in a process of its own, to be killed: ``python sweeps.py FOLDER``."""

import io
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from experiments import datasets
from experiments.sweeps import _command, _progress
from experiments.sweeps._run import Limits
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


def run_small(text, dataset, folder, *, resume=False, width=2):
    """Run a sweep, without its report."""
    console = Console(file=io.StringIO())
    _command.run_sweep(spec_of(text), dataset, folder, resume, Limits(width, 10**9), console)


class Talking(_progress.ProgressObserver):
    """Says what happens, so that another process can kill this one in the middle of a chunk."""

    def on_steps(self, done, total):
        print("steps", done, flush=True)

    def on_chunk(self, rows):
        print("chunk", len(rows), flush=True)


if __name__ == "__main__":
    _command.ProgressObserver = Talking
    run_small(SEVERAL, small(datasets.load("digits")), Path(sys.argv[1]))
