"""Tables of text: CSV by the standard library, Parquet by pyarrow where it is installed.

A table is read as text cells, with a place for every row, so that one bad row can be named and left out. Every line of
a CSV file is parsed by itself: a cell holds no line break, and a stray quote spoils its own line and no other.
"""

import csv
import io
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from gdpjax._core.shown import shown

_MOST_NAMES = 20


class Cells(NamedTuple):
    """The text of one row and where it stands, such as "line 7"."""

    place: str
    cells: list[str]


class BadRow(NamedTuple):
    """A row that is left out, and why."""

    place: str
    reason: str


class Table(NamedTuple):
    """Column names, the rows that have one cell for each, and the others."""

    columns: list[str]
    rows: list[Cells]
    bad: list[BadRow]


def is_parquet(path: pathlib.Path) -> bool:
    """Return whether ``path`` names a Parquet file; ValueError unless it is that or CSV, or if pyarrow is missing."""
    suffix = path.suffix.lower()
    if suffix == ".csv":
        return False
    if suffix != ".parquet":
        raise ValueError(f"{path} must end in .csv or .parquet")
    # Ask for pyarrow before any work is done.
    _pyarrow()
    return True


def read_table(path: pathlib.Path) -> Table:
    """Read a CSV or Parquet file as text."""
    if is_parquet(path):
        return _read_parquet(path)
    return parse_csv(path.read_bytes(), str(path))


def parse_csv(data: bytes, name: str) -> Table:
    """Return the table in the bytes of a CSV file, called ``name`` in messages. Blank lines are skipped."""
    if b"\0" in data:
        raise ValueError(f"{name} is not a table: expected CSV, which is text in UTF-8, got binary data")
    rows, bad = [], []
    columns = None
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            (cells,) = csv.reader([line.decode()], strict=True)
        except (csv.Error, UnicodeDecodeError) as error:
            reason = "is not UTF-8" if isinstance(error, UnicodeDecodeError) else _reason(line)
            if columns is None:
                raise ValueError(
                    f"the header of {name} {reason}; expected CSV, with the names of the columns"
                ) from error
            bad.append(BadRow(f"line {number}", reason))
            continue
        cells = [cell.strip() for cell in cells]
        if columns is None:
            columns = _checked_columns(cells, name)
        elif len(cells) == len(columns):
            rows.append(Cells(f"line {number}", cells))
        else:
            bad.append(BadRow(f"line {number}", f"has {len(cells)} cells where the header has {len(columns)}"))
    if columns is None:
        raise ValueError(f"{name} is empty; expected a header line with the names of the columns")
    return Table(columns, rows, bad)


def _reason(line: bytes) -> str:
    """Return why a line of text is not CSV."""
    if len(line) > csv.field_size_limit():
        return f"is not CSV: a cell has at most {csv.field_size_limit()} characters"
    return 'is not CSV: a cell that begins with " must end with it, and a " inside is written twice'


def format_csv(rows: Iterable[Sequence[str]]) -> str:
    """Return the rows as the lines of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def csv_to_parquet(source: pathlib.Path, target: pathlib.Path, types: Mapping[str, str]) -> None:
    """Write the Parquet file ``target`` from a CSV file; types of columns not in ``types`` are inferred."""
    arrow = _pyarrow()
    options = arrow.csv.ConvertOptions(
        column_types={name: arrow.type_for_alias(alias) for name, alias in types.items()}
    )
    table = arrow.csv.read_csv(source, convert_options=options)
    temporary = target.with_name(target.name + ".tmp")
    arrow.parquet.write_table(table, temporary)
    os.replace(temporary, target)


def _read_parquet(path: pathlib.Path) -> Table:
    """Read a Parquet file as text."""
    arrow = _pyarrow()
    try:
        table = arrow.parquet.read_table(path)
    except arrow.ArrowInvalid as error:
        raise ValueError(f"{path} is not a Parquet file: {error}") from error
    columns = _checked_columns(table.column_names, str(path))
    columns_of_text = []
    for column in table.columns:
        columns_of_text.append([_as_text(value) for value in column.to_pylist()])

    rows = []
    bad = []
    for number, cells in enumerate(zip(*columns_of_text, strict=True), start=1):
        if any("\n" in cell or "\r" in cell for cell in cells):
            bad.append(BadRow(f"row {number}", "has a line break in a cell"))
        else:
            rows.append(Cells(f"row {number}", list(cells)))
    return Table(columns, rows, bad)


def _as_text(value: Any) -> str:
    """Return a value of a Parquet file as the cell of a CSV file would have it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def _checked_columns(names: list[str], where: str) -> list[str]:
    """Return the names of columns; ValueError unless each column has one of its own."""
    for name in names:
        if not name or names.count(name) > 1:
            raise ValueError(f"every column of {where} needs a name of its own, got {listed(names)}")
    return names


def listed(names: Sequence[str]) -> str:
    """Return names of columns for a message, a few of them at most."""
    readable = []
    for name in names[:_MOST_NAMES]:
        is_plain = name and len(name) <= 60 and name.isprintable()
        readable.append(name if is_plain else shown(name))
    text = ", ".join(readable) or "none"
    num_more = len(names) - _MOST_NAMES
    if num_more > 0:
        text += f", and {num_more} more"
    return text


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(
            "Parquet files need pyarrow, the extra parquet: in a clone, pip install '.[parquet]'; or use .csv"
        ) from error
    return pyarrow
