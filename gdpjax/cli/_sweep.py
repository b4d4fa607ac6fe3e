"""``gdpjax sweep``: every accountant over a grid of hyperparameters, to CSV or Parquet.

Rows are computed in pieces, and each piece is appended to the output before the next one is waited for, so that a sweep
can be stopped at any moment and continued with ``--resume``. Bad rows are known before anything is computed; they are
reported and left out.
"""

import argparse
import contextlib
import functools
import json
import pathlib
import sys
from typing import Any

import numpy as np

from gdpjax._core.types import FAILURE
from gdpjax.accounting import certified, clt_epsilon, clt_mu_poisson, moments_accountant_epsilon
from gdpjax.cli._devices import map_over_devices
from gdpjax.cli._grid import QUANTITIES, WHOLE, Grid, make_grid, parse_values, quantity_of
from gdpjax.cli._output import Output, append, finish, make_output, start
from gdpjax.cli._progress import Progress
from gdpjax.cli._report import add_json_option, clt_is_reliable
from gdpjax.cli._runs import RUN_OPTIONS, spellings
from gdpjax.cli._tables import is_parquet

PIECE = 64
"""Rows computed together: a quarter of a second, and the size the moments accountant is compiled for."""
PIECE_WITH_MU = 4
INTERRUPTED = 130
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
Rows are written as they are computed. After an interruption repeat the command with --resume. When there are several
devices, all of them work.

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
    helps = {
        "noise_multiplier": "stddev of the noise / sensitivity",
        **RUN_OPTIONS,
        "delta": "the delta of every epsilon, strictly between 0 and 1",
    }
    for name in QUANTITIES:
        values = functools.partial(parse_values, name)
        parser.add_argument(*spellings(name), dest=name, type=values, metavar="VALUES", help=helps[name])
    parser.add_argument("--input", type=pathlib.Path, metavar="FILE", help="rows, .csv or .parquet")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", required=True, help=".csv or .parquet")
    parser.add_argument("--mu", action="store_true", help="also the certified mu, a tenth of a second a row and more")
    parser.add_argument("--resume", action="store_true", help="continue the output of an interrupted sweep")
    add_json_option(parser, "a sentence")
    parser.set_defaults(run=_sweep)


def _sweep(arguments: argparse.Namespace) -> int:
    """Compute the grid that the options describe; return the exit status."""
    results = dict(_RESULTS)
    piece = PIECE
    if arguments.mu:
        results.update(_MU_RESULTS)
        piece = PIECE_WITH_MU

    # An output of another kind is refused before the grid is read.
    is_parquet(arguments.output)
    grid = make_grid(arguments.input, _given_quantities(arguments))
    for row in grid.bad:
        place = f"{arguments.input}, {row.place}" if arguments.input else row.place
        print(f"gdpjax sweep: left out: {place}: {row.reason}", file=sys.stderr)
    if not grid.cells:
        raise ValueError("no row can be computed, so nothing was written")

    types = _input_types(grid.columns, results)
    output = make_output(arguments.output, types | results)
    num_kept = start(output, grid.cells, piece, arguments.resume)
    try:
        _compute(output, grid, num_kept, piece)
    except KeyboardInterrupt:
        print(f"gdpjax sweep: interrupted; {output.work} keeps what is done: add --resume to go on", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        advice = f"{output.work} keeps what is done: make room, then add --resume to go on"
        raise OSError(error.errno, f"{error.strerror or error}; {advice}") from error
    finish(output)
    _print_summary(arguments, grid, num_kept)
    return 1 if grid.bad else 0


def _given_quantities(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Return the values of the quantities that the options give."""
    given = {}
    for name in QUANTITIES:
        values = getattr(arguments, name)
        if values is not None:
            given[name] = values
    return given


def _input_types(columns: list[str], results: dict[str, str]) -> dict[str, str]:
    """Return the Arrow types of the input columns; ValueError where one has the name of a result."""
    types = {}
    for name in columns:
        if name in results:
            raise ValueError(f"the input has a column {name}, which is a result of the sweep; rename or remove it")
        quantity = quantity_of(name)
        if quantity in WHOLE:
            types[name] = "int64"
        elif quantity in QUANTITIES:
            types[name] = "double"
        else:
            types[name] = "string"
    return types


def _compute(output: Output, grid: Grid, num_kept: int, piece: int) -> None:
    """Compute the rows from ``num_kept`` on, and append each piece to the output when it is done."""
    num_rows = len(grid.cells)
    with_mu = "mu_upper" in output.types
    starts = range(num_kept, num_rows, piece)

    def evaluate_piece(first: int) -> list[list[str]]:
        return evaluate(grid.runs[first : first + piece], with_mu)

    pieces = map_over_devices(evaluate_piece, starts)
    with contextlib.closing(pieces), Progress(sys.stderr, num_rows, num_kept) as progress:
        for first, results in zip(starts, pieces, strict=True):
            inputs = grid.cells[first : first + piece]
            rows = [cells + result for cells, result in zip(inputs, results, strict=True)]
            append(output, rows)
            progress.advance(len(rows))


def evaluate(runs: np.ndarray, with_mu: bool) -> list[list[str]]:
    """Return the results of at most `PIECE` runs as text, in the order of the columns.

    Args:
        runs: float64[n, 4], as `Grid.runs`.
        with_mu: whether to add the certified mu and its failure probability.
    """
    num_runs = len(runs)

    # These are compiled once for each shape, so a short piece is filled up with its last run.
    filled = np.pad(runs, [(0, PIECE - num_runs), (0, 0)], mode="edge")
    noise_multiplier, sampling_prob, num_steps, delta = filled.T
    mu_clt = clt_mu_poisson(noise_multiplier, sampling_prob, num_steps)[:num_runs]
    epsilon_clt = clt_epsilon(noise_multiplier, sampling_prob, num_steps, delta)[:num_runs]
    moments = moments_accountant_epsilon(noise_multiplier, sampling_prob, num_steps, delta)[:num_runs]

    noise_multiplier, sampling_prob, num_steps, delta = runs.T
    curve = certified(noise_multiplier, sampling_prob, num_steps)
    bounds = curve.epsilon(delta)
    is_reliable = clt_is_reliable(bounds, epsilon_clt)
    columns = [mu_clt, epsilon_clt, is_reliable, bounds.lower, bounds.upper, moments]
    if with_mu:
        columns.append(curve.mu(FAILURE).upper)
        columns.append(np.full(num_runs, FAILURE))

    # Rows of text; true and false are written small.
    rows = []
    for values in zip(*(column.tolist() for column in columns), strict=True):
        rows.append([str(value).lower() for value in values])
    return rows


def _print_summary(arguments: argparse.Namespace, grid: Grid, num_kept: int) -> None:
    """Print how many rows there are, or with --json an object that names the bad ones."""
    num_rows = len(grid.cells)
    num_bad = len(grid.bad)
    if arguments.json:
        summary = {
            "output": str(arguments.output),
            "rows": num_rows,
            "rows_kept": num_kept,
            "bad_rows": [row._asdict() for row in grid.bad],
        }
        print(json.dumps(summary))
        return
    kept_text = f", {num_kept} of them from before" if num_kept else ""
    bad_text = f"; {_counted(num_bad, 'bad row')} left out" if num_bad else ""
    print(f"{arguments.output}: {_counted(num_rows, 'row')}{kept_text}{bad_text}")


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural where it is not one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
