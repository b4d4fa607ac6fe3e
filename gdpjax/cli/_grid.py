"""The grid of a sweep: ranges on the command line, a file, or a file combined with ranges."""

import argparse
import itertools
import math
import pathlib
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from gdpjax._core.checks import COUNT, NONNEGATIVE, POSITIVE, UNIT, check
from gdpjax._core.shown import shown
from gdpjax.accounting._gdp import DELTA
from gdpjax.cli._runs import PLAN_NAMES, RUN_OPTIONS, option_of, resolve_run
from gdpjax.cli._tables import BadRow, Cells, Table, listed, read_table

QUANTITIES = ("noise_multiplier", *RUN_OPTIONS, "delta")
"""The columns that a grid may have, apart from labels that are carried along."""
_RUN_COLUMNS = ("noise_multiplier", "sampling_prob", "num_steps", "delta")
_RESOLVED = ("sampling_prob", "num_steps")
"""The quantities that every row gets, whether they are given or derived."""
_QUANTITY_OF_PLAN_NAME = {plan_name: name for name, plan_name in PLAN_NAMES.items()}


def quantity_of(column: str) -> str:
    """Return the quantity that a column holds, which may have the name that `gdpjax.make_plan` gives it."""
    return _QUANTITY_OF_PLAN_NAME.get(column, column)


WHOLE = ("num_examples", "num_steps")
MOST_ROWS = 1_000_000
DOMAINS = {
    "noise_multiplier": POSITIVE,
    "num_examples": COUNT,
    "batch_size": POSITIVE,
    "sampling_prob": UNIT,
    "epochs": NONNEGATIVE,
    "num_steps": COUNT,
    "delta": DELTA,
}


class Grid(NamedTuple):
    """The rows that can be computed.

    Attributes:
        columns: names of the input columns, as the file has them, those that were derived last.
        cells: the text of each row in these columns.
        runs: float64 [n, 4]: noise_multiplier, sampling_prob, num_steps, delta.
        bad: the rows that were left out.
    """

    columns: list[str]
    cells: list[list[str]]
    runs: np.ndarray
    bad: list[BadRow]


def parse_values(name: str, text: str) -> list[float]:
    """Return the values of a quantity in "a,b,start:stop:count,start:stop:logcount", in that order, each once.

    >>> parse_values("noise_multiplier", "0.5,1:2:3,1:100:log3")
    [0.5, 1.0, 1.5, 2.0, 10.0, 100.0]
    """
    try:
        ranges = [_parse_range(piece.strip()) for piece in text.split(",")]
        num_values = sum(values.count for values in ranges)
        # Refused before they take any memory.
        if num_values > MOST_ROWS:
            raise ValueError(
                f"{num_values} values; a range has 2 to {MOST_ROWS} values, and so have all of them together"
            )
    except ValueError as error:
        expected = "numbers, start:stop:count or start:stop:logcount, separated by commas"
        raise argparse.ArgumentTypeError(f"expected {expected}; got {shown(text)} ({error})") from None

    values = []
    for value_range in ranges:
        values.extend(value_range.values(whole=name in WHOLE))
    try:
        check(PLAN_NAMES.get(name, name), values, DOMAINS[name])
    except ValueError as error:
        # The index is that of this list, which nobody wrote.
        message = str(error)
        without_index = message.rpartition(" at index")[0]
        raise argparse.ArgumentTypeError(without_index or message) from None
    return list(dict.fromkeys(values))


class _Range(NamedTuple):
    """``count`` numbers from ``low`` to ``high``, evenly spaced or evenly in the logarithm."""

    low: float
    high: float
    count: int
    logarithmic: bool

    def values(self, whole: bool) -> list[float]:
        """Return the numbers, rounded to whole ones if they must be."""
        if self.count == 1:
            return [self.low]
        space = np.geomspace if self.logarithmic else np.linspace
        spaced = space(self.low, self.high, self.count)
        if whole:
            return [float(round(value)) for value in spaced]
        # 12 digits are more than anybody means, and 0.3 reads better than 0.30000000000000004
        return [float(f"{value:.12g}") for value in spaced]


def _parse_range(piece: str) -> _Range:
    """Return the range in a number, "start:stop:count" or "start:stop:logcount"."""
    parts = piece.split(":")
    if len(parts) == 1:
        value = _number(piece)
        return _Range(value, value, 1, False)
    if len(parts) != 3:
        raise ValueError("a range is start:stop:count")
    low = _number(parts[0])
    high = _number(parts[1])
    logarithmic = parts[2].startswith("log")
    digits = parts[2].removeprefix("log")
    if not digits.isdecimal():
        raise ValueError(f"{shown(parts[2])} is not a count: a whole number, or log and a whole number")
    # More digits than that are too many values, and int() has a limit of its own.
    count = int(digits) if len(digits) < 20 else MOST_ROWS + 1
    if not 2 <= count <= MOST_ROWS:
        raise ValueError(f"a range has 2 to {MOST_ROWS} values")
    if not (abs(low) < math.inf and abs(high) < math.inf and abs(high - low) < math.inf):
        raise ValueError("a range has finite ends and a finite width")
    if logarithmic and not (low > 0 and high > 0):
        raise ValueError("a log range has ends above 0")
    return _Range(low, high, count, logarithmic)


