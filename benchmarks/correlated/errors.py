"""The error of each family of strategies: sensitivity times the root of the mean squared error of prefix sums.

It is the error of a sum of released gradients, for one noise multiplier and so for one privacy, in units of the noise
multiplier times the clip norm. Families are compared at the same promise: an example takes part at most k times, and
any two of its steps are at least b apart.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from benchmarks import clocks
from gdpjax.correlated import (
    AbstractNoiseStrategy,
    BandedInverse,
    FixedEpochs,
    MinSep,
    bisr,
    optimize_banded_inverse,
    optimize_banded_toeplitz,
    optimize_buffered_toeplitz,
    optimize_dense,
)

INDEPENDENT = "independent noise"
LARGEST_DENSE = 512
"""Steps up to which the dense optimum is found within seconds."""


@dataclasses.dataclass(frozen=True)
class Promise:
    """A run of ``num_steps`` steps in which an example takes part ``count`` times, ``separation`` apart."""

    num_steps: int
    count: int
    separation: int


PROMISES = (
    Promise(512, 4, 128),
    Promise(2048, 8, 256),
    Promise(10_000, 10, 1000),
    Promise(100_000, 10, 10_000),
)
QUICK = (Promise(64, 4, 16),)


def families(promise: Promise) -> dict[str, Callable[[], AbstractNoiseStrategy]]:
    """Return how the strategy of each family is found."""
    n, participation = promise.num_steps, MinSep(promise.count, promise.separation)
    found: dict[str, Callable[[], AbstractNoiseStrategy]] = {
        INDEPENDENT: lambda: BandedInverse([1.0]),
        "lambda-CGD, best lambda": lambda: optimize_banded_inverse(n, 2, participation),
        "BISR, 4 bands": lambda: bisr(4),
        "BISR, 8 bands": lambda: bisr(8),
        "banded inverse, 4 bands": lambda: optimize_banded_inverse(n, 4, participation),
        "banded inverse, 8 bands": lambda: optimize_banded_inverse(n, 8, participation),
        "BandMF, 8 bands": lambda: optimize_banded_toeplitz(n, 8),
        "BandMF, 64 bands": lambda: optimize_banded_toeplitz(n, min(64, promise.separation)),
        "BLT, 3 buffers": lambda: optimize_buffered_toeplitz(n, participation, "mean", max_buffers=3),
    }
    if n <= LARGEST_DENSE:
        found["dense, the optimum for fixed epochs"] = lambda: optimize_dense(n, promise.count)
    return found


def measure(promise: Promise) -> list[dict[str, Any]]:
    """Return the errors of all families, beside that of independent noise."""
    participation: Any = MinSep(promise.count, promise.separation)
    rows: list[dict[str, Any]] = []
    for name, find in families(promise).items():
        watch = clocks.Stopwatch()
        strategy = find()
        seconds = watch.read().wall
        promised = FixedEpochs(promise.count) if name.startswith("dense") else participation
        sensitivity = float(strategy.sensitivity(promise.num_steps, promised))
        rmse = sensitivity * math.sqrt(float(strategy.error(promise.num_steps)))
        base = rows[0]["rmse"] if rows else rmse
        rows.append(
            {
                "family": name,
                "seconds_to_find": seconds,
                "sensitivity": sensitivity,
                "rmse": rmse,
                "of_independent": rmse / base,
            }
        )
    return rows
