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

from benchmarks import clocks, machine, turns
from benchmarks.accounting import arbiter, ours
from benchmarks.accounting.grid import Grid
from benchmarks.accounting.peers import PEERS, Epsilon, Peer, gdpnum_mu
from gdpjax import accounting

CALL_LIMIT = 30.0
"""Seconds after which a call is given up."""
RTOLS = (1e-2, 1e-4, 3e-5, 1e-6)
REFERENCE_RTOL = 1e-5
PRV = "prv_accountant"
GRID_FUNCTIONS = tuple(name for name, function in ours.FUNCTIONS.items() if not function.elementwise)
"""Our functions that take whole runs."""

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

    batched: dict[str, list[clocks.Times]] = {name: [] for name in GRID_FUNCTIONS}
    outcomes: dict[str, Outcomes] = {peer.name: [[] for _ in range(subset)] for peer in present}
    for repetition in range(repetitions):
        # The slowest are not repeated: their first times alone are longer than any disturbance.
        taking_part = present
        if repetition > 0:
            taking_part = [peer for peer in present if _spent(outcomes[peer.name]) < patience]

        # Our batched calls, then everybody's calls for one configuration after the other.
        for name, times in batched.items():
            on_grid = functools.partial(ours.FUNCTIONS[name].call, *grid)
            times.append(clocks.time_call(on_grid))
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

    # What everybody's numbers are compared with.
    certified = [float(middle) for middle in 0.5 * (lower + upper)]
    by_prv = [value.estimate for value in values.get(PRV, [])]

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
            "relative_error_against_prv": _quantiles(_errors(own, by_prv)),
            "wrong_side": _wrong_sides(grid, own, lower, upper),
        }
    arbiter.judge(libraries)

    # What everybody says of each configuration of the subset.
    subset_rows = []
    for i in range(subset):
        said = {name: own[i]._asdict() for name, own in values.items()}
        subset_rows.append({**grid.describe(i), "certified": [lower[i], upper[i]], "values": said})
    return {"libraries": libraries, "missing": raced["missing"], "subset": subset_rows}


def _speed(outcomes: Outcomes) -> dict[str, Any]:
    """Return configurations/s from the median time of each configuration; failures count as time spent."""
    # By configuration: the seconds of each repetition, their median, and that of the processor's.
    seconds = [[outcome.times.wall for outcome in repeated] for repeated in outcomes]
    medians = [statistics.median(each) for each in seconds]
    processor = [statistics.median(outcome.times.cpu for outcome in repeated) for repeated in outcomes]

    # By repetition: the seconds of all configurations.
    of_repetitions = [sum(of_repetition) for of_repetition in zip(*seconds, strict=True)]
    count = len(outcomes)
    return {
        "per_second": count / sum(medians),
        "per_cpu_second": count / sum(processor),
        "per_second_range": [count / max(of_repetitions), count / min(of_repetitions)],
        "repetitions": len(of_repetitions),
        "seconds": _extent(medians),
    }


def _extent(numbers: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(numbers), "min": min(numbers), "max": max(numbers)}


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


def _errors(values: list[Epsilon], truths: Sequence[float | None]) -> list[float | None]:
    """Return the relative errors as far as there are truths, None where either says nothing."""
    pairs = zip(map(centre, values), truths, strict=False)
    return [number / truth - 1 if number is not None and truth else None for number, truth in pairs]


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


# ---- Ours alone, and mu ----


def compare_mu(grid: Grid, subset: int, repetitions: int) -> dict[str, Any] | None:
    """Return gdpnum's mu beside `mu_bounds`. The statements differ, so that only speed and ratio are given."""
    try:
        gdpnum_mu(*grid.run(0)[:3])
    except ImportError:
        return None
    columns = [column[:subset] for column in grid[:3]]
    bounds = accounting.mu_bounds(*columns)

    def their_mus() -> list[float | None]:
        calls = [functools.partial(gdpnum_mu, *grid.run(i)[:3]) for i in range(subset)]
        return [clocks.attempt(call, CALL_LIMIT).value for call in calls]

    calls = {"gdpjax mu_bounds": functools.partial(accounting.mu_bounds, *columns), "gdpnum": their_mus}
    times = turns.in_turn(calls, repetitions)
    pairs = zip(their_mus(), bounds.upper, strict=True)
    ratios = [mu / float(upper) for mu, upper in pairs if mu is not None]
    widths = (bounds.upper - bounds.lower) / bounds.upper
    return {
        "per_second": {name: clocks.rates(subset, of_call) for name, of_call in times.items()},
        "relative_width": _quantiles([float(width) for width in widths]),
        "gdpnum_over_certified_upper": _extent(ratios),
    }


def count_compilations(grid: Grid) -> dict[str, dict[str, int]]:
    """Count how often our functions compile for the grid in one call, again, and for one configuration, and others."""
    calls: dict[str, list[Any]] = {
        "first_call": [grid],
        "other_values": [[column[::-1] for column in grid]],
        "one_alone": [grid.run(0)],
        "others_alone": [grid.run(i) for i in range(1, 10)],
    }
    counts: dict[str, dict[str, int]] = {name: {} for name in GRID_FUNCTIONS}
    for name, of_function in counts.items():
        for what, arguments in calls.items():
            before = clocks.compilations()
            for each in arguments:
                ours.FUNCTIONS[name].call(*each)
            of_function[what] = clocks.compilations() - before
    return counts


def accuracy_of_ours(lower: Column, upper: Column, moments: Column) -> dict[str, Any]:
    """Return relative widths and errors of our numbers over the whole grid."""
    middle = 0.5 * (lower + upper)
    widths = (upper - lower) / upper
    errors = moments / middle - 1
    return {
        "epsilon": _extent([float(each) for each in middle]),
        "epsilon_bounds": {
            "relative_width": _quantiles([float(width) for width in widths]),
            "wider_than_target": int(np.sum(widths > ours.WIDTH_TARGET)),
        },
        "moments_accountant_epsilon": {
            "relative_error": _quantiles([float(error) for error in errors]),
            "below_certified_lower": int(np.sum(moments < lower)),
        },
    }
