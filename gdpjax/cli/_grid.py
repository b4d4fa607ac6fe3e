"""The grid of a sweep: ranges on the command line, a file, or a file combined with ranges."""

import argparse
import itertools
import math
import pathlib
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import numpy as np

from gdpjax._core.checks import COUNT, NONNEGATIVE, POSITIVE, UNIT, check
from gdpjax._core.shown import shown
from gdpjax.accounting._gdp import DELTA
from gdpjax.cli._runs import PLAN_NAMES, RUN_OPTIONS, resolve_run
from gdpjax.cli._tables import BadRow, Cells, Table, listed, read_table

QUANTITIES = ("noise_multiplier", *RUN_OPTIONS, "delta")
"""The columns that a grid may have, apart from labels that are carried along."""
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

    Fields:
        columns: names of the input columns, those that were derived last.
        cells: the text of each row in these columns.
        runs: float64 [n, 4]: noise_multiplier, sampling_prob, num_steps, delta.
        bad: the rows that were left out.
    """

    columns: list[str]
    cells: list[list[str]]
    runs: np.ndarray
    bad: list[BadRow]


def parse_values(name: str, text: str) -> list[float]:
    """The values of a quantity in "a,b,start:stop:count,start:stop:logcount", in that order, without repetitions.

    >>> parse_values("noise_multiplier", "0.5,1:2:3,1:100:log3")
    [0.5, 1.0, 1.5, 2.0, 10.0, 100.0]
    """
    try:
        ranges = [_parse_piece(piece.strip()) for piece in text.split(",")]
        size = sum(one.count for one in ranges)
        if size > MOST_ROWS:  # before they take any memory
            raise ValueError(f"{size} values; a range has 2 to {MOST_ROWS} values, and so have all of them together")
    except ValueError as error:
        expected = "numbers, start:stop:count or start:stop:logcount, separated by commas"
        raise argparse.ArgumentTypeError(f"expected {expected}; got {shown(text)} ({error})") from None
    values = [value for one in ranges for value in one.values(name in WHOLE)]
    try:
        check(name, values, DOMAINS[name])
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error).rpartition(" at index")[0] or str(error)) from None
    return list(dict.fromkeys(values))


class _Range(NamedTuple):
    """``count`` numbers from ``low`` to ``high``, evenly spaced or evenly in the logarithm."""

    low: float
    high: float
    count: int
    logarithmic: bool

    def values(self, whole: bool) -> list[float]:
        if self.count == 1:
            return [self.low]
        spaced = (np.geomspace if self.logarithmic else np.linspace)(self.low, self.high, self.count)
        # 12 digits are more than anybody means, and 0.3 reads better than 0.30000000000000004
        return [float(round(value)) if whole else float(f"{value:.12g}") for value in spaced]


def _parse_piece(piece: str) -> _Range:
    parts = piece.split(":")
    if len(parts) == 1:
        value = _number(piece)
        return _Range(value, value, 1, False)
    if len(parts) != 3:
        raise ValueError("a range is start:stop:count")
    low, high, count = _number(parts[0]), _number(parts[1]), parts[2].removeprefix("log")
    logarithmic = parts[2].startswith("log")
    if not count.isdecimal():
        raise ValueError(f"{shown(parts[2])} is not a count: a whole number, or log and a whole number")
    # More digits than that are too many values, and int() has a limit of its own.
    number = int(count) if len(count) < 20 else MOST_ROWS + 1
    if not 2 <= number <= MOST_ROWS:
        raise ValueError(f"a range has 2 to {MOST_ROWS} values")
    if not (abs(low) < math.inf and abs(high) < math.inf):
        raise ValueError("a range has finite ends")
    if logarithmic and not (low > 0 and high > 0):
        raise ValueError("a log range has ends above 0")
    return _Range(low, high, number, logarithmic)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{shown(text)} is not a number") from None


def make_grid(path: pathlib.Path | None, options: dict[str, list[float]]) -> Grid:
    """Every row of the file (one empty row without a file) with every combination of ``options``."""
    table = read_table(path) if path else Table([], [Cells("", [])], [])
    of_plans = {plan: name for name, plan in PLAN_NAMES.items()}
    columns = [*(of_plans.get(column, column) for column in table.columns), *options]
    _check_columns(columns, str(path) if path else None)
    size = len(table.rows) * math.prod(len(values) for values in options.values())
    if size > MOST_ROWS:
        raise ValueError(f"the grid has {size} rows; at most {MOST_ROWS} are computed in one sweep")
    derived = [name for name in ("sampling_prob", "num_steps") if name not in columns]
    bad, cells, runs = list(table.bad), [], []
    texts = [[_format(name, value) for value in values] for name, values in options.items()]
    combinations = [list(combination) for combination in itertools.product(*texts)]
    for row, (number, more) in itertools.product(table.rows, enumerate(combinations, start=1)):
        given = [*row.cells, *more]
        try:
            values = _resolve(columns, given)
        except ValueError as error:
            bad.append(BadRow(row.place if path else f"combination {number}", str(error)))
            continue
        text = [
            _format(name, values[name]) if name in values else cell for name, cell in zip(columns, given, strict=True)
        ]
        cells.append(text + [_format(name, values[name]) for name in derived])
        runs.append([values[name] for name in ("noise_multiplier", "sampling_prob", "num_steps", "delta")])
    once = list(dict.fromkeys(bad))  # a bad line is bad with every combination of the options
    once.sort(key=lambda row: int(row.place.split()[1]))
    return Grid([*columns, *derived], cells, np.array(runs, np.float64).reshape(-1, 4), once)


def _resolve(columns: Sequence[str], cells: Sequence[str]) -> dict[str, float]:
    """All the quantities of a row, given and derived; ValueError where it describes no run."""
    values: dict[str, float] = {}
    for name, cell in zip(columns, cells, strict=True):
        if name in QUANTITIES:
            try:
                values[name] = float(cell)
            except ValueError:
                got = repr(cell) if cell else "an empty cell"
                raise ValueError(f"{name} must be a number, got {got}") from None
            check(name, values[name], DOMAINS[name])
    values["sampling_prob"], values["num_steps"] = resolve_run(values)
    return values


def _check_columns(columns: Sequence[str], path: str | None) -> None:
    def fail(problem: str) -> NoReturn:
        where = f"the columns of {path} and the options" if path else "the options"
        raise ValueError(f"{where} {problem}; got {listed(columns)}")

    given = set(columns)
    for name in columns:
        if columns.count(name) > 1:
            fail(f"give {name} twice")
    for name in ("noise_multiplier", "delta"):
        if name not in given:
            fail(f"must give {name}")
    pair = {"num_examples", "batch_size"}
    if (given & pair != pair) if "sampling_prob" not in given else (given & pair):
        fail("must give either sampling_prob, or both num_examples and batch_size")
    if ("num_steps" in given) == ("epochs" in given):
        fail("must give either num_steps or epochs")


def _format(name: str, value: float) -> str:
    """The shortest text that reads back as the same number."""
    whole = name in WHOLE or name in ("batch_size", "epochs")
    return str(int(value)) if whole and abs(value) < 2**53 and value == int(value) else repr(float(value))
