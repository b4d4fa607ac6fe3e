"""What the tables of results are made of: Markdown, means over seeds, certified intervals."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A heading and rows of cells."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def mean_and_stdev(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation, which one value does not have."""
    return {"mean": statistics.fmean(values), "stdev": statistics.stdev(values) if len(values) > 1 else None}


def interval(cost: Mapping[str, float]) -> str:
    """The certified interval, rounded outwards, so that it stays true."""
    lower, upper = math.floor(1000 * cost["epsilon_lower"]), math.ceil(1000 * cost["epsilon_upper"])
    return f"[{lower / 1000:.3f}, {upper / 1000:.3f}]"
