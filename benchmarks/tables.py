"""Tables in Markdown, of values of any kind."""

from collections.abc import Iterable, Sequence
from typing import Any

from experiments.tables import markdown_table


def table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a heading and rows as a table."""
    return markdown_table(columns, [[cell(value) for value in row] for row in rows])


def cell(value: Any) -> str:
    """Return a value as it stands in a table: a number to three digits, nothing for None.

    >>> [cell(value) for value in (None, 0.00123, 1.2345, 12345.6, "text")]
    ['', '1.23e-03', '1.23', '12,346', 'text']
    """
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if value != 0 and abs(value) < 0.01:
        return f"{value:.2e}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
