"""Keep the rows of a sweep in Parquet: a part file for each finished chunk of trials, and one of all rows at the end.

A Parquet file cannot be appended to, so a chunk becomes a file of its own, under a temporary name until it is whole:
after a kill -9 a trial is either in a part, complete, or in none, and `read_rows` says which are done.
"""

import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

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
    values: Row = dict(trial.settings)
    values |= {"trial": trial.number, "seed": trial.seed, "replicate": trial.replicate}
    values |= outcome.scores
    values |= {"error": outcome.error, "seconds": outcome.seconds}
    values |= dataclasses.asdict(trial.cost)
    return {name: values.get(name) for name in layout.columns}


def write_part(folder: Path, rows: Sequence[Row], layout: Layout) -> None:
    """Add a finished chunk, whole or not at all."""
    parts = folder / PARTS
    parts.mkdir(exist_ok=True)
    number = 0
    for path in parts.glob("part-*.parquet"):
        number_of_other = int(path.stem.split("-")[1])
        number = max(number, number_of_other + 1)
    _write(parts / f"part-{number:06d}.parquet", rows, layout)


def finish(folder: Path, layout: Layout) -> list[Row]:
    """Return all rows by number, and write them into one file, too."""
    rows = read_rows(folder, layout)
    _write(folder / RESULTS, rows, layout)
    return rows


def read_rows(folder: Path, layout: Layout) -> list[Row]:
    """Return the rows of a sweep so far, each trial once, in order; a UserError names a damaged file."""
    paths = sorted((folder / PARTS).glob("part-*.parquet"))
    if not paths and (folder / RESULTS).is_file():
        paths = [folder / RESULTS]
    # The first record of a trial counts.
    row_of_trial: dict[int, Row] = {}
    for path in paths:
        for row in _read(path, layout):
            row_of_trial.setdefault(row["trial"], row)
    return [row_of_trial[number] for number in sorted(row_of_trial)]


def _read(path: Path, layout: Layout) -> Iterable[Row]:
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and its trials will be run again") from error
    if table.column_names != list(layout.columns):
        raise UserError(f"{path} has other columns than its sweep; start a new sweep with another --out")
    return table.to_pylist()


def _write(path: Path, rows: Sequence[Row], layout: Layout) -> None:
    """Write rows into one Parquet file, atomically."""
    columns = [(name, pyarrow.type_for_alias(kind)) for name, kind in layout.columns.items()]
    schema = pyarrow.schema(columns)
    table = pyarrow.Table.from_pylist(rows, schema)
    content = io.BytesIO()
    pyarrow.parquet.write_table(table, content)
    write_atomically(path, content.getvalue())
