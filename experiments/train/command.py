"""``train``: one private model."""

import datetime
import sys
from pathlib import Path

from rich.console import Console

from experiments.config import TrainConfig
from experiments.train.tasks import make_task, numbers_of
from gdpjax.sweeps import TrainingResult, print_training, train


def default_folder(name: str) -> Path:
    """Return a new folder under runs/."""
    return Path("runs") / f"{name}-{datetime.datetime.now():%Y%m%d-%H%M%S}"


def run_quietly(config: TrainConfig, console: Console, name: str) -> TrainingResult:
    """Load and train, with a progress bar but without the final report."""
    out = config.run.out or default_folder(name)
    task = make_task(config.data.dataset, config.model.model, config.optimizer.optimizer)
    return train(
        task,
        spec_of(config),
        out,
        resume=config.run.resume,
        diagnostics=config.run.diagnostics,
        console=console,
    )


def spec_of(config: TrainConfig) -> dict[str, object]:
    """Return the configuration as a spec of one training."""
    numbers = numbers_of(config)
    delta = numbers.pop("delta")
    seeds = 1 if config.run.seed is None else [config.run.seed]
    return {"delta": delta, "hyperparameters": {**numbers, "seeds": seeds}}


def run(config: TrainConfig) -> int:
    """Train and report; 1 if the model or a score is not finite."""
    console = Console()
    result = run_quietly(config, console, config.data.dataset)
    print_training(console, result)
    if result.error is None:
        return 0
    print(f"error: {result.error}", file=sys.stderr)
    return 1
