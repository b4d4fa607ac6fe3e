"""What commands read: the run that options, or the columns of a file, describe; and tables of text.

Tables are CSV by the standard library, and Parquet by pyarrow where it is installed.
"""

import argparse
import csv
import io
import os
import pathlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from gdpjax._core.checks import COUNT, UNIT, check
from gdpjax.sampling import steps_of_epochs

NOISE = "stddev of the noise / sensitivity"
RUN_OPTIONS = {
    "max_examples": "size of the data set",
    "expected_batch_size": "expected batch size",
    "sampling_prob": "probability that an example joins a batch, instead of --max-examples and --expected-batch-size",
    "epochs": "passes over the data: the number of steps is round(EPOCHS * MAX_EXAMPLES / EXPECTED_BATCH_SIZE)",
    "num_steps": "number of steps, instead of --epochs",
}
OTHER_NAMES = {"num_examples": "max_examples", "batch_size": "expected_batch_size"}
"""Other names of options and columns."""

PlacedRow = tuple[str, list[str]]
"""Where a row stands, such as "line 7", and its cells."""


def option_names(name: str) -> list[str]:
    """Return the options for a quantity.

    >>> option_names("max_examples")
    ['--max-examples', '--num-examples']
    """
    names = [name, *(other for other, known in OTHER_NAMES.items() if known == name)]
    return ["--" + some.replace("_", "-") for some in names]


def add_run_options(parser: argparse.ArgumentParser, with_cost: bool = True) -> None:
    """Add the options that describe a run, one number each; ``with_cost``, its noise and delta, too."""
    if with_cost:
        parser.add_argument("--noise-multiplier", type=float, required=True, help=NOISE)
        parser.add_argument("--delta", type=float, required=True)
    for name, text in RUN_OPTIONS.items():
        parser.add_argument(*option_names(name), type=float, help=text)


def run_of_options(arguments: argparse.Namespace) -> tuple[float, int]:
    """Return (sampling_prob, num_steps) of the run that the options of `add_run_options` describe."""
    return run_of({name: value for name, value in vars(arguments).items() if value is not None})


def check_given(names: Collection[str]) -> None:
    """Raise ValueError unless the quantities with these names describe how often and for how long."""
    sampling = set(names) & {"max_examples", "expected_batch_size", "sampling_prob"}
    if sampling not in ({"max_examples", "expected_batch_size"}, {"sampling_prob"}):
        raise ValueError("give either --max-examples and --expected-batch-size, or --sampling-prob")
    if ("epochs" in names) == ("num_steps" in names):
        raise ValueError("give either --epochs or --num-steps")


def run_of(values: Mapping[str, Any]) -> tuple[float, int]:
    """Return (sampling_prob, num_steps) from the quantities of `RUN_OPTIONS` that are given."""
    check_given(values)
    if "sampling_prob" in values:
        num_examples, batch_size = 1, values["sampling_prob"]
        check("sampling_prob", batch_size, UNIT)
    else:
        num_examples, batch_size = values["max_examples"], values["expected_batch_size"]
        check("max_examples", num_examples, COUNT)
        if not 0 < batch_size <= num_examples:
            raise ValueError(
                f"expected_batch_size must be above 0 and at most max_examples = {num_examples:g}, got {batch_size:g}"
            )
    if "epochs" in values:
        return batch_size / num_examples, steps_of_epochs(values["epochs"], num_examples, batch_size)
    check("num_steps", values["num_steps"], COUNT)
    return batch_size / num_examples, int(values["num_steps"])


# ---- Tables ----


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
