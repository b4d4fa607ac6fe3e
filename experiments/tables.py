"""What the tables of results are made of: Markdown, means over seeds, bounds that stay true when they are rounded."""

import decimal
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A heading and rows of cells."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def mean_and_stdev(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and sample standard deviation, which one value does not have."""
    return {"mean": statistics.fmean(values), "stdev": statistics.stdev(values) if len(values) > 1 else None}


def interval(cost: Mapping[str, float], decimals: int = 3) -> str:
    """The certified interval, rounded outwards, so that it stays true."""
    lower = _rounded(cost["epsilon_lower"], decimals, decimal.ROUND_FLOOR)
    return f"[{lower}, {upper(cost['epsilon_upper'], decimals)}]"


def upper(bound: float, decimals: int) -> str:
    """An upper bound, rounded up.

    >>> upper(2.4513, 2), upper(2.5, 2), upper(float("inf"), 2)
    ('2.46', '2.50', 'inf')
    """
    return _rounded(bound, decimals, decimal.ROUND_CEILING)


def _rounded(bound: float, decimals: int, rounding: str) -> str:
    # Decimals hold a float exactly: a product with a power of ten may itself be rounded to the wrong side.
    if not math.isfinite(bound):
        return str(bound)
    return str(decimal.Decimal(bound).quantize(decimal.Decimal(1).scaleb(-decimals), rounding))


def upper_digits(bound: float, digits: int) -> str:
    """An upper bound in that many significant digits, rounded up.

    >>> upper_digits(2.45128, 4), upper_digits(0.25, 4), upper_digits(123.41, 3)
    ('2.452', '0.25', '124')
    """
    return str(decimal.Context(prec=digits, rounding=decimal.ROUND_CEILING).create_decimal(bound)).replace("E", "e")


def lower_digits(bound: float, digits: int) -> str:
    """A lower bound in that many significant digits, rounded down.

    >>> lower_digits(2.45178, 4), lower_digits(0.25, 4)
    ('2.451', '0.25')
    """
    return str(decimal.Context(prec=digits, rounding=decimal.ROUND_FLOOR).create_decimal(bound)).replace("E", "e")
