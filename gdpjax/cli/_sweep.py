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
from gdpjax.accounting._reliability import proves_reliable
from gdpjax.cli._devices import map_over_devices
from gdpjax.cli._grid import QUANTITIES, WHOLE, Grid, make_grid, parse_values
from gdpjax.cli._output import Output, append, finish, make_output, start
from gdpjax.cli._progress import Progress
from gdpjax.cli._report import add_json_option
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
run a row; options add the quantities that it lacks, in every combination. The plan's names of columns, max_examples and
expected_batch_size, are written as num_examples and batch_size. Other columns are labels and are carried along. A bad
row is reported with its line, left out, and makes the exit status 1; the others are computed.

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
gdpjax.accounting.tuning_epsilon (or tuning_rdp, for rows that differ), not the epsilon of the chosen row. See
docs/sweeps.md; Papernot and Steinke, arXiv:2110.03620.
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
    results = _RESULTS | (_MU_RESULTS if arguments.mu else {})
    piece = PIECE_WITH_MU if arguments.mu else PIECE
    is_parquet(arguments.output)  # refused before the grid is read
    options = {name: values for name in QUANTITIES if (values := getattr(arguments, name)) is not None}
    grid = make_grid(arguments.input, options)
    for row in grid.bad:
        place = f"{arguments.input}, {row.place}" if arguments.input else row.place
        print(f"gdpjax sweep: left out: {place}: {row.reason}", file=sys.stderr)
    if not grid.cells:
        raise ValueError("no row can be computed, so nothing was written")
    output = make_output(arguments.output, _input_types(grid.columns, results) | results)
    kept = start(output, grid.cells, piece, arguments.resume)
    try:
        _compute(output, grid, kept, piece)
    except KeyboardInterrupt:
        print(f"gdpjax sweep: interrupted; {output.work} keeps what is done: add --resume to go on", file=sys.stderr)
        return INTERRUPTED
    except OSError as error:
        kept_rows = f"{output.work} keeps what is done: make room, then add --resume to go on"
        raise OSError(error.errno, f"{error.strerror or error}; {kept_rows}") from error
    finish(output)
    _print_summary(arguments, grid, kept)
    return 1 if grid.bad else 0


def _input_types(columns: list[str], results: dict[str, str]) -> dict[str, str]:
    for name in columns:
        if name in results:
            raise ValueError(f"the input has a column {name}, which is a result of the sweep; rename or remove it")
    return {name: "int64" if name in WHOLE else "double" if name in QUANTITIES else "string" for name in columns}


def _compute(output: Output, grid: Grid, kept: int, piece: int) -> None:
    total = len(grid.cells)
    starts = range(kept, total, piece)
    with_mu = "mu_upper" in output.types
    pieces = map_over_devices(lambda first: evaluate(grid.runs[first : first + piece], with_mu), starts)
    with contextlib.closing(pieces), Progress(sys.stderr, total, kept) as progress:
        for first, results in zip(starts, pieces, strict=True):
            append(output, [grid.cells[first + i] + result for i, result in enumerate(results)])
            progress.advance(len(results))


def evaluate(runs: np.ndarray, with_mu: bool) -> list[list[str]]:
    """The results of at most `PIECE` runs, [n, 4] as `Grid.runs`, as text in the order of the columns."""
    count = len(runs)
    noise, prob, steps, delta = np.pad(runs, [(0, PIECE - count), (0, 0)], mode="edge").T  # one shape, one compilation
    mu, clt = clt_mu_poisson(noise, prob, steps), clt_epsilon(noise, prob, steps, delta)[:count]
    moments = moments_accountant_epsilon(noise, prob, steps, delta)
    noise, prob, steps, delta = runs.T
    curve = certified(noise, prob, steps)
    bounds = curve.epsilon(delta)
    columns = [mu, clt, proves_reliable(bounds, clt), *bounds, moments]
    if with_mu:
        columns += [curve.mu(FAILURE).upper, np.full(count, FAILURE)]
    rows = zip(*(column[:count].tolist() for column in columns), strict=True)
    return [[str(value).lower() for value in row] for row in rows]


def _print_summary(arguments: argparse.Namespace, grid: Grid, kept: int) -> None:
    rows, bad = len(grid.cells), len(grid.bad)
    if arguments.json:
        left_out = [row._asdict() for row in grid.bad]
        print(json.dumps({"output": str(arguments.output), "rows": rows, "rows_kept": kept, "bad_rows": left_out}))
    else:
        kept_text = f", {kept} of them from before" if kept else ""
        bad_text = f"; {bad} bad row{'s' * (bad > 1)} left out" if bad else ""
        print(f"{arguments.output}: {rows} row{'s' * (rows > 1)}{kept_text}{bad_text}")
