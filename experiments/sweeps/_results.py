"""The rows of a sweep in Parquet: one part file for each finished chunk of trials, and all of them in one at the end.

A Parquet file cannot be appended to, so a chunk becomes a file of its own, under a temporary name until it is whole:
after a kill -9 a trial is either in a part, complete, or in none, and `read_rows` says which are done.
"""

import dataclasses
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.errors import UserError
from experiments.sweeps._spec import HYPERPARAMETERS, WHOLE
from experiments.sweeps._trials import Trial

if TYPE_CHECKING:
    import pyarrow

PARTS = "parts"
RESULTS = "results.parquet"
COLUMNS: dict[str, str] = (
    {"trial": "int64"}
    | {name: "int64" if name in WHOLE else "double" for name in HYPERPARAMETERS}
    | {"seed": "int64", "replicate": "int64", "num_steps": "int64", "sampling_prob": "double", "delta": "double"}
    | {"overflow": "double", "mu_clt": "double", "epsilon_clt": "double", "epsilon_moments_accountant": "double"}
    | {
        "epsilon_lower": "double",
        "epsilon_upper": "double",
        "test_accuracy": "double",
        "test_rmse": "double",
        "error": "string",
    }
    | {"seconds": "double"}
)
"""Arrow types. ``epsilon`` is the target, if there was one; the certified bracket is lower and upper."""
Row = dict[str, Any]


def row_of(
    trial: Trial, *, test_accuracy: float | None = None, test_rmse: float | None = None, error: str | None = None,
    seconds: float = 0.0,
) -> Row:  # fmt: skip
    """The record of a trial that is over. It is charged for all planned steps, whenever it stopped."""
    optimizer, privacy = trial.config.optimizer, trial.config.privacy
    used = {"learning_rate": optimizer.learning_rate, "l2_clip_norm": privacy.l2_clip_norm}
    used |= {"batch_size": optimizer.batch_size, "epochs": optimizer.epochs, "epsilon": trial.settings.get("epsilon")}
    cost = {} if trial.cost is None else dataclasses.asdict(trial.cost)
    found = {name: value for name, value in cost.items() if name in COLUMNS}
    named = {"trial": trial.number, "seed": trial.seed, "replicate": trial.replicate, "delta": privacy.delta}
    outcome = {"test_accuracy": test_accuracy, "test_rmse": test_rmse, "error": error, "seconds": seconds}
    return dict.fromkeys(COLUMNS) | named | used | found | outcome


def write_part(folder: Path, rows: Sequence[Row]) -> None:
    """Add a finished chunk, all or nothing."""
    parts = folder / PARTS
    parts.mkdir(exist_ok=True)
    taken = [int(path.stem.split("-")[1]) for path in parts.glob("part-*.parquet")]
    _write(parts / f"part-{max(taken, default=-1) + 1:06d}.parquet", rows)


def finish(folder: Path) -> list[Row]:
    """All rows by number, in one file too."""
    rows = read_rows(folder)
    _write(folder / RESULTS, rows)
    return rows


def read_rows(folder: Path) -> list[Row]:
    """The rows of a sweep so far, each trial once, in order; a UserError names a damaged file."""
    paths = sorted((folder / PARTS).glob("part-*.parquet"))
    if not paths and (folder / RESULTS).is_file():
        paths = [folder / RESULTS]
    rows: dict[int, Row] = {}
    for row in (row for path in paths for row in _read(path)):
        rows.setdefault(row["trial"], row)
    return [rows[number] for number in sorted(rows)]


def _read(path: Path) -> Iterable[Row]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and its trials will be run again") from error
    if table.column_names != list(COLUMNS):
        raise UserError(f"{path} has other columns than this version writes; start a new sweep with another --out")
    return table.to_pylist()


def _write(path: Path, rows: Sequence[Row]) -> None:
    import pyarrow.parquet

    temporary = path.with_name(path.name + ".partial")
    with temporary.open("wb") as file:
        pyarrow.parquet.write_table(_table(rows), file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)  # the new name, too, must survive a loss of power
    os.fsync(folder)
    os.close(folder)


def _table(rows: Sequence[Row]) -> "pyarrow.Table":
    import pyarrow

    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in COLUMNS.items()])
    return pyarrow.Table.from_pylist([{name: _plain(row[name]) for name in COLUMNS} for row in rows], schema)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
