"""Ratios to no privacy, and what was aimed at beside what was measured."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks.clipping.cases import AUTO, NO_PRIVACY, OPACUS_GHOST, TORCH_NO_PRIVACY, Case
from benchmarks.clipping.contenders import PLAIN_VMAP

BASELINES = (NO_PRIVACY, TORCH_NO_PRIVACY)
PEERS = (PLAIN_VMAP, "jax_privacy", "optax.contrib", "Opacus hooks", OPACUS_GHOST)
OWN = (AUTO, "gdpjax ghost", "gdpjax microbatch", "gdpjax vmap")
AUTO_OVER_BEST_OWN = 1.1
COMPILE_RATIO, COMPILE_SECONDS = 1.5, 2.0


def median(results: dict[str, Any], name: str) -> float | None:
    """Seconds of a step, or None for a contender that did not run."""
    return results.get(name, {}).get("seconds", {}).get("median")


def overhead(results: dict[str, Any], name: str) -> float | None:
    """Return a step's time over that without privacy in the same framework."""
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


class Aim(NamedTuple):
    """One target on one model; ``beside`` names whose number it is compared with."""

    what: str
    target: float | None
    measured: float | None
    at_least: bool = False
    beside: str | None = None


def targets(cases: Sequence[Case], models: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of gdpjax's default strategy, model by model; what was not measured is left out."""
    found: dict[str, dict[str, Any]] = {}
    for case in cases:
        if case.name not in models:
            continue
        for aim in _aims(case, models[case.name]["contenders"]):
            if aim.target is None or aim.measured is None:
                continue
            met = aim.measured >= aim.target if aim.at_least else aim.measured <= aim.target
            numbers = {
                "target": float(aim.target),
                "measured": aim.measured,
                "at_least": aim.at_least,
                "met": bool(met),
            }
            if aim.beside is not None:
                numbers["beside"] = aim.beside
            found[f"{case.name}: {aim.what}"] = numbers
    return found


def _aims(case: Case, results: dict[str, Any]) -> Iterator[Aim]:
    """Yield what is aimed at on one model: over no privacy first, then beside the peers, then beside ourselves."""
    ours = results.get(AUTO, {})
    ratios = ours.get("over_no_privacy", {})
    auto, time = median(results, AUTO), ratios.get("time")
    yield Aim("step time / no privacy", case.target.time, time)
    yield Aim("temporary memory / no privacy", case.target.memory, ratios.get("temp_bytes"))

    compiling = results.get(NO_PRIVACY, {}).get("compile_seconds")
    longest = None if compiling is None else COMPILE_RATIO * compiling + COMPILE_SECONDS
    yield Aim("seconds to compile", longest, ours.get("compile_seconds"), beside=NO_PRIVACY)

    # Torch and JAX differ by more than their clipping: the peers are met by the second and by their overhead.
    fastest = _least(results, PEERS, median)
    if fastest and auto:
        speedup = fastest[0] / auto
        yield Aim("times faster than the fastest peer", case.target.speedup, speedup, True, fastest[1])
    slimmest = _least(results, PEERS, overhead)
    if slimmest and time:
        smaller = slimmest[0] / time
        yield Aim("overhead, times smaller than the best peer's", case.target.speedup, smaller, True, slimmest[1])

    own = _least(results, OWN, median)
    measured_own = [name for name in OWN if median(results, name) is not None]
    if own and auto and len(measured_own) > 1:
        yield Aim("auto / best own strategy", AUTO_OVER_BEST_OWN, auto / own[0], beside=own[1])


def _least(
    results: dict[str, Any], names: Sequence[str], measure: Callable[[dict[str, Any], str], float | None]
) -> tuple[float, str] | None:
    return min(((value, name) for name in names if (value := measure(results, name)) is not None), default=None)
