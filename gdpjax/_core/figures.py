"""Write figures, rounded to the side that keeps them true, and tables of them; read the language of grids."""

import decimal
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from gdpjax._core.shown import shown

MOST_VALUES = 1_000_000
"""Values of one range of a grid."""


def plain(value: Any) -> Any:
    """Return ``value`` for strict JSON: infinities and NaN become strings, arrays lists, and named tuples objects.

    >>> plain({"epsilon": float("inf"), "deltas": (1e-5, 1e-6)})
    {'epsilon': 'inf', 'deltas': [1e-05, 1e-06]}
    """
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def decimals_of(value: float, decimals: int, rounding: str) -> str:
    """``value`` with so many decimals, rounded as `decimal` names it: "ROUND_FLOOR", "ROUND_CEILING".

    >>> decimals_of(2.4511, 2, "ROUND_CEILING"), decimals_of(2.5, 2, "ROUND_FLOOR")
    ('2.46', '2.50')
    """
    if not math.isfinite(value):
        return str(value)
    # Decimals hold a float exactly: a product with a power of ten may itself be rounded to the wrong side. There are
    # digits enough for the largest float.
    context = decimal.Context(prec=400 + decimals)
    return str(decimal.Decimal(value).quantize(decimal.Decimal(1).scaleb(-decimals), rounding, context))


def rounded(value: float, digits: int, rounding: str) -> str:
    """Write ``value`` in significant digits, rounded "up", "down" or to "nearest"; "exact" writes all digits.

    The number that is read back is never below ``value`` if that was rounded up, and never above it if down.

    >>> rounded(1.2345641, 6, "up"), rounded(1.2345699, 6, "down"), rounded(0.1, 6, "up"), rounded(1 / 3, 6, "exact")
    ('1.23457', '1.23456', '0.1', '0.3333333333333333')
    """
    if rounding == "exact" or not math.isfinite(value):
        return repr(value)
    nearest = f"{value:.{digits}g}"
    number = decimal.Decimal(nearest)

    # Where the nearest number is on the wrong side, take the next one of so many digits.
    grid = decimal.Context(prec=digits)
    if rounding == "up" and float(nearest) < value:
        number = number.next_plus(grid)
    if rounding == "down" and float(nearest) > value:
        number = number.next_minus(grid)
    return f"{float(number):.{digits}g}"


def is_percentage(name: str) -> bool:
    """Return whether a score is a fraction that is shown in percent."""
    return name == "accuracy" or name.endswith("_accuracy")


def shown_score(name: str, value: float) -> float:
    """Return a score in the unit of its label."""
    return 100 * value if is_percentage(name) else value


def text_table(rows: Sequence[Sequence[str]], width: int = 80) -> str:
    """Write rows of cells in columns, numbers to the right; the last column is wrapped to fit into ``width``.

    >>> print(text_table([("quantity", "value", "standing"), ("mu", "1.25", "exact")]))
    quantity  value  standing
    mu         1.25  exact
    """
    *widths, _ = (max(map(len, column)) for column in zip(*rows, strict=True))
    indent = sum(widths) + 2 * len(widths)
    lines = []
    for first, *middle, last in rows:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(wide) for cell, wide in zip(middle, widths[1:], strict=True)]
        wrapped = textwrap.wrap(last, max(width - indent, 20), break_on_hyphens=False) or [""]
        lines.append("  ".join([*cells, wrapped[0]]).rstrip())
        lines += [" " * indent + line for line in wrapped[1:]]
    return "\n".join(lines)


def values_of(text: str, *, whole: bool = False) -> list[float]:
    """Return the values in "a,b,start:stop:count,start:stop:logcount", in that order, each once.

    ``start:stop:count`` is evenly spaced and ``start:stop:logcount`` evenly in the logarithm, both with their ends, in
    6 digits: 0.3 reads better than 0.30000000000000004.

    Args:
        text: numbers and ranges, separated by commas.
        whole: whether the values of ranges are rounded to whole numbers.

    Returns:
        the numbers, at most 10^6 of a range; those that stand alone as they are written.

    Raises:
        ValueError: a text of another form.

    >>> values_of("0.5,1:2:3,1:100:log3"), values_of("1000:10000:log3", whole=True)
    ([0.5, 1.0, 1.5, 2.0, 10.0, 100.0], [1000.0, 3162.0, 10000.0])
    """
    values: list[float] = []
    try:
        for piece in text.split(","):
            values += _values_of_piece(piece.strip(), whole)
    except ValueError as error:
        expected = "numbers, start:stop:count or start:stop:logcount, separated by commas"
        raise ValueError(f"expected {expected}; got {shown(text)} ({error})") from None
    return list(dict.fromkeys(values))


def _values_of_piece(piece: str, whole: bool) -> list[float]:
    """Return the values of one number or range."""
    first, *rest = piece.split(":")
    if not rest:
        return [float(first)]
    end, number = rest
    start, stop = float(first), float(end)
    is_logarithmic = number.startswith("log")
    count = int(number.removeprefix("log"))
    if not 2 <= count <= MOST_VALUES:
        raise ValueError(f"a range has 2 to {MOST_VALUES} values")
    if not abs(stop - start) < np.inf or (is_logarithmic and min(start, stop) <= 0):
        raise ValueError("the ends of a range are finite, and above 0 in the logarithm")

    spaced = (np.geomspace if is_logarithmic else np.linspace)(start, stop, count)
    return [float(round(value)) if whole else float(f"{value:.6g}") for value in spaced]
