"""Translate the events of a run to and from other libraries, which are imported only when they are needed."""

import importlib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Row = tuple[float, float, int]
"""(noise_multiplier, sampling_prob, num_steps)"""


def to_dp_event(events: Iterable[Mapping[str, Any]]) -> Any:
    """Return the events, given as JSON objects, as one event of dp_accounting; ImportError if it is not installed."""
    dp_event = importlib.import_module("dp_accounting").dp_event
    return dp_event.ComposedDpEvent([_repeated(dp_event, event) for event in events])


def _repeated(dp_event: Any, event: Mapping[str, Any]) -> Any:
    one_step = _once(dp_event, event)
    num_steps = event["num_steps"]
    # Their PLD accountant (0.6) counts a self-composed randomized response once.
    if event["type"] == "randomized_response":
        return dp_event.ComposedDpEvent([one_step] * num_steps)
    return dp_event.SelfComposedDpEvent(one_step, num_steps)


def _once(dp_event: Any, event: Mapping[str, Any]) -> Any:
    """Return one release of an event."""
    kind = event["type"]
    if kind == "approximate_dp":
        # dp-accounting 0.6 has no such event.
        return dp_event.EpsilonDeltaDpEvent(event["epsilon"], event["delta"])
    if kind == "randomized_response":
        # Theirs replaces the answer, with this probability, by one drawn from all the categories.
        num_categories = event["num_categories"]
        odds = math.exp(min(event["epsilon"], 700.0))
        noise = num_categories / (odds + num_categories - 1)
        return dp_event.RandomizedResponseDpEvent(noise, num_categories)
    if kind == "laplace":
        if not event["epsilon"]:
            return dp_event.NoOpDpEvent()
        release = dp_event.LaplaceDpEvent(1.0 / event["epsilon"])
    else:
        assert kind in ("gaussian", "subsampled_gaussian"), kind
        release = dp_event.GaussianDpEvent(event["noise_multiplier"])
    prob = event.get("sampling_prob", 1.0)
    is_sampled = kind == "subsampled_gaussian" or prob < 1
    return dp_event.PoissonSampledDpEvent(prob, release) if is_sampled else release


def rows_of_history(history: Iterable[Any] | Mapping[str, Any]) -> Sequence[Row]:
    """Return the rows of an Opacus accountant's history, or of its state dict; ValueError for something else."""
    rows: Any = history
    if isinstance(history, Mapping):
        mechanism = history.get("mechanism")
        if mechanism not in ("rdp", "prv", "gdp") or "history" not in history:
            raise ValueError(
                f"the state of an Opacus accountant has a history, and the mechanism rdp, prv or gdp; got {mechanism!r}"
            )
        rows = history["history"]
    return [(noise_multiplier, sampling_prob, num_steps) for noise_multiplier, sampling_prob, num_steps in rows]
