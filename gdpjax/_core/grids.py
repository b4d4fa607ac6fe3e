"""The language of grids: what a person writes for several values of a hyperparameter."""

import numpy as np

from gdpjax._core.shown import shown

MOST_VALUES = 1_000_000


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
