"""``gdpjax sweep``: every accountant over a grid of hyperparameters, to CSV or Parquet.

Rows are computed in pieces, and each piece is appended to the output before the next one is begun, so that a sweep can
be stopped at any moment and continued with ``--resume``. Bad rows are known before anything is computed; they are
reported and left out. A Parquet file cannot grow, so its rows are kept in a CSV file beside it until all are there.
One process at a time writes an output. A sweep that is resumed trusts the results that its output holds.
"""

import argparse
import contextlib
import functools
import itertools
import json
import math
import pathlib
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from gdpjax._core.arguments import check_target
from gdpjax._core.checks import OPEN_UNIT, POSITIVE, check
from gdpjax._core.figures import MOST_VALUES, values_of
from gdpjax._core.files import FolderIsLocked, FolderLock, write_atomically
from gdpjax._core.types import FAILURE
from gdpjax.accounting import certified, clt_epsilon, clt_mu_poisson, moments_accountant_epsilon
from gdpjax.cli._inputs import (
    NOISE,
    OTHER_NAMES,
    RUN_OPTIONS,
    check_given,
    csv_to_parquet,
    format_csv,
    is_parquet,
    option_names,
    parse_csv,
    read_table,
    run_of,
    text_of,
)
from gdpjax.cli._report import add_json_option, clt_is_reliable

PIECE = 1024
"""Rows computed together: about a second."""
PIECE_WITH_MU = 16
INTERRUPTED = 130
_QUANTITIES = {
    "noise_multiplier": NOISE,
    **RUN_OPTIONS,
    "delta": "the delta of every epsilon, strictly between 0 and 1",
}
"""The columns that a grid may have, apart from labels that are carried along."""
_DOMAINS = {"noise_multiplier": POSITIVE, "delta": OPEN_UNIT}
_WHOLE = ("max_examples", "num_steps")
_RESULTS = {
    "mu_clt": "double",
    "epsilon_clt": "double",
    "clt_reliable": "bool",
    "epsilon_lower": "double",
    "epsilon_upper": "double",
    "epsilon_moments_accountant": "double",
}
_MU_RESULTS = {"mu_upper": "double", "mu_failure": "double"}
_DESCRIPTION = "Every accountant over a grid of DP-SGD hyperparameters (Poisson sampling), to CSV or Parquet."
_EPILOG = """\
values: a comma list of numbers and ranges. start:stop:count is evenly spaced, start:stop:logcount evenly in the
logarithm, both with their ends: --noise-multiplier 0.5:2:16 --num-steps 1000:10000:log4,20000. Ranges of whole
quantities are rounded. The grid is every combination of the values given.

--input: a CSV or Parquet file with a header, any of the quantities above (underscores for dashes) as columns, and one
run a row; options add the quantities that it lacks, in every combination. max_examples and expected_batch_size may also
be called num_examples and batch_size; the output has the names of the file. Other columns are labels and are carried
along. A bad row is reported with its line, left out, and makes the exit status 1; the others are computed.

output: the input columns, sampling_prob, num_steps, and
  mu_clt, epsilon_clt            asymptotic estimates: may understate; not a guarantee
  clt_reliable                   whether epsilon_clt is proved to be within 5% of the truth
  epsilon_lower, epsilon_upper   certified: the true epsilon lies between them
  epsilon_moments_accountant     upper bound (conversion "tight")
  mu_upper, mu_failure           with --mu. certified: mu-GDP except with probability mu_failure
Rows are written as they are computed. After an interruption repeat the command with --resume.

choosing among the runs of a sweep costs privacy, too: each row is the cost of ONE run. To release the best of several
runs on the same data, draw their number at random (gdpjax.accounting.sample_num_runs), run that many rows chosen
uniformly with replacement, release the best and nothing else, and state
gdpjax.accounting.tuning_epsilon (with axis=0, for rows that differ), not the epsilon of the chosen row. See
docs/command_line.md; Papernot and Steinke, arXiv:2110.03620.
"""


def add_parser(commands: Any) -> None:
    """Add ``sweep``."""
    parser = commands.add_parser(
        "sweep",
        help="every accountant over a grid, to CSV or Parquet",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, text in _QUANTITIES.items():
        parser.add_argument(*option_names(name), metavar="VALUES", help=text)
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE", help="rows, .csv or .parquet")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", required=True, help=".csv or .parquet")
    parser.add_argument("--mu", action="store_true", help="also the certified mu, a tenth of a second a row and more")
    parser.add_argument("--resume", action="store_true", help="continue an interrupted sweep, whose rows are trusted")
    add_json_option(parser, "a sentence")
    parser.set_defaults(run=_sweep)


class Grid(NamedTuple):
    """The rows that can be computed.

    Attributes:
        types: Arrow types of the input columns by name, as the file has them, those that were derived last.
        cells: the text of each row in these columns.
        runs: float64[rows, 4], noise_multiplier, sampling_prob, num_steps and delta.
        bad: why rows were left out, by their places.
    """

    types: dict[str, str]
    cells: list[list[str]]
    runs: np.ndarray
    bad: dict[str, str]


