"""Ratios to no privacy, and what was aimed at beside what was measured."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.clipping.cases import Case
from benchmarks.clipping.contenders import AUTO, NO_PRIVACY, PLAIN_VMAP

TORCH_NO_PRIVACY = "torch, no privacy"
BASELINES = (NO_PRIVACY, TORCH_NO_PRIVACY)
PEERS = (PLAIN_VMAP, "jax_privacy", "optax.contrib", "Opacus hooks", "Opacus ghost")
OWN = (AUTO, "gdpjax ghost", "gdpjax microbatch", "gdpjax vmap")
AUTO_OVER_BEST_OWN = 1.1


def median(results: dict[str, Any], name: str) -> float | None:
    """Seconds of a step, or None for a contender that did not run."""
    return results.get(name, {}).get("seconds", {}).get("median")


def overhead(results: dict[str, Any], name: str) -> float | None:
    """A step's time over that without privacy in the same framework."""
    ratios = results.get(name, {}).get("over_no_privacy", {})
    return ratios.get("time_over_torch") or ratios.get("time")


def add_ratios(results: dict[str, Any]) -> None:
    """Time and temporary memory over those of no privacy in the same run; torch's time also over torch's own."""
    base, torch = (median(results, name) for name in BASELINES)
    memory = results.get(NO_PRIVACY, {}).get("temp_bytes")
    for name, at in results.items():
        own = median(results, name)
        if own is None:
            continue
        is_torch = name == TORCH_NO_PRIVACY or name.startswith("Opacus")
        temp = at["temp_bytes"]
        at["over_no_privacy"] = {
            "time": own / base if base else None,
            "temp_bytes": temp / memory if memory and temp is not None else None,
            "time_over_torch": own / torch if torch and is_torch else None,
        }


def targets(cases: Sequence[Case], models: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Of gdpjax's default strategy, model by model; what was not measured is left out.

    Torch and JAX differ by more than their clipping, so that the peers are met twice: second against second, and each
    over the step without privacy of its own framework.
    """
    found: dict[str, dict[str, Any]] = {}
    for case in (case for case in cases if case.name in models):
        for what, target, measured, at_least, beside in _aims(case, models[case.name]["contenders"]):
            if target is not None and measured is not None:
                met = measured >= target if at_least else measured <= target
                numbers = {"target": float(target), "measured": measured, "at_least": at_least, "met": bool(met)}
                found[f"{case.name}: {what}"] = numbers | ({"beside": beside[1]} if beside else {})
    return found


def _aims(case: Case, results: dict[str, Any]) -> Iterator[tuple[str, float | None, float | None, bool, Any]]:
    """(what, target, measured, whether at least that, whose time it is compared with)."""
    aim, auto, ratios = case.target, median(results, AUTO), results.get(AUTO, {}).get("over_no_privacy", {})
    time = ratios.get("time")
    fastest, slimmest = (_least(results, PEERS, measure) for measure in (median, overhead))
    own = _least(results, OWN, median)
    yield "step time / no privacy", aim.time, time, False, None
    yield "temporary memory / no privacy", aim.memory, ratios.get("temp_bytes"), False, None
    faster = fastest[0] / auto if fastest and auto else None
    yield "times faster than the fastest peer", aim.speedup, faster, True, fastest
    smaller = slimmest[0] / time if slimmest and time else None
    yield "overhead, times smaller than the best peer's", aim.speedup, smaller, True, slimmest
    yield "auto / best own strategy", AUTO_OVER_BEST_OWN, auto / own[0] if own and auto else None, False, own


def _least(
    results: dict[str, Any], names: Sequence[str], measure: Callable[[dict[str, Any], str], float | None]
) -> tuple[float, str] | None:
    return min(((value, name) for name in names if (value := measure(results, name)) is not None), default=None)
