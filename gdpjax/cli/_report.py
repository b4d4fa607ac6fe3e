"""Reports: rows of quantity, value and standing, as a table for people or JSON for machines."""

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from gdpjax._core.figures import plain, rounded

__all__ = ["CLT_CAVEAT", "Row", "add_json_option", "plain", "printed", "require", "rounded"]

CLT_CAVEAT = "asymptotic estimate: may understate the true epsilon; not a guarantee"


class Row(NamedTuple):
    """One line of a report.

    Fields:
        key: its name in the table and in JSON.
        value: None where not available.
        standing: what kind of number it is, in words.
        rounding: to which side the table rounds it: "up" for what privacy costs, "down" for a lower bound, "exact" (all
            digits) for what was given, "nearest" for an estimate that nobody relies on.
    """

    key: str
    value: Any
    standing: str
    rounding: str = "nearest"


def printed(report: Callable[[argparse.Namespace], list[Row]]) -> Callable[[argparse.Namespace], int]:
    """A command that prints ``report`` and ends with status 0."""

    def run(arguments: argparse.Namespace) -> int:
        rows = report(arguments)
        print(_as_json(rows, arguments.command) if arguments.json else _as_table(rows))
        return 0

    return run


def add_json_option(parser: argparse.ArgumentParser, instead_of: str = "a table") -> None:
    """``--json`` and ``--no-compilation-cache``, which every command has."""
    parser.add_argument("--json", action="store_true", help=f"one JSON object instead of {instead_of}")
    add_cache_option(parser)


def add_cache_option(parser: argparse.ArgumentParser) -> None:
    """``--no-compilation-cache``."""
    parser.add_argument(
        "--no-compilation-cache",
        action="store_true",
        help="keep no compiled programs in the user's cache folder for the next start (GDPJAX_COMPILATION_CACHE=off)",
    )


def require(condition: bool, name: str, expected: str, got: float) -> None:
    """Raise ValueError unless ``condition``."""
    if not condition:
        raise ValueError(f"{name} must be {expected}, got {got:g}")


def _as_json(rows: list[Row], command: str) -> str:
    values: dict[str, Any] = {row.key: plain(row.value) for row in rows}
    if command == "convert":  # the keys of the other commands say their standing by name
        values["standing"] = {row.key: row.standing for row in rows}
    return json.dumps(values, allow_nan=False)


def _as_table(rows: list[Row]) -> str:
    shown = [("quantity", "value", "standing")]
    for row in rows:
        shown.append((row.key, _as_text(row.value, row.rounding), row.standing))
    widths = [max(len(line[column]) for line in shown) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {standing}" for name, value, standing in shown)


def _as_text(value: Any, rounding: str) -> str:
    if value is None:
        return "-"
    return rounded(value, 6, rounding) if isinstance(value, float) else str(value)
