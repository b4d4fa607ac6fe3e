"""Bounds that stay true when they are rounded to a number of decimals."""

import decimal
import math
from collections.abc import Mapping


def interval(cost: Mapping[str, float], decimals: int = 3) -> str:
    """Return the certified interval, rounded outwards.

    >>> interval({"epsilon_lower": 2.4499, "epsilon_upper": 2.4511}, 2)
    '[2.44, 2.46]'
    """
    lower = _rounded(cost["epsilon_lower"], decimals, decimal.ROUND_FLOOR)
    return f"[{lower}, {upper(cost['epsilon_upper'], decimals)}]"


def upper(bound: float, decimals: int) -> str:
    """Return an upper bound, rounded up.

    >>> upper(2.4513, 2), upper(2.5, 2), upper(float("inf"), 2)
    ('2.46', '2.50', 'inf')
    """
    return _rounded(bound, decimals, decimal.ROUND_CEILING)


def _rounded(bound: float, decimals: int, rounding: str) -> str:
    # Decimals hold a float exactly: a product with a power of ten may itself be rounded to the wrong side.
    if not math.isfinite(bound):
        return str(bound)
    return str(decimal.Decimal(bound).quantize(decimal.Decimal(1).scaleb(-decimals), rounding))