def _sweep(arguments: argparse.Namespace) -> int:
    """Compute the grid that the options describe; return the exit status."""
    output, results, piece = arguments.output, _RESULTS, PIECE
    check_target(output)
    if arguments.mu:
        results, piece = _RESULTS | _MU_RESULTS, PIECE_WITH_MU
    work = output.with_name(output.name + ".partial.csv") if is_parquet(output) else output
    grid = _make_grid(arguments)
    for place, reason in grid.bad.items():
        where = f"{arguments.input}, {place}" if arguments.input else place
        print(f"gdpjax sweep: left out: {where}: {reason}", file=sys.stderr)
    if not grid.cells:
        raise ValueError("no row can be computed, so nothing was written")

    types, num_rows = grid.types | results, len(grid.cells)
    with _only_here(output):
        num_kept = _start(output, work, list(types), grid.cells, piece, arguments.resume)
        try:
            for start in range(num_kept, num_rows, piece):
                arguments.progress.note = f"{start} of {num_rows} rows"
                found = evaluate(grid.runs[start : start + piece], arguments.mu)
                given = grid.cells[start : start + piece]
                rows = [cells + result for cells, result in zip(given, found, strict=True)]
                with work.open("a", encoding="utf-8", newline="") as file:
                    file.write(format_csv(rows))
        except KeyboardInterrupt:
            print(f"gdpjax sweep: interrupted; {work} keeps what is done: add --resume to continue", file=sys.stderr)
            return INTERRUPTED
        except OSError as error:
            advice = f"{work} keeps what is done: make room, then add --resume to continue"
            raise OSError(error.errno, f"{error.strerror or error}; {advice}") from error
        if work != output and work.exists():
            csv_to_parquet(work, output, types)
            work.unlink()

    if arguments.json:
        bad_rows = [{"place": place, "reason": reason} for place, reason in grid.bad.items()]
        print(json.dumps({"output": str(output), "rows": num_rows, "rows_kept": num_kept, "bad_rows": bad_rows}))
    else:
        kept_text = f", {num_kept} of them from before" if num_kept else ""
        bad_text = f"; bad rows left out: {len(grid.bad)}" if grid.bad else ""
        print(f"{output}: {num_rows} row{'s' * (num_rows != 1)}{kept_text}{bad_text}")
    return 1 if grid.bad else 0


@contextlib.contextmanager
def _only_here(output: pathlib.Path) -> Iterator[None]:
    """Keep other processes from writing the same output."""
    path = output.with_name(output.name + ".lock")
    try:
        lock = FolderLock(path)
    except FolderIsLocked as holder:
        raise ValueError(f"another process{holder} is writing {output}; wait for it, or end it") from None
    try:
        # A file that another process has removed since keeps nobody out.
        if not lock.is_in_place():
            raise ValueError(f"another process has just written {output}; try again")
        yield
    finally:
        # While it is locked: it might be somebody else's lock later. Windows removes no open file.
        with contextlib.suppress(PermissionError):
            if lock.is_in_place():
                path.unlink()
        lock.close()


def _make_grid(arguments: argparse.Namespace) -> Grid:
    """Return every row of the file (one empty row without a file) with every combination of the options."""
    given = vars(arguments)
    options: dict[str, list[float]] = {}
    for name in _QUANTITIES:
        if given[name] is not None:
            try:
                options[name] = values_of(given[name], whole=name in _WHOLE)
            except ValueError as error:
                raise ValueError(f"{option_names(name)[0]}: {error}") from None
    columns, rows = read_table(arguments.input) if arguments.input else ([], [("", [])])
    found = f"; {arguments.input} has the columns {', '.join(columns)}" if arguments.input else ""
    columns = [*columns, *options]
    names = [OTHER_NAMES.get(column) or column for column in columns]
    derived = [name for name in ("sampling_prob", "num_steps") if name not in names]
    try:
        check_given(names)
        _check_names([*names, *derived])
    except ValueError as error:
        raise ValueError(f"{error}{found}") from None
    size = len(rows) * math.prod(map(len, options.values()))
    if size > MOST_VALUES:
        raise ValueError(f"the grid has {size} rows; at most {MOST_VALUES} are computed in one sweep")

    combinations = [list(map(text_of, some)) for some in itertools.product(*options.values())]
    cells, runs, bad = [], [], {}
    for place, given_cells in rows:
        for number, combination in enumerate(combinations, start=1):
            try:
                values = _values_of_row(names, [*given_cells, *combination])
            except ValueError as error:
                # A bad line is bad with every combination of the options, and is listed once.
                bad[place or f"combination {number}"] = str(error)
                continue
            cells.append([text_of(values[name]) for name in (*names, *derived)])
            runs.append([values[name] for name in ("noise_multiplier", "sampling_prob", "num_steps", "delta")])
    types = {}
    for column, name in zip([*columns, *derived], [*names, *derived], strict=True):
        types[column] = "int64" if name in _WHOLE else "double" if name in _QUANTITIES else "string"
    return Grid(types, cells, np.array(runs, np.float64), bad)


