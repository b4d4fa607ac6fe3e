"""The output of a sweep: a CSV file that grows row by row and can be continued, or Parquet made from one at the end.

A Parquet file cannot be appended to, so its rows are kept in a CSV file beside it until all are there.
"""

import pathlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gdpjax.cli._tables import Table, csv_to_parquet, format_csv, is_parquet, parse_csv, read_table


class Output(NamedTuple):
    """The file of a sweep, to which its rows are written.

    Attributes:
        path: the file that was asked for.
        work: the CSV file that grows: ``path`` itself, or one beside it for Parquet.
        types: Arrow types by column, in the order of the columns.
    """

    path: pathlib.Path
    work: pathlib.Path
    types: Mapping[str, str]


def make_output(path: pathlib.Path, types: Mapping[str, str]) -> Output:
    """Return the output at ``path``; ValueError unless it is .csv or .parquet."""
    work = path
    if is_parquet(path):
        work = path.with_name(path.name + ".partial.csv")
    return Output(path, work, types)


def start(output: Output, inputs: Sequence[Sequence[str]], piece: int, resume: bool) -> int:
    """Make ``output.work`` ready to be appended to; return how many rows are finished and stay.

    ``inputs`` are the first cells of every row that there will be. Rows are kept by whole pieces, so that computing
    goes on where it would have gone on.
    """
    existing = _existing_file(output)
    if existing is None:
        header = list(output.types)
        with output.work.open("x", encoding="utf-8", newline="") as file:
            file.write(format_csv([header]))
        return 0
    if not resume:
        raise ValueError(f"{existing} exists; continue it with --resume, remove it, or choose another --output")
    if existing == output.work:
        return _continue_work_file(output, inputs, piece)

    # A finished Parquet file.
    table = read_table(existing)
    _check_same_sweep(existing, table, output, inputs)
    if len(table.rows) < len(inputs):
        raise ValueError(f"{existing} was finished with {len(table.rows)} rows, but the grid has {len(inputs)}")
    return len(inputs)


def _existing_file(output: Output) -> pathlib.Path | None:
    """Return the file of an earlier sweep, the one that grows first; None where there is none."""
    for path in (output.work, output.path):
        if path.exists():
            return path
    return None


def _continue_work_file(output: Output, inputs: Sequence[Sequence[str]], piece: int) -> int:
    """Cut the work file after its last whole piece; return how many rows stay."""
    data = output.work.read_bytes()
    # Without a line that was being written.
    data = data[: data.rfind(b"\n") + 1]
    table = parse_csv(data, str(output.work))
    _check_same_sweep(output.work, table, output, inputs)

    # The last piece may be shorter than the others, if all rows are there.
    num_rows = len(table.rows)
    num_kept = num_rows if num_rows == len(inputs) else num_rows // piece * piece
    kept_lines = data.splitlines(keepends=True)[: 1 + num_kept]
    with output.work.open("r+b") as file:
        file.truncate(sum(len(line) for line in kept_lines))
    return num_kept


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
    """Raise ValueError unless the table begins the sweep of ``inputs``."""
    advice = "remove it, or choose another --output"
    if table.columns != list(output.types):
        raise ValueError(f"{found} has other columns than this sweep: {', '.join(table.columns)}; {advice}")
    for row in table.bad:
        raise ValueError(f"{found} is damaged: {row.place} {row.reason}; {advice}")
    if len(table.rows) > len(inputs):
        raise ValueError(f"{found} has {len(table.rows)} rows, but the grid only {len(inputs)}; {advice}")
    for row, expected in zip(table.rows, inputs, strict=False):
        # The row has more cells than the inputs: its results.
        is_same = all(_same(cell, value) for cell, value in zip(row.cells, expected, strict=False))
        if not is_same:
            raise ValueError(f"{found} holds another grid: {row.place} is not the row expected there; {advice}")


def _same(cell: str, expected: str) -> bool:
    """Return whether two cells have the same text or are the same number."""
    if cell == expected:
        return True
    try:
        return float(cell) == float(expected)
    except ValueError:
        return False