def _number(text: str) -> float:
    """Return the number that a text is; ValueError where it is none."""
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is not a number") from None


def make_grid(path: pathlib.Path | None, options: dict[str, list[float]]) -> Grid:
    """Return every row of the file (one empty row without a file) with every combination of ``options``."""
    table = read_table(path) if path else Table([], [Cells("", [])], [])
    columns = [*table.columns, *options]
    spell = _spelling(columns, path)
    _check_columns(columns, str(path) if path else None, spell)
    size = len(table.rows) * math.prod(len(values) for values in options.values())
    if size > MOST_ROWS:
        raise ValueError(f"the grid has {size} rows; at most {MOST_ROWS} are computed in one sweep")
    derived = [name for name in _RESOLVED if name not in columns]
    combinations = _combinations(options)

    cells = []
    runs = []
    bad_rows = list(table.bad)
    for row in table.rows:
        for number, combination in enumerate(combinations, start=1):
            given = [*row.cells, *combination]
            try:
                values = _resolve(columns, given, spell)
            except ValueError as error:
                place = row.place if path else f"combination {number}"
                bad_rows.append(BadRow(place, str(error)))
                continue
            cells.append(_row_cells(columns, given, derived, values))
            runs.append([values[name] for name in _RUN_COLUMNS])

    # A bad line is bad with every combination of the options, and is listed once.
    bad_rows = list(dict.fromkeys(bad_rows))
    bad_rows.sort(key=lambda row: int(row.place.split()[1]))
    return Grid(
        columns=[*columns, *derived],
        cells=cells,
        runs=np.array(runs, np.float64).reshape(-1, len(_RUN_COLUMNS)),
        bad=bad_rows,
    )


def _spelling(columns: Sequence[str], path: pathlib.Path | None) -> Callable[[str], str]:
    """Return how messages name a quantity: as its column does where there is a file, else as its option."""
    if path is None:
        return option_of
    column_of = {quantity_of(column): column for column in columns}

    def spell(name: str) -> str:
        return column_of.get(name, PLAN_NAMES.get(name, name))

    return spell


def _combinations(options: dict[str, list[float]]) -> list[tuple[str, ...]]:
    """Return the cells of every combination of the options' values."""
    cells_of_options = []
    for name, values in options.items():
        cells_of_options.append([_format(name, value) for value in values])
    return list(itertools.product(*cells_of_options))


def _row_cells(columns: list[str], given: list[str], derived: list[str], values: dict[str, float]) -> list[str]:
    """Return the cells of a row that was resolved: quantities as numbers, labels as they were."""
    cells = []
    for column, cell in zip(columns, given, strict=True):
        name = quantity_of(column)
        cells.append(_format(name, values[name]) if name in values else cell)
    for name in derived:
        cells.append(_format(name, values[name]))
    return cells


def _resolve(columns: Sequence[str], cells: Sequence[str], spell: Callable[[str], str]) -> dict[str, float]:
    """Return all the quantities of a row, given and derived; ValueError where it describes no run."""
    values: dict[str, float] = {}
    for column, cell in zip(columns, cells, strict=True):
        name = quantity_of(column)
        if name not in QUANTITIES:
            continue
        try:
            values[name] = float(cell)
        except ValueError:
            got = repr(cell) if cell else "an empty cell"
            raise ValueError(f"{spell(name)} must be a number, got {got}") from None
        check(spell(name), values[name], DOMAINS[name])
    sampling_prob, num_steps = resolve_run(values, spell)
    values["sampling_prob"] = sampling_prob
    values["num_steps"] = num_steps
    return values


def _check_columns(columns: Sequence[str], path: str | None, spell: Callable[[str], str]) -> None:
    """Raise ValueError unless the columns describe runs; ``path`` is the file that they are from, if any."""

    def refuse(problem: str) -> NoReturn:
        where = f"the columns of {path} and the options" if path else "the options"
        got = columns if path else [option_of(name) for name in columns]
        raise ValueError(f"{where} {problem}; got {listed(got)}")

    quantities = [quantity_of(column) for column in columns]
    for name in quantities:
        if quantities.count(name) > 1:
            refuse(f"give {spell(name)} twice")
    for name in ("noise_multiplier", "delta"):
        if name not in quantities:
            refuse(f"must give {spell(name)}")

    # How often the data are sampled: by one probability, or by two sizes.
    num_sizes = ("num_examples" in quantities) + ("batch_size" in quantities)
    num_expected = 0 if "sampling_prob" in quantities else 2
    if num_sizes != num_expected:
        sizes = f"both {spell('num_examples')} and {spell('batch_size')}"
        refuse(f"must give either {spell('sampling_prob')}, or {sizes}")
    if ("num_steps" in quantities) == ("epochs" in quantities):
        refuse(f"must give either {spell('num_steps')} or {spell('epochs')}")


def _format(name: str, value: float) -> str:
    """Return the shortest text that reads back as the same number."""
    may_be_whole = name in WHOLE or name in ("batch_size", "epochs")
    if may_be_whole and abs(value) < 2**53 and value == int(value):
        return str(int(value))
    return repr(float(value))
