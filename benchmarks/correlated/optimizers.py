"""Optimisers of strategies beside what jax_privacy's took and found, as recorded with its version of 2026.

The loss is sensitivity^2 times the squared error of prefix sums; the peer's figures are in float64 on one shared
machine, its seconds with everything that it compiles. Ours is the time of one call, the first one included, since
nothing is compiled.
"""

import pathlib
from collections.abc import Callable
from typing import Any

from benchmarks import clocks
from benchmarks.harness import at_least, at_most
from benchmarks.harness import recorded as recorded_in
from gdpjax.correlated import (
    AbstractNoiseStrategy,
    AbstractParticipation,
    FixedEpochs,
    MinSep,
    SingleParticipation,
    optimize_banded_inverse,
    optimize_banded_toeplitz,
    optimize_buffered_toeplitz,
    optimize_dense,
)

LARGEST_LOSS_RATIO = 1.001
"""How much larger than the peer's a loss of ours may be."""
RECORDS = pathlib.Path(__file__).with_name("recorded.csv")
"""The peer's results: ``size`` is bands, buffers, or epochs of the dense matrix."""


def recorded() -> list[dict[str, Any]]:
    """Return what the peer took and found."""
    return recorded_in(RECORDS)


def measure(record: dict[str, Any]) -> dict[str, Any]:
    """Return what ours takes and reaches, beside the record."""
    num_steps, size, error = record["num_steps"], record["size"], record["error"]
    participation: AbstractParticipation = SingleParticipation()
    if record["count"]:
        participation = MinSep(record["count"], record["separation"])
    finders: dict[str, Callable[[], AbstractNoiseStrategy]] = {
        "banded Toeplitz": lambda: optimize_banded_toeplitz(num_steps, size, error),
        "banded inverse": lambda: optimize_banded_inverse(num_steps, size, participation, error),
        "BLT": lambda: optimize_buffered_toeplitz(num_steps, participation, error, max_buffers=size),
        "dense": lambda: optimize_dense(num_steps, size),
    }

    # The time of the only call.
    watch = clocks.Stopwatch()
    strategy = finders[record["family"]]()
    seconds = watch.read().wall

    # Its loss.
    if record["family"] == "dense":
        participation = FixedEpochs(size)
    sensitivity = float(strategy.sensitivity(num_steps, participation))
    loss = sensitivity**2 * float(strategy.error(num_steps, error))
    return {
        "family": record["family"],
        "num_steps": num_steps,
        "size": size,
        "error": error,
        "participation": participation.describe(),
        "loss": loss,
        "seconds": seconds,
        "peer": {"loss": record["loss"], "seconds": record["seconds"], "measured": False},
        "loss_ratio": loss / record["loss"],
        "times_faster": record["seconds"] / seconds,
    }


def targets(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured: no loss worse by more than 0.1 %, and every one faster."""
    worst = max(row["loss_ratio"] for row in rows)
    least = min(row["times_faster"] for row in rows)
    return {
        "optimisers: loss / the peer's, largest": at_most(LARGEST_LOSS_RATIO, worst),
        "optimisers: times faster than the peer's record, least": at_least(1.0, least),
    }
