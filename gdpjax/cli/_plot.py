"""``gdpjax plot``: the trade-off curve of a run, or epsilon against its steps, as a picture."""

import argparse
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from gdpjax.cli._report import add_json_option, plain
from gdpjax.cli._runs import add_run_options, run_of_options
from gdpjax.plotting import (
    epsilon_curves,
    plot_epsilon,
    plot_tradeoff,
    save_figure,
    tradeoff_curves,
)
from gdpjax.plotting._draw import check_path


def add_parser(commands: Any) -> None:
    """Add ``plot`` and its kinds of picture."""
    parser = commands.add_parser("plot", help="a trade-off curve, or epsilon against steps, as PNG, PDF or SVG")
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="kind")
    tradeoff = kinds.add_parser("tradeoff", help="the trade-off curve with f_{epsilon,delta} and G_mu")
    steps = kinds.add_parser("steps", help="epsilon against the number of steps by every accountant")
    for kind in (tradeoff, steps):
        kind.add_argument("--noise-multiplier", type=float, required=True, help="stddev of the noise / sensitivity")
        add_run_options(kind)
        kind.add_argument("--delta", type=float, required=True)
        kind.add_argument("--output", type=pathlib.Path, required=True, help="a .png, .pdf or .svg file; replaced")
        add_json_option(kind, "a sentence, with the numbers of the curves")
    tradeoff.add_argument("--log", action="store_true", help="power against type I error, logarithmic: the tails")
    steps.add_argument("--log", action="store_true", help="logarithmic axes")
    tradeoff.set_defaults(run=functools.partial(_plot, _tradeoff))
    steps.set_defaults(run=functools.partial(_plot, _steps))


def _tradeoff(arguments: argparse.Namespace, run: tuple[float, float, int]) -> tuple[Any, Any]:
    """Return the trade-off curves of the run and their picture."""
    curves = tradeoff_curves(*run, arguments.delta)
    return curves, plot_tradeoff(curves, log=arguments.log)


def _steps(arguments: argparse.Namespace, run: tuple[float, float, int]) -> tuple[Any, Any]:
    """Return epsilon against the steps of the run, by every accountant, and the picture of it."""
    curves = epsilon_curves(*run, arguments.delta, log=arguments.log)
    return curves, plot_epsilon(curves, log=arguments.log)


def _plot(draw: Callable[..., tuple[Any, Any]], arguments: argparse.Namespace) -> int:
    """Draw a picture, save it, and print where it is or, with --json, the numbers in it."""
    # A name that is not of a picture, or where none can be written, is refused before the work.
    check_path(arguments.output)
    sampling_prob, num_steps = run_of_options(arguments)
    run = (arguments.noise_multiplier, sampling_prob, num_steps)
    curves, figure = draw(arguments, run)
    save_figure(figure, arguments.output)
    if arguments.json:
        print(json.dumps(_as_plain(curves), allow_nan=False))
    else:
        print(f"wrote {arguments.output}")
    return 0


def _as_plain(value: Any) -> Any:
    """Return named tuples of arrays as dictionaries of lists."""
    if hasattr(value, "_asdict"):
        return {name: _as_plain(field) for name, field in value._asdict().items()}
    if isinstance(value, np.ndarray):
        return [plain(number) for number in value.tolist()]
    return plain(value)
