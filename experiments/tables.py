"""Parts of the tables of results: Markdown, means over seeds, and the files they are written to."""

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a heading and rows of cells as a table.

    >>> print(markdown_table(("a", "b"), [("1", "2")]))
    | a | b |
    | --- | --- |
    | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def mean_and_stdev(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the sample standard deviation, which one value does not have.

    >>> mean_and_stdev([1.0, 3.0])
    {'mean': 2.0, 'stdev': 1.4142135623730951}
    """
    stdev = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "stdev": stdev}


def write_with_table(path: Path, result: dict[str, Any], markdown: str) -> None:
    """Write a result as JSON at ``path``, and its table as Markdown beside it, each whole or not at all."""
    from gdpjax.sweeps import records  # it imports JAX, which benchmarks import once they have chosen their cores

    path.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, result)
    records.write_atomically(path.with_suffix(".md"), markdown)
