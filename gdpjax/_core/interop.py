"""Translate the events of a run to and from other libraries, which are imported only when they are needed."""

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = tuple[float, float, int]
"""(noise_multiplier, sampling_prob, num_steps)"""


def _approximate(dp_event: Any, event: Mapping[str, Any]) -> Any:
    # dp-accounting 0.6 has no such event.
    return dp_event.EpsilonDeltaDpEvent(event["epsilon"], event["delta"])


def _gaussian(dp_event: Any, event: Mapping[str, Any]) -> Any:
    return dp_event.GaussianDpEvent(event["noise_multiplier"])


def _laplace(dp_event: Any, event: Mapping[str, Any]) -> Any:
    epsilon = event["epsilon"]
    if not epsilon:
        return dp_event.NoOpDpEvent()
    laplace = dp_event.LaplaceDpEvent(1.0 / epsilon)
    prob = event["sampling_prob"]
    return laplace if prob == 1 else dp_event.PoissonSampledDpEvent(prob, laplace)


def _randomized_response(dp_event: Any, event: Mapping[str, Any]) -> Any:
    # Theirs replaces the answer, with this probability, by one drawn from all the categories.
    num_categories = event["num_categories"]
    odds = math.exp(min(event["epsilon"], 700.0))
    noise = num_categories / (odds + num_categories - 1)
    return dp_event.RandomizedResponseDpEvent(noise, num_categories)


def _subsampled_gaussian(dp_event: Any, event: Mapping[str, Any]) -> Any:
    gaussian = _gaussian(dp_event, event)
    return dp_event.PoissonSampledDpEvent(event["sampling_prob"], gaussian)


_DP_EVENTS: dict[str, Callable[[Any, Mapping[str, Any]], Any]] = {
    "approximate_dp": _approximate,
    "gaussian": _gaussian,
    "laplace": _laplace,
    "randomized_response": _randomized_response,
    "subsampled_gaussian": _subsampled_gaussian,
}


def to_dp_event(events: Iterable[Mapping[str, Any]]) -> Any:
    """Return the events, given as JSON objects, as one event of dp_accounting; ImportError if it is not installed."""
    dp_event = importlib.import_module("dp_accounting").dp_event
    return dp_event.ComposedDpEvent([_repeated(dp_event, event) for event in events])


def _repeated(dp_event: Any, event: Mapping[str, Any]) -> Any:
    make = _DP_EVENTS[event["type"]]
    one_step = make(dp_event, event)
    num_steps = event["num_steps"]
    # Their PLD accountant (0.6) counts a self-composed randomized response once.
    if event["type"] == "randomized_response":
        return dp_event.ComposedDpEvent([one_step] * num_steps)
    return dp_event.SelfComposedDpEvent(one_step, num_steps)


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
