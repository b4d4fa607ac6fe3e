"""Reports: rows of quantity, value and standing, as a table for people or JSON for machines."""

import argparse
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from gdpjax._core.figures import plain, rounded
from gdpjax._core.types import Array, Bounds

__all__ = ["CLT_CAVEAT", "Row", "add_json_option", "clt_is_reliable", "plain", "printed", "require", "rounded"]

CLT_CAVEAT = "asymptotic estimate: may understate the true epsilon; not a guarantee"


class Row(NamedTuple):
    """One line of a report.

    Attributes:
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


def clt_is_reliable(bounds: Bounds, epsilon_clt: Array) -> Array:
    """Return where the bracket proves the CLT's epsilon to be within 5% of every epsilon in it."""
    is_large_enough = epsilon_clt >= 0.95 * bounds.upper
    is_small_enough = epsilon_clt <= 1.05 * bounds.lower
    return is_large_enough & is_small_enough


def printed(report: Callable[[argparse.Namespace], list[Row]]) -> Callable[[argparse.Namespace], int]:
    """Return a command that prints ``report`` and ends with status 0."""

    def run(arguments: argparse.Namespace) -> int:
        rows = report(arguments)
        if arguments.json:
            print(_as_json(rows, arguments.command))
        else:
            print(_as_table(rows))
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


def require(condition: bool, name: str, expected: str, got: float) -> None:
    """Raise ValueError unless ``condition``."""
    if not condition:
        raise ValueError(f"{name} must be {expected}, got {got:g}")


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
    for row in rows:
        cells.append((row.key, _as_text(row.value, row.rounding), row.standing))
    key_width = max(len(key) for key, _, _ in cells)
    value_width = max(len(value) for _, value, _ in cells)

    lines = []
    for key, value, standing in cells:
        lines.append(f"{key:<{key_width}}  {value:>{value_width}}  {standing}")
    return "\n".join(lines)


def _as_text(value: Any, rounding: str) -> str:
    """Return a value as the table shows it: floats in six digits."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return rounded(value, 6, rounding)
    return str(value)
