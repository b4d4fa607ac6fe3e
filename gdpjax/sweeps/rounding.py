"""Bounds that stay true when they are rounded to a number of decimals."""

import decimal
from collections.abc import Mapping

from gdpjax._core.figures import decimals_of


def interval(cost: Mapping[str, float], decimals: int = 3) -> str:
    """Return the certified interval, rounded outwards.

    >>> interval({"epsilon_lower": 2.4499, "epsilon_upper": 2.4511}, 2)
    '[2.44, 2.46]'
    """
    lower = decimals_of(cost["epsilon_lower"], decimals, decimal.ROUND_FLOOR)
    return f"[{lower}, {upper(cost['epsilon_upper'], decimals)}]"


def upper(bound: float, decimals: int) -> str:
    """Return an upper bound, rounded up.

    >>> upper(2.4513, 2), upper(2.5, 2), upper(float("inf"), 2)
    ('2.46', '2.50', 'inf')
    """
    return decimals_of(bound, decimals, decimal.ROUND_CEILING)
