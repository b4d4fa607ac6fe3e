"""The runs of an experiment: each in its own folder, done once, continued where it was interrupted."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console

from experiments.config import TrainConfig, identity
from experiments.paper.settings import Row
from experiments.train.command import run_quietly
from gdpjax.sweeps import RunInterrupted, UserError, records

PUBLIC_METRICS = ("step", "epoch", "test_accuracy", "test_rmse", "epsilon_lower", "epsilon_upper")
"""What is kept of every epoch."""


class ResultFile(msgspec.Struct):
    """The fields of the result of a run that are read."""

    privacy: dict[str, Any]
    config: dict[str, Any]


class PlannedRun(NamedTuple):
    """A seed of a row, and its folder."""

    row: Row
    seed: int
    folder: Path

    @property
    def config(self) -> TrainConfig:
        """Return the configuration that is trained."""
        return self.row.run(self.seed)

    @property
    def finished(self) -> bool:
        """Whether its result is there."""
        return (self.folder / records.RESULT).is_file()


FinishedRuns = dict[tuple[str, int], dict[str, Any]]
"""What is public of finished runs, by the name of the row and the seed."""


def plan_runs(rows: Sequence[Row], folder: Path, seeds: int | None) -> list[PlannedRun]:
    """Return every run of an experiment, first seeds first.

    Args:
      rows: lines of its table.
      folder: each run has a folder in it.
      seeds: how many there are of each row, in the place of the rows' own numbers.
    """
    planned = []
    for row in rows:
        for seed in range(row.seeds if seeds is None else seeds):
            planned.append(PlannedRun(row, seed, folder / f"{row.name}-seed{seed}"))
    return sorted(planned, key=lambda run: run.seed)


def refuse_others(planned: Sequence[PlannedRun]) -> None:
    """Raise UserError where a folder holds a run of another configuration, before anything runs."""
    for run in planned:
        if (run.folder / records.CONFIG).is_file():
            records.refuse_differences(run.folder, identity(run.config))


def train_missing(planned: Sequence[PlannedRun], console: Console) -> None:
    """Train what is not finished, one after the other."""
    missing = [run for run in planned if not run.finished]
    for number, run in enumerate(missing, start=1):
        console.print(f"[bold]run {number} of {len(missing)}: {run.folder}")
        was_begun = (run.folder / records.CONFIG).is_file()
        in_folder = dataclasses.replace(run.config.run, out=run.folder, resume=was_begun)
        config = dataclasses.replace(run.config, run=in_folder)
        try:
            run_quietly(config, console, run.row.name)
        except RunInterrupted as stop:
            raise RunInterrupted(
                f"interrupted in {run.folder}; give the same command again to go on from its last epoch"
            ) from stop


def finished_runs(planned: Sequence[PlannedRun]) -> FinishedRuns:
    """Return the public figures of every run that is finished."""
    return {(run.row.name, run.seed): public_figures(run) for run in planned if run.finished}


def public_figures(run: PlannedRun) -> dict[str, Any]:
    """Return the public figures of a finished run: its result, and every epoch's scores."""
    lines = records.read_lines(run.folder / records.METRICS, records.Line, header=1)
    if not lines:
        path = run.folder / records.METRICS
        raise UserError(f"{path} is damaged: it has no epochs; remove the folder to train again")
    epochs = [{name: line[name] for name in PUBLIC_METRICS if name in line} for line in lines]

    # The upper median: a number that was measured.
    speeds = sorted(line["steps_per_second"] for line in lines if "steps_per_second" in line)
    return {
        "seed": run.seed,
        "result": records.read_json(run.folder / records.RESULT, ResultFile),
        "epochs": epochs,
        "steps_per_second": speeds[len(speeds) // 2] if speeds else None,
    }
