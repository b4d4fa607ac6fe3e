"""What the tables of results are made of: Markdown, and means over seeds."""

import statistics
from collections.abc import Iterable, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A heading and rows of cells."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def mean_and_stdev(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation, which one value does not have."""
    return {"mean": statistics.fmean(values), "stdev": statistics.stdev(values) if len(values) > 1 else None}
