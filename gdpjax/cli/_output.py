"""The output of a sweep: a CSV file that grows row by row and can be continued, or Parquet made from one at the end.

A Parquet file cannot be appended to, so its rows are kept in a CSV file beside it until all are there.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gdpjax.cli._tables import Table, csv_to_parquet, format_csv, is_parquet, parse_csv, read_table


class Output(NamedTuple):
    """Where the rows of a sweep go.

    Fields:
        path: the file that was asked for.
        work: the CSV file that grows: ``path`` itself, or one beside it for Parquet.
        types: Arrow types by column, in the order of the columns.
    """

    path: pathlib.Path
    work: pathlib.Path
    types: Mapping[str, str]


def make_output(path: pathlib.Path, types: Mapping[str, str]) -> Output:
    """The output at ``path``; ValueError unless it is .csv or .parquet."""
    return Output(path, path.with_name(path.name + ".partial.csv") if is_parquet(path) else path, types)


def start(output: Output, inputs: Sequence[Sequence[str]], piece: int, resume: bool) -> int:
    """Make ``output.work`` ready to be appended to; how many rows are finished and stay.

    ``inputs`` are the first cells of every row that there will be. Rows are kept by whole pieces, so that computing
    goes on where it would have gone on.
    """
    found = next((path for path in (output.work, output.path) if path.exists()), None)
    if found is None:
        with output.work.open("x", encoding="utf-8", newline="") as file:
            file.write(format_csv([list(output.types)]))
        return 0
    if not resume:
        raise ValueError(f"{found} exists; continue it with --resume, remove it, or choose another --output")
    if found != output.work:  # a finished Parquet file
        table = read_table(found)
        _check_same_sweep(found, table, output, inputs)
        if len(table.rows) < len(inputs):
            raise ValueError(f"{found} was finished with {len(table.rows)} rows, but the grid has {len(inputs)}")
        return len(inputs)
    data = found.read_bytes()
    data = data[: data.rfind(b"\n") + 1]  # without a line that was being written
    table = parse_csv(data, str(found))
    _check_same_sweep(found, table, output, inputs)
    kept = len(table.rows) if len(table.rows) == len(inputs) else len(table.rows) // piece * piece
    with found.open("r+b") as file:
        file.truncate(sum(len(line) for line in data.splitlines(keepends=True)[: 1 + kept]))
    return kept


def append(output: Output, rows: Sequence[Sequence[str]]) -> None:
    """Add rows to the end; they are there when this returns."""
    with output.work.open("a", encoding="utf-8", newline="") as file:
        file.write(format_csv(rows))


def finish(output: Output) -> None:
    """Turn the work file into Parquet where that was asked for."""
    if output.work != output.path and output.work.exists():
        csv_to_parquet(output.work, output.path, output.types)
        output.work.unlink()


def _check_same_sweep(found: pathlib.Path, table: Table, output: Output, inputs: Sequence[Sequence[str]]) -> None:
    """ValueError unless the table begins the sweep of ``inputs``."""
    advice = "remove it, or choose another --output"
    if table.columns != list(output.types):
        raise ValueError(f"{found} has other columns than this sweep: {', '.join(table.columns)}; {advice}")
    for row in table.bad:
        raise ValueError(f"{found} is damaged: {row.place} {row.reason}; {advice}")
    if len(table.rows) > len(inputs):
        raise ValueError(f"{found} has {len(table.rows)} rows, but the grid only {len(inputs)}; {advice}")
    for row, expected in zip(table.rows, inputs, strict=False):
        if not all(map(_same, row.cells, expected)):
            raise ValueError(f"{found} holds another grid: {row.place} is not the row expected there; {advice}")


def _same(cell: str, expected: str) -> bool:
    try:
        return cell == expected or float(cell) == float(expected)
    except ValueError:
        return False
