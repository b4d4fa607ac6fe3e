"""What other libraries call a run of Poisson-sampled Gaussian steps. No privacy mathematics, no import of them here."""

import importlib
from collections.abc import Iterable, Sequence
from typing import Any

Row = tuple[float, float, int]
"""(noise_multiplier, sampling_prob, num_steps)"""


def to_dp_event(rows: Iterable[Row]) -> Any:
    """The rows as an event of dp_accounting; ImportError where that is not installed."""
    try:
        dp_event = importlib.import_module("dp_accounting").dp_event
    except ImportError as error:
        raise ImportError("Ledger.to_dp_event needs dp-accounting: run `pip install dp-accounting`") from error
    return dp_event.ComposedDpEvent(
        [
            dp_event.SelfComposedDpEvent(
                dp_event.PoissonSampledDpEvent(sampling_prob, dp_event.GaussianDpEvent(noise_multiplier)), num_steps
            )
            for noise_multiplier, sampling_prob, num_steps in rows
        ]
    )


def rows_of_history(history: Iterable[Any]) -> Sequence[Row]:
    """The rows of an Opacus accountant's history; ValueError where it is something else."""
    rows = []
    for index, entry in enumerate(history):
        try:
            noise_multiplier, sampling_prob, num_steps = entry
        except (TypeError, ValueError) as error:
            raise ValueError(
                "history must be a list of (noise_multiplier, sampling_prob, num_steps), "
                f"got {entry!r} at index {index}"
            ) from error
        rows.append((noise_multiplier, sampling_prob, num_steps))
    return rows