def _check_names(names: list[str]) -> None:
    """Raise ValueError unless the columns, under their usual names and with those that are derived, describe runs."""
    for name in names:
        if names.count(name) > 1 or name in _RESULTS | _MU_RESULTS:
            raise ValueError(f"{name} is there twice, in columns, options or results of the sweep; rename or drop one")
    for name in ("noise_multiplier", "delta"):
        if name not in names:
            raise ValueError(f"give {option_names(name)[0]}, or a column {name}")


def _values_of_row(names: list[str], cells: list[str]) -> dict[str, Any]:
    """Return the quantities of a row as numbers, those derived included, and its labels; ValueError for no run."""
    if len(cells) != len(names):
        raise ValueError(f"has {len(cells)} cells instead of {len(names)}, those of the options included")
    values: dict[str, Any] = dict(zip(names, cells, strict=True))
    for name in _QUANTITIES.keys() & values.keys():
        values[name] = _number(name, values[name])
    sampling_prob, num_steps = _run_of(tuple((name, values[name]) for name in RUN_OPTIONS if name in values))
    return values | {"sampling_prob": sampling_prob, "num_steps": float(num_steps)}


# The cells of a grid repeat themselves.
@functools.lru_cache(maxsize=MOST_VALUES)
def _number(name: str, cell: str) -> float:
    """Return the number in a cell; ValueError unless it is one that the quantity may be."""
    try:
        number = float(cell)
    except ValueError:
        raise ValueError(f"{name} must be a number, got {cell or 'an empty cell'}") from None
    if name in _DOMAINS:
        check(name, number, _DOMAINS[name])
    return number


@functools.lru_cache(maxsize=MOST_VALUES)
def _run_of(quantities: tuple[tuple[str, float], ...]) -> tuple[float, int]:
    """Return `run_of` the quantities."""
    return run_of(dict(quantities))


def _start(
    output: pathlib.Path,
    work: pathlib.Path,
    header: list[str],
    inputs: list[list[str]],
    piece: int,
    resume: bool,
) -> int:
    """Make ``work`` ready to be appended to; return how many rows of an earlier sweep stay.

    They are kept by whole pieces, so that computing continues where it would have.
    """
    # An empty file is what a crash may leave of the beginning.
    found = next((path for path in (work, output) if path.exists() and (path.stat().st_size or not resume)), None)
    if found is None:
        work.write_text(format_csv([header]), encoding="utf-8", newline="")
        return 0
    if not resume:
        raise ValueError(f"{found} exists; continue it with --resume, remove it, or choose another --output")
    if found == work:
        # Without a line that was being written.
        data = work.read_bytes()
        columns, placed = parse_csv(data[: data.rfind(b"\n") + 1], work)
    else:
        columns, placed = read_table(output)
    rows = [cells for _, cells in placed]
    num_kept = len(rows) if len(rows) == len(inputs) else len(rows) // piece * piece
    kept = rows[:num_kept]
    num_given = len(inputs[0])
    is_same = columns == header and [row[:num_given] for row in rows] == inputs[: len(rows)]
    is_whole = all(len(row) == len(header) for row in rows)
    if not (is_same and is_whole) or (found != work and num_kept < len(inputs)):
        raise ValueError(f"{found} is of another grid, or damaged; remove it, or choose another --output")
    if found == work:
        write_atomically(work, format_csv([header, *kept]))
    return num_kept


def evaluate(runs: np.ndarray, with_mu: bool) -> list[list[str]]:
    """Return the results of runs, float64[n, 4] as `Grid.runs`, as text, in the order of the columns.

    With the certified mu and its failure probability if ``with_mu``.
    """
    num_runs = len(runs)
    # The closed forms are compiled once for each shape, so a short piece is filled up with its last run.
    filled = np.pad(runs, [(0, -num_runs % PIECE), (0, 0)], mode="edge").T
    mu_clt = clt_mu_poisson(*filled[:3])[:num_runs]
    epsilon_clt = clt_epsilon(*filled)[:num_runs]
    curve = certified(*runs.T[:3])
    bounds = curve.epsilon(runs.T[3])
    moments = moments_accountant_epsilon(*runs.T)
    columns = [mu_clt, epsilon_clt, clt_is_reliable(bounds, epsilon_clt), bounds.lower, bounds.upper, moments]
    if with_mu:
        columns += [curve.mu(FAILURE).upper, np.full(num_runs, FAILURE)]

    # Rows of text; true and false are written small.
    return [[str(value).lower() for value in values] for values in zip(*(map(np.ndarray.tolist, columns)), strict=True)]
