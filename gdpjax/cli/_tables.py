"""Tables of text: CSV by the standard library, Parquet by pyarrow where it is installed."""

import csv
import io
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PlacedRow = tuple[str, list[str]]
"""Where a row stands, such as "line 7", and its cells."""


def is_parquet(path: pathlib.Path) -> bool:
    """Return whether ``path`` names a Parquet file; ValueError unless it is that or CSV, or if pyarrow is missing."""
    suffix = path.suffix.lower()
    if suffix not in (".csv", ".parquet"):
        raise ValueError(f"{path} must end in .csv or .parquet")
    # Ask for pyarrow before any work is done.
    return suffix == ".parquet" and _pyarrow() is not None


def read_table(path: pathlib.Path) -> tuple[list[str], list[PlacedRow]]:
    """Return the names of the columns of a CSV or Parquet file, and its rows; one of CSV may have other cells."""
    if is_parquet(path):
        table = _pyarrow().parquet.read_table(path)
        columns = [[text_of(value) for value in column.to_pylist()] for column in table.columns]
        rows = []
        for number, cells in enumerate(zip(*columns, strict=True), start=1):
            rows.append((f"row {number}", list(cells)))
        return table.column_names, rows
    return parse_csv(path.read_bytes(), path)


def parse_csv(data: bytes, path: pathlib.Path) -> tuple[list[str], list[PlacedRow]]:
    """Return the same of the content of a CSV file. Blank lines are skipped."""
    try:
        reader = csv.reader(io.StringIO(data.decode("utf-8-sig"), newline=""))
        rows = [(f"line {reader.line_num}", [cell.strip() for cell in cells]) for cells in reader if cells]
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a table: expected CSV in UTF-8 ({error})") from error
    if not rows:
        raise ValueError(f"{path} is empty; expected a header line with the names of the columns")
    return rows[0][1], rows[1:]


def text_of(value: Any) -> str:
    """Return the cell of a value: the shortest text that reads back as the same number, 3 and not 3.0.

    >>> text_of(3.0), text_of(0.1), text_of(None), text_of("a")
    ('3', '0.1', '', 'a')
    """
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return "" if value is None else str(value)


def format_csv(rows: Iterable[Sequence[str]]) -> str:
    """Return the rows as the lines of a CSV file."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def csv_to_parquet(source: pathlib.Path, target: pathlib.Path, types: Mapping[str, str]) -> None:
    """Write the Parquet file ``target`` from a CSV file whose columns have these Arrow types."""
    arrow = _pyarrow()
    arrow_types = {name: arrow.type_for_alias(kind) for name, kind in types.items()}
    options = arrow.csv.ConvertOptions(column_types=arrow_types)
    temporary = target.with_name(target.name + ".tmp")
    arrow.parquet.write_table(arrow.csv.read_csv(source, convert_options=options), temporary)
    os.replace(temporary, target)


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
