"""``train``: one private model."""

import datetime
from pathlib import Path

from rich.console import Console

from experiments import datasets
from experiments.config import TrainConfig, validate
from experiments.keys import SEED_NOTICE
from experiments.progress import ProgressObserver
from experiments.report import print_result
from experiments.training import Result, train


def default_folder(name: str) -> Path:
    """A new folder under runs/."""
    return Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def run_quietly(config: TrainConfig, console: Console, name: str) -> Result:
    """Validate, load and train, with a progress bar but without the final report."""
    validate(config)
    if config.run.seed is not None:
        console.print(f"[bold yellow]{SEED_NOTICE}")
    dataset = datasets.load(config.data.dataset)
    with ProgressObserver(console) as observer:
        return train(config, dataset, config.run.out or default_folder(name), observer)


def run(config: TrainConfig) -> None:
    """Train and report."""
    console = Console()
    print_result(console, run_quietly(config, console, config.data.dataset))
