"""Reports: rows of quantity, value and standing, as a table for people or JSON for machines."""

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from gdpjax._core.figures import plain, rounded, text_table
from gdpjax._core.types import Array, Bounds

__all__ = ["CLT_CAVEAT", "Row", "add_cache_option", "add_json_option", "clt_is_reliable", "plain", "printed"]

CLT_CAVEAT = "asymptotic, no guarantee: may understate"
_DIGITS = 4


class Row(NamedTuple):
    """One line of a report.

    Attributes:
        key: its name in the table and in JSON.
        value: None where not available.
        standing: what kind of number it is.
        rounding: to which side the table rounds it: "up" for what privacy costs, "down" for a lower bound, "exact" (all
            digits) for what was given, "nearest" for an estimate that nobody relies on.
    """

    key: str
    value: Any
    standing: str
    rounding: str = "nearest"


def clt_is_reliable(bounds: Bounds, epsilon_clt: Array) -> Array:
    """Return where the bracket proves the CLT's epsilon to be within 5% of every epsilon in it."""
    return (epsilon_clt >= 0.95 * bounds.upper) & (epsilon_clt <= 1.05 * bounds.lower)


def printed(report: Callable[[argparse.Namespace], list[Row]]) -> Callable[[argparse.Namespace], int]:
    """Return a command that prints ``report`` and ends with status 0."""

    def run(arguments: argparse.Namespace) -> int:
        rows = report(arguments)
        print(_as_json(rows, arguments.command) if arguments.json else _as_table(rows))
        return 0

    return run


def add_json_option(parser: argparse.ArgumentParser, instead_of: str = "a table") -> None:
    """Add ``--json`` and ``--no-compilation-cache``, which every command has."""
    parser.add_argument("--json", action="store_true", help=f"one JSON object instead of {instead_of}")
    add_cache_option(parser)


def add_cache_option(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-compilation-cache``."""
    parser.add_argument(
        "--no-compilation-cache",
        action="store_true",
        help="keep no compiled programs in the user's cache folder for the next start (GDPJAX_COMPILATION_CACHE=off)",
    )


def _as_json(rows: list[Row], command: str) -> str:
    """Return the values by their keys as one JSON object."""
    values: dict[str, Any] = {row.key: plain(row.value) for row in rows}
    # The keys of the other commands say their standing by name.
    if command == "convert":
        values["standing"] = {row.key: row.standing for row in rows}
    return json.dumps(values, allow_nan=False)


def _as_table(rows: list[Row]) -> str:
    """Return the rows as text, in columns."""
    cells = [("quantity", "value", "standing")]
    for key, value, standing, rounding in rows:
        text = rounded(value, _DIGITS, rounding) if isinstance(value, float) else str(value)
        cells.append((key, "-" if value is None else text, standing))
    return text_table(cells)
