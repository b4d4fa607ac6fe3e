"""Check the input of the audits: real numbers that are known, coins that are 0 or 1."""

from typing import Any

import numpy as np

from gdpjax._core.arguments import check_array
from gdpjax._core.checks import WHOLE, known

STANDING = "empirical lower"


def check_counts(**counts: Any) -> dict[str, np.ndarray]:
    """Return whole numbers >= 0 as int64 arrays; ValueError for anything else, tracers included."""
    checked = {}
    for name, value in counts.items():
        checked[name] = known(name, value, WHOLE).astype(np.int64)
    return checked


def check_scores(scores: Any, included: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores as float64[m] and the coins as bool[m].

    ValueError for NaN scores, for coins that are not 0 or 1 and for unequal lengths. A NaN has no place in a ranking,
    and sorting would put it at one end: that is a guess nobody decided on.
    """
    numbers = np.asarray(check_array("scores", scores)).astype(np.float64)
    coins = np.asarray(check_array("included", included, kinds="biuf"))
    is_coin = bool(np.isin(coins.astype(np.float64), (0.0, 1.0)).all())
    if numbers.ndim != 1 or numbers.shape != coins.shape or not numbers.size:
        raise ValueError(
            f"scores and included must be two vectors of equal length >= 1, got shapes {numbers.shape}, {coins.shape}"
        )
    is_nan = np.isnan(numbers)
    if is_nan.any():
        raise ValueError(
            f"scores must not be NaN, got NaN at index {int(is_nan.argmax())}; give such canaries a fixed "
            "score (0, say) whether or not they were included, or leave them out by a rule that does not look at that"
        )
    if not is_coin:
        raise ValueError("included must hold True or False (1 or 0) for each canary, got other values")
    return numbers, coins.astype(bool)
