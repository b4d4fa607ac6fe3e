"""Tables in Markdown."""

from collections.abc import Iterable, Sequence
from typing import Any


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell(each) for each in line) + " |" for line in lines)


def cell(value: Any) -> str:
    """A value as it stands in a table."""
    if value is None:
        return ""
    if isinstance(value, float):
        if value != 0 and abs(value) < 0.01:
            return f"{value:.2e}"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)
