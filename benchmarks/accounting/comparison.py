"""Everybody on the common grid: how fast, how far from the truth, and on which side.

The first ``subset`` configurations are done by every library in turn, and again for each repetition unless the library
has already taken ``patience`` seconds; those with numbers of their own then go on over the rest of the grid for
``sweep_seconds``. The reference is our certified bracket at the relative width `REFERENCE_RTOL`, which is itself on
trial: what contradicts it is listed, and `arbiter` says who is right.
"""

import collections
import functools
import logging
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks import clocks, machine
from benchmarks.accounting import arbiter
from benchmarks.accounting.grid import Grid
from benchmarks.accounting.peers import PEERS, Epsilon, Peer
from gdpjax import accounting

CALL_LIMIT = 30.0
"""Seconds after which a call is given up."""
RTOLS = (1e-2, 1e-4, 3e-5, 1e-6)
REFERENCE_RTOL = 1e-5
WIDTH_TARGET = 1e-3
BATCHED: dict[str, Callable[..., Any]] = {
    "epsilon_bounds": accounting.epsilon_bounds,
    "moments_accountant_epsilon": accounting.moments_accountant_epsilon,
    "clt_epsilon": accounting.clt_epsilon,
}
"""Our functions that take the whole grid in one call."""

Outcomes = list[list[clocks.Outcome]]
"""For each configuration what each repetition took and gave."""
Column = Float[np.ndarray, " configurations"]


def one_at_a_time() -> list[Peer]:
    """Return our functions called as the peers are, one configuration each."""

    def bounds(*run: Any, rtol: float = 1e-3) -> Epsilon:
        lower, upper = accounting.epsilon_bounds(*run, rtol=rtol)
        return Epsilon(lower=float(lower), upper=float(upper))

    def moments_accountant(*run: Any) -> Epsilon:
        return Epsilon(upper=float(accounting.moments_accountant_epsilon(*run)))

    name = "gdpjax epsilon_bounds"
    peers = [
        Peer(name, "gdpjax", "bracket", bounds, sweep=False),
        Peer("gdpjax moments_accountant_epsilon", "gdpjax", "upper", moments_accountant, sweep=False),
    ]
    for rtol in RTOLS:
        narrower = functools.partial(bounds, rtol=rtol)
        peers.append(Peer(f"{name}, rtol={rtol:g}", "gdpjax", "bracket", narrower, sweep=False))
    return peers


# ---- The race ----


def race(grid: Grid, subset: int, repetitions: int, patience: float, sweep_seconds: float) -> dict[str, Any]:
    """Return time and values of every library that is there, by configuration, and of our batched calls in between."""
    everybody = (*one_at_a_time(), *PEERS)
    missing = {peer.name: reason for peer in everybody if (reason := machine.why_missing(peer.module))}
    present = [peer for peer in everybody if peer.name not in missing]
    logging.getLogger("absl").setLevel(logging.ERROR)

    # Imports, compilations and caches are not timed.
    for peer in present:
        clocks.attempt(_call(peer, grid, 0), CALL_LIMIT)

    batched: dict[str, list[clocks.Times]] = {name: [] for name in BATCHED}
    outcomes: dict[str, Outcomes] = {peer.name: [[] for _ in range(subset)] for peer in present}
    for repetition in range(repetitions):
        # The slowest are not repeated: their first times alone are longer than any disturbance.
        taking_part = present
        if repetition > 0:
            taking_part = [peer for peer in present if _spent(outcomes[peer.name]) < patience]

        # Our batched calls, then everybody's calls for one configuration after the other.
        for name, times in batched.items():
            times.append(clocks.time_call(functools.partial(BATCHED[name], *grid)))
        for i in range(subset):
            for peer in taking_part:
                outcomes[peer.name][i].append(clocks.attempt(_call(peer, grid, i), CALL_LIMIT))

    for peer in present:
        if peer.sweep:
            outcomes[peer.name] += _sweep(peer, grid, subset, sweep_seconds)
    return {"missing": missing, "present": present, "outcomes": outcomes, "batched": batched}


def _call(peer: Peer, grid: Grid, i: int) -> Callable[[], Epsilon]:
    """Return a library's call for one configuration."""
    return functools.partial(peer.epsilon, *grid.run(i))


def _spent(outcomes: Outcomes) -> float:
    """Return the seconds of all calls."""
    return sum(outcome.times.wall for repeated in outcomes for outcome in repeated)


def _sweep(peer: Peer, grid: Grid, start: int, seconds: float) -> Outcomes:
    """Go on over the rest of the grid, once each, until the time is up."""
    done: Outcomes = []
    for i in range(start, grid.delta.size):
        if _spent(done) > seconds:
            break
        done.append([clocks.attempt(_call(peer, grid, i), CALL_LIMIT)])
    return done


# ---- What the race says ----


