"""``gdpjax report``: the report card of runs, as text, Markdown, LaTeX, JSON or one HTML page."""

import argparse
import json
import pathlib
from typing import Any

from gdpjax._core.arguments import check_target
from gdpjax.cli._report import add_cache_option
from gdpjax.reporting import report

FORMATS = ("text", "markdown", "latex", "json", "html")
_SUFFIXES = {".md": "markdown", ".tex": "latex", ".json": "json", ".html": "html", ".htm": "html"}


def add_parser(commands: Any) -> None:
    """Add ``report``."""
    parser = commands.add_parser("report", help="the report card of runs: epsilon, mu, regret, attacks")
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN_OR_NUMBERS",
        help="a run's folder, the JSON file of a plan or ledger, or noise,probability,steps such as 1.3,0.004,3516",
    )
    parser.add_argument("--format", choices=FORMATS, help="by default that of --output's name, or text")
    parser.add_argument("--output", type=pathlib.Path, help="write there; an existing file is replaced")
    parser.add_argument("--delta", type=float, action="append", help="where epsilon is asked for; may be repeated")
    parser.add_argument("--name", action="append", help="what a run is called; once for each run")
    parser.add_argument("--unit", help="what one row is, such as patient, for runs that do not say it")
    parser.add_argument("--json", action="store_true", help="the same as --format json")
    add_cache_option(parser)
    parser.set_defaults(run=_report)


def _report(arguments: argparse.Namespace) -> int:
    form = _form(arguments)
    if arguments.output is not None:
        check_target(arguments.output)
    runs = [_run(text) for text in arguments.runs]
    card = report(*runs, deltas=arguments.delta or None, names=arguments.name, unit=arguments.unit)
    text = getattr(card, f"to_{form}")()
    if arguments.output is None:
        print(text)
        return 0
    arguments.output.write_text(text + "\n", encoding="utf-8")
    message = f"wrote {arguments.output}"
    print(json.dumps({"output": str(arguments.output)}) if arguments.json else message)
    return 0


def _form(arguments: argparse.Namespace) -> str:
    if arguments.json and arguments.format not in (None, "json"):
        raise ValueError("give either --json or --format, not both")
    if arguments.json:
        return "json"
    suffix = "" if arguments.output is None else arguments.output.suffix.lower()
    return arguments.format or _SUFFIXES.get(suffix, "text")


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
