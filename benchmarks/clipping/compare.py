"""Ratios to no privacy, and what was aimed at beside what was measured."""

from collections.abc import Iterator
from typing import Any

from benchmarks.clipping.cases import AUTO, NO_PRIVACY, OPACUS_GHOST, PRESETS, TORCH_NO_PRIVACY, Target
from benchmarks.clipping.contenders import PLAIN_VMAP
from benchmarks.harness import at_least, at_most

PEERS = (PLAIN_VMAP, "jax_privacy", "optax.contrib", "Opacus hooks", OPACUS_GHOST)
OWN = (AUTO, "gdpjax ghost", "gdpjax microbatch", "gdpjax vmap")
AUTO_OVER_BEST_OWN = 1.1
"""How much slower than the best strategy of ours the default one may be."""
COMPILE_RATIO = 1.5
COMPILE_SECONDS = 2.0
"""Compiling may take so many times as long as without privacy, and so many seconds more."""


def medians(results: dict[str, Any]) -> dict[str, float]:
    """Return the seconds of a step of every contender that ran."""
    return {name: at["seconds"]["median"] for name, at in results.items() if "seconds" in at}


def add_ratios(results: dict[str, Any]) -> None:
    """Add time and temporary memory over those of no privacy in the same run; torch's time also over torch's own."""
    seconds = medians(results)
    memory = results.get(NO_PRIVACY, {}).get("temp_bytes")
    for name, own in seconds.items():
        is_torch = name == TORCH_NO_PRIVACY or name.startswith("Opacus")
        results[name]["over_no_privacy"] = {
            "time": _ratio(own, seconds.get(NO_PRIVACY)),
            "temp_bytes": _ratio(results[name]["temp_bytes"], memory),
            "time_over_torch": _ratio(own, seconds.get(TORCH_NO_PRIVACY)) if is_torch else None,
        }


def _ratio(value: float | None, base: float | None) -> float | None:
    """Return a quotient; None where either number is missing, or the second is 0."""
    return None if value is None or not base else value / base


def targets(result: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the targets of gdpjax's default strategy, model by model; what was not measured is left out."""
    cases = {case.name: case for case in PRESETS[result["settings"]["preset"]]}
    found = {}
    for name, model in result["cases"].items():
        if "seconds" in model["contenders"].get(AUTO, {}):
            for what, target in _targets(cases[name].target, model["contenders"]):
                found[f"{name}: {what}"] = target
    return found


def _targets(target: Target, results: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is aimed at on one model: over no privacy first, then beside the peers, then beside ourselves."""
    auto, plain, seconds = results[AUTO], results.get(NO_PRIVACY, {}), medians(results)
    ratio, memory = auto["over_no_privacy"]["time"], auto["over_no_privacy"].get("temp_bytes")
    if target.time is not None and ratio is not None:
        yield "step time / no privacy", at_most(target.time, ratio)
    if target.memory is not None and memory is not None:
        yield "temporary memory / no privacy", at_most(target.memory, memory)
    if "compile_seconds" in plain:
        longest = COMPILE_RATIO * plain["compile_seconds"] + COMPILE_SECONDS
        yield "seconds to compile", at_most(longest, auto["compile_seconds"], beside=NO_PRIVACY)

    # Torch and JAX differ by more than their clipping: the peers are met by the second and by their overhead.
    peers = {name: seconds[name] for name in PEERS if name in seconds}
    if peers:
        fastest = min(peers, key=peers.__getitem__)
        speedup = peers[fastest] / seconds[AUTO]
        yield "times faster than the fastest peer", at_least(target.speedup, speedup, beside=fastest)
    overheads = {}
    for name in peers:
        over = results[name]["over_no_privacy"]
        overheads[name] = over.get("time_over_torch") or over["time"]
    if overheads and ratio is not None:
        slimmest = min(overheads, key=overheads.__getitem__)
        smaller = overheads[slimmest] / ratio
        yield "overhead, times smaller than the best peer's", at_least(target.speedup, smaller, beside=slimmest)

    # The other strategies of ours, if any ran.
    own = {name: seconds[name] for name in OWN if name in seconds}
    if len(own) > 1:
        best = min(own, key=own.__getitem__)
        yield "auto / best own strategy", at_most(AUTO_OVER_BEST_OWN, seconds[AUTO] / own[best], beside=best)
