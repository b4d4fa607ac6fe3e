"""``gdpjax report``, the report card of runs, and ``gdpjax plot``, the curves of a run as a picture."""

import argparse
import json
import pathlib
from typing import Any

from gdpjax._core.arguments import check_target
from gdpjax._core.figures import plain
from gdpjax.cli._inputs import add_run_options, run_of_options
from gdpjax.cli._report import add_json_option
from gdpjax.plotting import epsilon_curves, plot_epsilon, plot_tradeoff, save_figure, tradeoff_curves
from gdpjax.plotting.style import check_picture
from gdpjax.reporting import report

FORMATS = ("text", "markdown", "latex", "json", "html")
_SUFFIXES = {".md": "markdown", ".tex": "latex", ".json": "json", ".html": "html", ".htm": "html"}
KINDS = (
    (
        "tradeoff",
        "the trade-off curve with f_{epsilon,delta} and G_mu",
        "power against type I error, logarithmic: the tails",
    ),
    ("steps", "epsilon against the number of steps by every accountant", "logarithmic axes"),
)


def add_parser(commands: Any) -> None:
    """Add ``report``, and ``plot`` with its kinds of picture."""
    parser = commands.add_parser("report", help="the report card of runs: epsilon, mu, regret, attacks")
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN_OR_NUMBERS",
        help="a run's folder, the JSON file of a plan or ledger, or noise,probability,steps such as 1.3,0.004,3516",
    )
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--format", choices=FORMATS, help="by default that of --output's name, or text")
    forms.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")
    parser.add_argument("--output", type=pathlib.Path, help="write there; an existing file is replaced")
    parser.add_argument("--delta", type=float, action="append", help="where epsilon is asked for; may be repeated")
    parser.add_argument("--name", action="append", help="what a run is called; once for each run")
    parser.add_argument("--unit", help="what one row is, such as patient, for runs that do not say it")
    parser.set_defaults(run=_report)

    plotter = commands.add_parser("plot", help="a trade-off curve, or epsilon against steps, as PNG, PDF or SVG")
    kinds = plotter.add_subparsers(dest="kind", required=True, metavar="kind")
    for name, about, log in KINDS:
        kind = kinds.add_parser(name, help=about)
        add_run_options(kind)
        kind.add_argument("--output", type=pathlib.Path, required=True, help="a .png, .pdf or .svg file; replaced")
        kind.add_argument("--log", action="store_true", help=log)
        add_json_option(kind, "a sentence, with the numbers of the curves")
    plotter.set_defaults(run=_plot)


def _report(arguments: argparse.Namespace) -> int:
    """Print the report card of the runs, or write it into a file."""
    output, form = arguments.output, arguments.format
    if output is not None:
        check_target(output)
        form = form or _SUFFIXES.get(output.suffix.lower())
    runs = [_run(text) for text in arguments.runs]
    card = report(*runs, deltas=arguments.delta, names=arguments.name, unit=arguments.unit)
    text = getattr(card, f"to_{form or 'text'}")()
    if output is None:
        print(text)
        return 0
    output.write_text(text + "\n", encoding="utf-8")
    print(json.dumps({"output": str(output)}) if arguments.format == "json" else f"wrote {output}")
    return 0


def _run(text: str) -> Any:
    """A path, or three numbers with commas between them; a file of that name comes first."""
    path = pathlib.Path(text)
    if (path / "sweep.json").is_file():
        raise ValueError(f"{path} is a sweep: gdpjax sweep-report {path}")
    if path.exists():
        return path
    try:
        numbers = [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        return path
    if len(numbers) != 3:
        raise ValueError(f"three numbers are needed, noise,probability,steps such as 1.3,0.004,3516; got {text!r}")
    return tuple(numbers)


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
    print(json.dumps(plain(curves), allow_nan=False) if arguments.json else f"wrote {arguments.output}")
    return 0
