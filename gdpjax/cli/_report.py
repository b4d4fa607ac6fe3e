"""Reports: rows of quantity, value and standing, as a table for people or JSON for machines."""

import argparse
import decimal
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

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
    parser.add_argument(
        "--no-compilation-cache",
        action="store_true",
        help="keep no compiled programs in the user's cache folder for the next start (GDPJAX_COMPILATION_CACHE=off)",
    )


def plain(value: Any) -> Any:
    """``value`` for strict JSON: infinities and NaN become strings."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


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


def rounded(value: float, digits: int, rounding: str) -> str:
    """``value`` in so many significant digits, rounded "up", "down" or to "nearest"; "exact" writes all that it has.

    What is read back is never below ``value`` if that was rounded up, never above if down.

    >>> rounded(1.2345641, 6, "up"), rounded(1.2345699, 6, "down"), rounded(0.1, 6, "up"), rounded(1 / 3, 6, "exact")
    ('1.23457', '1.23456', '0.1', '0.3333333333333333')
    """
    if rounding == "exact" or not math.isfinite(value):
        return repr(value)
    nearest = f"{value:.{digits}g}"
    neighbour, grid = decimal.Decimal(nearest), decimal.Context(prec=digits)
    if rounding == "up" and float(nearest) < value:
        neighbour = neighbour.next_plus(grid)
    if rounding == "down" and float(nearest) > value:
        neighbour = neighbour.next_minus(grid)
    return f"{float(neighbour):.{digits}g}"
