"""Ratios to no privacy, and what was aimed at beside what was measured."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from benchmarks import writing
from benchmarks.clipping.cases import AUTO, NO_PRIVACY, OPACUS_GHOST, TORCH_NO_PRIVACY, Case
from benchmarks.clipping.contenders import PLAIN_VMAP

PEERS = (PLAIN_VMAP, "jax_privacy", "optax.contrib", "Opacus hooks", OPACUS_GHOST)
OWN = (AUTO, "gdpjax ghost", "gdpjax microbatch", "gdpjax vmap")
AUTO_OVER_BEST_OWN = 1.1
"""How much slower than the best strategy of ours the default one may be."""
COMPILE_RATIO = 1.5
COMPILE_SECONDS = 2.0
"""Compiling may take so many times as long as without privacy, and so many seconds more."""


def median(results: dict[str, Any], name: str) -> float | None:
    """Return the seconds of a step, or None for a contender that did not run."""
    seconds = results.get(name, {}).get("seconds", {})
    return seconds.get("median")


def overhead(results: dict[str, Any], name: str) -> float | None:
    """Return a step's time over that without privacy in the same framework."""
    ratios = results.get(name, {}).get("over_no_privacy", {})
    return ratios.get("time_over_torch") or ratios.get("time")


def add_ratios(results: dict[str, Any]) -> None:
    """Add time and temporary memory over those of no privacy in the same run; torch's time also over torch's own."""
    time_on_jax = median(results, NO_PRIVACY)
    time_on_torch = median(results, TORCH_NO_PRIVACY)
    memory_on_jax = results.get(NO_PRIVACY, {}).get("temp_bytes")
    for name, measured in results.items():
        time = median(results, name)
        if time is None:
            continue
        is_torch = name == TORCH_NO_PRIVACY or name.startswith("Opacus")
        measured["over_no_privacy"] = {
            "time": _ratio(time, time_on_jax),
            "temp_bytes": _ratio(measured["temp_bytes"], memory_on_jax),
            "time_over_torch": _ratio(time, time_on_torch) if is_torch else None,
        }


def _ratio(value: float | None, base: float | None) -> float | None:
    """Return a quotient; None where either number is missing, or the second is 0."""
    if value is None or not base:
        return None
    return value / base


class Aim(NamedTuple):
    """One target on one model; ``beside`` names whose number it is compared with."""

    what: str
    target: float | None
    measured: float | None
    at_least: bool = False
    beside: str | None = None


def targets(cases: Sequence[Case], models: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of gdpjax's default strategy, model by model; what was not measured is left out."""
    targets_by_name: dict[str, dict[str, Any]] = {}
    for case in cases:
        if case.name not in models:
            continue
        for aim in _aims(case, models[case.name]["contenders"]):
            if aim.target is None or aim.measured is None:
                continue
            beside = {} if aim.beside is None else {"beside": aim.beside}
            judge = writing.at_least if aim.at_least else writing.at_most
            targets_by_name[f"{case.name}: {aim.what}"] = judge(float(aim.target), aim.measured, **beside)
    return targets_by_name


def _aims(case: Case, results: dict[str, Any]) -> Iterator[Aim]:
    """Yield what is aimed at on one model: over no privacy first, then beside the peers, then beside ourselves."""
    target = case.target
    auto = results.get(AUTO, {})
    seconds = median(results, AUTO)
    ratios = auto.get("over_no_privacy", {})
    ratio = ratios.get("time")
    yield Aim("step time / no privacy", target.time, ratio)
    yield Aim("temporary memory / no privacy", target.memory, ratios.get("temp_bytes"))

    # Compiling.
    compiling = results.get(NO_PRIVACY, {}).get("compile_seconds")
    longest = None
    if compiling is not None:
        longest = COMPILE_RATIO * compiling + COMPILE_SECONDS
    yield Aim("seconds to compile", longest, auto.get("compile_seconds"), beside=NO_PRIVACY)

    # Torch and JAX differ by more than their clipping: the peers are met by the second and by their overhead.
    fastest = _least(results, PEERS, median)
    if fastest and seconds:
        speedup = fastest.number / seconds
        yield Aim("times faster than the fastest peer", target.speedup, speedup, True, fastest.name)
    slimmest = _least(results, PEERS, overhead)
    if slimmest and ratio:
        smaller = slimmest.number / ratio
        yield Aim("overhead, times smaller than the best peer's", target.speedup, smaller, True, slimmest.name)

    # The other strategies of ours, if any ran.
    best = _least(results, OWN, median)
    measured_own = [name for name in OWN if median(results, name) is not None]
    if best and seconds and len(measured_own) > 1:
        yield Aim("auto / best own strategy", AUTO_OVER_BEST_OWN, seconds / best.number, beside=best.name)


class Least(NamedTuple):
    """The least of some numbers, and whose it is."""

    number: float
    name: str


def _least(
    results: dict[str, Any],
    names: Sequence[str],
    measure: Callable[[dict[str, Any], str], float | None],
) -> Least | None:
    """Return the contender of which a measure is least; None where it is known of none."""
    candidates = []
    for name in names:
        number = measure(results, name)
        if number is not None:
            candidates.append(Least(number, name))
    return min(candidates, default=None)
