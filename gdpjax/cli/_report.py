"""Reports: rows of quantity, value and standing, as a table for people or JSON for machines."""

import argparse
import json
import math
from collections.abc import Callable
from typing import Any, NamedTuple

CLT_CAVEAT = "asymptotic estimate: may understate the true epsilon; not a guarantee"


class Row(NamedTuple):
    """One line of a report: machine key, value (None where not available), and standing in words."""

    key: str
    value: Any
    standing: str


def printed(report: Callable[[argparse.Namespace], list[Row]]) -> Callable[[argparse.Namespace], int]:
    """A command that prints ``report`` and ends with status 0."""

    def run(arguments: argparse.Namespace) -> int:
        rows = report(arguments)
        print(_as_json(rows, arguments.command) if arguments.json else _as_table(rows))
        return 0

    return run


def add_json_option(parser: argparse.ArgumentParser, instead_of: str = "a table") -> None:
    """``--json``, which every command has."""
    parser.add_argument("--json", action="store_true", help=f"one JSON object instead of {instead_of}")


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
        value = "-" if row.value is None else f"{row.value:.6g}" if isinstance(row.value, float) else str(row.value)
        shown.append((row.key, value, row.standing))
    widths = [max(len(line[column]) for line in shown) for column in range(2)]
    return "\n".join(f"{name:<{widths[0]}}  {value:>{widths[1]}}  {standing}" for name, value, standing in shown)