def value_of(repeated: list[clocks.Outcome]) -> Epsilon:
    """Return what a library says of a configuration, with None for NaN and infinity."""
    value = repeated[0].value or Epsilon()
    return Epsilon(*(number if number is not None and math.isfinite(number) else None for number in value))


def centre(value: Epsilon) -> float | None:
    """Return the one number that a user would quote."""
    numbers = (value.estimate, value.upper, value.lower)
    return next((number for number in numbers if number is not None), None)


def reference(grid: Grid) -> tuple[Column, Column]:
    """Return the narrow certified brackets of the grid, with which everybody is compared."""
    return accounting.epsilon_bounds(*grid, rtol=REFERENCE_RTOL)


def summarize(grid: Grid, subset: int, raced: dict[str, Any], lower: Column, upper: Column) -> dict[str, Any]:
    """Return the tables of the race, against our narrow brackets ``lower``, ``upper`` of the whole grid."""
    outcomes: dict[str, Outcomes] = raced["outcomes"]
    values = {name: [value_of(repeated) for repeated in each] for name, each in outcomes.items()}

    # The middle is what everybody's numbers are compared with.
    certified = [float(middle) for middle in 0.5 * (lower + upper)]
    libraries = {}
    for peer in raced["present"]:
        own = values[peer.name]
        libraries[peer.name] = {
            "standing": peer.standing,
            **_speed(outcomes[peer.name][:subset]),
            "configurations": len(own),
            "failures": _failures(outcomes[peer.name], own),
            "relative_width": _quantiles([_width(value) for value in own]),
            "relative_error": _quantiles(_errors(own, certified)),
            "wrong_side": _wrong_sides(grid, own, lower, upper),
        }
    arbiter.judge(libraries)
    return {"libraries": libraries, "missing": raced["missing"]}


def _speed(outcomes: Outcomes) -> dict[str, float]:
    """Return configurations/s from the median time of each configuration; failures count as time spent."""
    seconds = [statistics.median(outcome.times.wall for outcome in repeated) for repeated in outcomes]
    processor = [statistics.median(outcome.times.cpu for outcome in repeated) for repeated in outcomes]
    return {"per_second": len(outcomes) / sum(seconds), "per_cpu_second": len(outcomes) / sum(processor)}


def _failures(outcomes: Outcomes, values: list[Epsilon]) -> dict[str, int]:
    """Return how often which error was raised, or no finite number given."""
    return collections.Counter(
        repeated[0].error or "not a finite number"
        for repeated, value in zip(outcomes, values, strict=True)
        if centre(value) is None
    )


def _wrong_sides(grid: Grid, values: list[Epsilon], lower: Column, upper: Column) -> list[dict[str, Any]]:
    """Return every "bound" on the wrong side of our bracket: one of the two is false."""
    wrong = []
    for i, value in enumerate(values):
        if value.upper is not None and value.upper < lower[i]:
            side, claimed = "upper", value.upper
        elif value.lower is not None and value.lower > upper[i]:
            side, claimed = "lower", value.lower
        else:
            continue
        certified = [lower[i], upper[i]]
        wrong.append({**grid.describe(i), "side": side, "claimed": claimed, "certified": certified})
    return wrong


def _width(value: Epsilon) -> float | None:
    """Return the width of a bracket over its upper end."""
    if value.lower is None or value.upper is None:
        return None
    return (value.upper - value.lower) / value.upper


def _errors(values: list[Epsilon], truths: Sequence[float]) -> list[float | None]:
    """Return the relative errors, None where a library says nothing."""
    pairs = zip(map(centre, values), truths, strict=False)
    return [None if number is None else number / truth - 1 for number, truth in pairs]


def _quantiles(values: Sequence[float | None]) -> dict[str, float] | None:
    """Return the median and the largest size of the numbers that are there, and both ends with their sign."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    sizes = [abs(number) for number in numbers]
    return {
        "median_size": statistics.median(sizes),
        "max_size": max(sizes),
        "min": min(numbers),
        "max": max(numbers),
        "count": len(numbers),
    }


# ---- Ours alone ----


def accuracy_of_ours(grid: Grid) -> dict[str, Any]:
    """Return relative widths and errors of our numbers over the whole grid."""
    lower, upper = accounting.epsilon_bounds(*grid)
    moments = accounting.moments_accountant_epsilon(*grid)
    middle = 0.5 * (lower + upper)
    widths = (upper - lower) / upper
    return {
        "epsilon": {"min": float(middle.min()), "max": float(middle.max())},
        "epsilon_bounds": {
            "relative_width": _quantiles(widths.tolist()),
            "wider_than_target": int(np.sum(widths > WIDTH_TARGET)),
        },
        "moments_accountant_epsilon": {
            "relative_error": _quantiles((moments / middle - 1).tolist()),
            "below_certified_lower": int(np.sum(moments < lower)),
        },
    }
