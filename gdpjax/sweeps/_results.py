"""The rows of a sweep in Parquet: one part file for each finished chunk of trials, and all of them in one at the end.

A Parquet file cannot be appended to, so a chunk becomes a file of its own, under a temporary name until it is whole:
after a kill -9 a trial is either in a part, complete, or in none, and `read_rows` says which are done.
"""

import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from gdpjax._core.files import write_atomically
from gdpjax.sweeps._errors import UserError
from gdpjax.sweeps._layout import Layout
from gdpjax.sweeps._worker import Outcome

PARTS = "parts"
RESULTS = "results.parquet"
Row = dict[str, Any]


def row_of(outcome: Outcome, layout: Layout) -> Row:
    """Return the record of a trial that is over. It is charged for all planned steps, whenever it stopped."""
    trial = outcome.trial
    named = {"trial": trial.number, "seed": trial.seed, "replicate": trial.replicate, "delta": trial.delta}
    ended = {"error": outcome.error, "seconds": outcome.seconds}
    found = trial.settings | named | outcome.scores | ended
    if trial.cost is None:
        found.pop("noise_multiplier", None)  # it has no guarantee, and was not run
    else:
        found |= dataclasses.asdict(trial.cost)
    return {name: found.get(name) for name in layout.columns}


def write_part(folder: Path, rows: Sequence[Row], layout: Layout) -> None:
    """Add a finished chunk, all or nothing."""
    parts = folder / PARTS
    parts.mkdir(exist_ok=True)
    taken = [int(path.stem.split("-")[1]) for path in parts.glob("part-*.parquet")]
    _write(parts / f"part-{max(taken, default=-1) + 1:06d}.parquet", rows, layout)


def finish(folder: Path, layout: Layout) -> list[Row]:
    """Return all rows by number, and write them into one file too."""
    rows = read_rows(folder, layout)
    _write(folder / RESULTS, rows, layout)
    return rows


def read_rows(folder: Path, layout: Layout) -> list[Row]:
    """Return the rows of a sweep so far, each trial once, in order; a UserError names a damaged file."""
    paths = sorted((folder / PARTS).glob("part-*.parquet"))
    if not paths and (folder / RESULTS).is_file():
        paths = [folder / RESULTS]
    rows: dict[int, Row] = {}
    for path in paths:
        for row in _read(path, layout):
            rows.setdefault(row["trial"], row)
    return [rows[number] for number in sorted(rows)]


def _read(path: Path, layout: Layout) -> Iterable[Row]:
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and its trials will be run again") from error
    if table.column_names != list(layout.columns):
        raise UserError(f"{path} has other columns than its sweep; start a new sweep with another --out")
    return table.to_pylist()


def _write(path: Path, rows: Sequence[Row], layout: Layout) -> None:
    columns = layout.columns
    schema = pyarrow.schema([(name, pyarrow.type_for_alias(kind)) for name, kind in columns.items()])
    plain = [{name: _plain(row[name]) for name in columns} for row in rows]
    content = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(plain, schema), content)
    write_atomically(path, content.getvalue())


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
