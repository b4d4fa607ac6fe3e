"""Optimisers of strategies beside what jax_privacy's took and found, as recorded with its version of 2026.

The loss is sensitivity^2 times the squared error of prefix sums; the peer's figures are in float64 on one shared
machine, its seconds with everything that it compiles. Ours is the time of one call, the first one included, since
nothing is compiled.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks import clocks, writing
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


class Recorded(NamedTuple):
    """The peer's result: ``size`` is bands, buffers, or epochs of the dense matrix."""

    family: str
    num_steps: int
    size: int
    error: str
    participation: tuple[int, int] | None
    loss: float
    seconds: float


RECORDED = (
    Recorded("banded Toeplitz", 16, 8, "mean", None, 3.189583640826751, 4.935),
    Recorded("banded Toeplitz", 16, 8, "max", None, 4.465672490726437, 3.551),
    Recorded("banded Toeplitz", 64, 8, "mean", None, 7.09676191688255, 4.744),
    Recorded("banded Toeplitz", 64, 8, "max", None, 11.72575368897956, 4.697),
    Recorded("banded Toeplitz", 256, 16, "mean", None, 13.23194332709246, 4.446),
    Recorded("banded Toeplitz", 256, 32, "max", None, 14.818554446237323, 5.073),
    Recorded("banded Toeplitz", 1000, 4, "max", None, 256.92294668474057, 4.19),
    Recorded("banded Toeplitz", 1000, 8, "max", None, 134.04364963577035, 5.069),
    Recorded("banded Toeplitz", 1000, 32, "mean", None, 24.115187091644405, 9.025),
    Recorded("banded Toeplitz", 2048, 4, "mean", None, 263.09273132242737, 5.845),
    Recorded("banded Toeplitz", 2048, 8, "max", None, 267.4572920820944, 6.596),
    Recorded("banded Toeplitz", 2048, 16, "max", None, 141.2074687404078, 7.336),
    Recorded("banded Toeplitz", 2048, 32, "max", None, 77.88440034873325, 8.217),
    Recorded("banded inverse", 64, 2, "mean", (4, 16), 26.156470782923275, 12.73),
    Recorded("banded inverse", 64, 4, "mean", (4, 16), 24.1769172965721, 13.93),
    Recorded("banded inverse", 64, 8, "mean", (4, 16), 23.94972293706843, 15.62),
    Recorded("banded inverse", 256, 4, "mean", (8, 32), 87.66461037383756, 22.62),
    Recorded("banded inverse", 256, 8, "mean", (8, 32), 84.89379871361338, 34.49),
    Recorded("banded inverse", 512, 2, "mean", (8, 64), 135.382481317299, 26.85),
    Recorded("banded inverse", 1000, 2, "mean", (10, 100), 232.52037151086475, 79.0),
    Recorded("banded inverse", 1000, 8, "mean", (1000, 1), 505264.1225652496, 87.84),
    Recorded("BLT", 1000, 3, "max", None, 10.692362457615383, 188.69),
    Recorded("BLT", 1000, 2, "max", (10, 100), 223.5914589173585, 192.2),
    Recorded("BLT", 1000, 2, "mean", (10, 100), 148.690016002684, 149.16),
    Recorded("dense", 16, 1, "mean", None, 2.854093634852262, 7.4),
    Recorded("dense", 64, 1, "mean", None, 4.409448444858723, 9.15),
    Recorded("dense", 128, 4, "mean", None, 23.083334292681478, 29.54),
)
QUICK = (RECORDED[0], RECORDED[13], RECORDED[-3])


def measure(recorded: Recorded) -> dict[str, Any]:
    """Return what ours takes and reaches, beside the record."""
    find, participation = _optimizer(recorded)

    # The time of the only call.
    watch = clocks.Stopwatch()
    strategy = find()
    seconds = watch.read().wall

    # Its loss.
    sensitivity = float(strategy.sensitivity(recorded.num_steps, participation))
    error = float(strategy.error(recorded.num_steps, recorded.error))
    loss = sensitivity**2 * error
    return {
        "family": recorded.family,
        "num_steps": recorded.num_steps,
        "size": recorded.size,
        "error": recorded.error,
        "participation": participation.describe(),
        "loss": loss,
        "seconds": seconds,
        "peer": {
            "loss": recorded.loss,
            "seconds": recorded.seconds,
            "measured": False,
        },
        "loss_ratio": loss / recorded.loss,
        "times_faster": recorded.seconds / seconds,
    }


def _optimizer(at: Recorded) -> tuple[Callable[[], AbstractNoiseStrategy], AbstractParticipation]:
    """Return the call that finds the strategy, and the promise that its loss is for."""
    promised: AbstractParticipation = SingleParticipation()
    if at.participation is not None:
        promised = MinSep(*at.participation)

    def find() -> AbstractNoiseStrategy:
        match at.family:
            case "banded Toeplitz":
                return optimize_banded_toeplitz(at.num_steps, at.size, at.error)
            case "banded inverse":
                return optimize_banded_inverse(at.num_steps, at.size, promised, at.error)
            case "BLT":
                return optimize_buffered_toeplitz(at.num_steps, promised, at.error, max_buffers=at.size)
            case _:
                return optimize_dense(at.num_steps, at.size)

    if at.family == "dense":
        return find, FixedEpochs(at.size)
    return find, promised


def targets(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what was aimed at, beside what was measured: no loss worse by more than 0.1 %, and every one faster."""
    worst = max(row["loss_ratio"] for row in rows)
    least = min(row["times_faster"] for row in rows)
    return {
        "optimisers: loss / the peer's, largest": writing.at_most(LARGEST_LOSS_RATIO, worst),
        "optimisers: times faster than the peer's record, least": writing.at_least(1.0, least),
    }
