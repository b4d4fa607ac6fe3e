"""``gdpjax plot``: the trade-off curve of a run, or epsilon against its steps, as a picture."""

import argparse
import json
import pathlib
from typing import Any

import numpy as np

from gdpjax.cli._report import add_json_option, plain
from gdpjax.cli._runs import add_run_options, run_of_options
from gdpjax.plotting import epsilon_curves, plot_epsilon, plot_tradeoff, save_figure, tradeoff_curves
from gdpjax.plotting.style import check_picture

KINDS = (
    (
        "tradeoff",
        "the trade-off curve with f_{epsilon,delta} and G_mu",
        "power against type I error, logarithmic: the tails",
    ),
    ("steps", "epsilon against the number of steps by every accountant", "logarithmic axes"),
)


def add_parser(commands: Any) -> None:
    """Add ``plot`` and its kinds of picture."""
    parser = commands.add_parser("plot", help="a trade-off curve, or epsilon against steps, as PNG, PDF or SVG")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="kind")
    for name, about, log in KINDS:
        kind = kinds.add_parser(name, help=about)
        kind.add_argument("--noise-multiplier", type=float, required=True, help="stddev of the noise / sensitivity")
        add_run_options(kind)
        kind.add_argument("--delta", type=float, required=True)
        kind.add_argument("--output", type=pathlib.Path, required=True, help="a .png, .pdf or .svg file; replaced")
        kind.add_argument("--log", action="store_true", help=log)
        add_json_option(kind, "a sentence, with the numbers of the curves")
    parser.set_defaults(run=_plot)


def _plot(arguments: argparse.Namespace) -> int:
    """Draw a picture, save it, and print where it is or, with --json, the numbers in it."""
    # A name that is not of a picture, or where none can be written, is refused before the work.
    check_picture(arguments.output)
    run = (arguments.noise_multiplier, *run_of_options(arguments), arguments.delta)
    if arguments.kind == "tradeoff":
        curves = tradeoff_curves(*run)
        figure = plot_tradeoff(curves, log=arguments.log)
    else:
        curves = epsilon_curves(*run)
        figure = plot_epsilon(curves, log=arguments.log)
    save_figure(figure, arguments.output)
    print(json.dumps(_as_plain(curves), allow_nan=False) if arguments.json else f"wrote {arguments.output}")
    return 0


def _as_plain(value: Any) -> Any:
    """Return named tuples of arrays as dictionaries of lists."""
    if hasattr(value, "_asdict"):
        return {name: _as_plain(field) for name, field in value._asdict().items()}
    if isinstance(value, np.ndarray):
        return [plain(number) for number in value.tolist()]
    return plain(value)
