"""Everybody on the common grid: how fast, how far from the truth, and on which side.

The first ``subset`` configurations are done by every library in turn, and again for each repetition unless the library
has already taken ``patience`` seconds; those with numbers of their own then go on over the rest of the grid for
``sweep_seconds``. The reference is our certified bracket at the relative width `REFERENCE_RTOL`, which is itself on
trial: what contradicts it is listed, and `arbiter` says who is right.
"""

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from benchmarks import clocks
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


def one_at_a_time() -> tuple[Peer, ...]:
    """Return our functions called as the peers are, one configuration each."""

    def bounds(*run: Any, rtol: float = 1e-3) -> Epsilon:
        lower, upper = accounting.epsilon_bounds(*run, rtol=rtol)
        return Epsilon(lower=float(lower), upper=float(upper))

    def moments_accountant(*run: Any) -> Epsilon:
        return Epsilon(upper=float(accounting.moments_accountant_epsilon(*run)))

    contenders = [
        ("gdpjax epsilon_bounds", "bracket", bounds),
        ("gdpjax moments_accountant_epsilon", "upper", moments_accountant),
    ]
    for rtol in RTOLS:
        narrower = functools.partial(bounds, rtol=rtol)
        contenders.append((f"gdpjax epsilon_bounds, rtol={rtol:g}", "bracket", narrower))

    peers = []
    for name, standing, call in contenders:
        peers.append(Peer(name, "gdpjax", standing, call, sweep=False))
    return tuple(peers)


# ---- The race ----


def race(grid: Grid, subset: int, repetitions: int, patience: float, sweep_seconds: float) -> dict[str, Any]:
    """Return time and values of every library that is there, by configuration, and of our batched calls in between."""
    missing: dict[str, str] = {}
    present: list[Peer] = []
    for peer in (*one_at_a_time(), *PEERS):
        reason = peer.missing()
        if reason:
            missing[peer.name] = reason
        else:
            present.append(peer)

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
            on_grid = functools.partial(ours.FUNCTIONS[name].call, *grid.columns())
            times.append(clocks.time_call(on_grid))
        for i in range(subset):
            for peer in taking_part:
                outcomes[peer.name][i].append(clocks.attempt(_call(peer, grid, i), CALL_LIMIT))

    for peer in present:
        if peer.sweep:
            outcomes[peer.name] += _sweep(peer, grid, subset, sweep_seconds)
    return {
        "missing": missing,
        "present": present,
        "outcomes": outcomes,
        "batched": batched,
    }


def _call(peer: Peer, grid: Grid, i: int) -> Callable[[], Epsilon]:
    """Return a library's call for one configuration."""
    return functools.partial(peer.epsilon, *grid.run(i))


def _spent(outcomes: Outcomes) -> float:
    """Return the seconds of all calls."""
    seconds = 0.0
    for repeated in outcomes:
        for outcome in repeated:
            seconds += outcome.times.wall
    return seconds


def _sweep(peer: Peer, grid: Grid, start: int, seconds: float) -> Outcomes:
    """Go on over the rest of the grid, once each, until the time is up."""
    done: Outcomes = []
    for i in range(start, grid.delta.size):
        if _spent(done) > seconds:
            break
        outcome = clocks.attempt(_call(peer, grid, i), CALL_LIMIT)
        done.append([outcome])
    return done


# ---- What the race says ----


def value_of(repeated: list[clocks.Outcome]) -> Epsilon:
    """Return what a library says of a configuration, with None for NaN and infinity."""
    value = repeated[0].value or Epsilon()
    return Epsilon(
        lower=_finite(value.lower),
        estimate=_finite(value.estimate),
        upper=_finite(value.upper),
    )


def _finite(number: float | None) -> float | None:
    """Return the number, or None if it is none or not finite."""
    if number is None or not math.isfinite(number):
        return None
    return number


def centre(value: Epsilon) -> float | None:
    """Return the one number that a user would quote."""
    for number in (value.estimate, value.upper, value.lower):
        if number is not None:
            return number
    return None


def reference(grid: Grid) -> tuple[Column, Column]:
    """Return the narrow certified brackets of the grid, with which everybody is compared."""
    return accounting.epsilon_bounds(*grid.columns(), rtol=REFERENCE_RTOL)


def summarize(grid: Grid, subset: int, raced: dict[str, Any], lower: Column, upper: Column) -> dict[str, Any]:
    """Return the tables of the race, against our narrow brackets ``lower``, ``upper`` of the whole grid."""
    outcomes: dict[str, Outcomes] = raced["outcomes"]
    values: dict[str, list[Epsilon]] = {}
    for name, of_library in outcomes.items():
        values[name] = [value_of(repeated) for repeated in of_library]

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
        row = {
            **grid.describe(i),
            "certified": [lower[i], upper[i]],
            "values": said,
        }
        subset_rows.append(row)
    return {
        "libraries": libraries,
        "missing": raced["missing"],
        "subset": subset_rows,
    }


def _speed(outcomes: Outcomes) -> dict[str, Any]:
    """Return configurations/s from the median time of each configuration; failures count as time spent."""
    # By configuration: the seconds of each repetition, their median, and that of the processor's.
    seconds = []
    medians = []
    processor_medians = []
    for repeated in outcomes:
        of_configuration = [outcome.times.wall for outcome in repeated]
        seconds.append(of_configuration)
        medians.append(statistics.median(of_configuration))
        processor_medians.append(statistics.median(outcome.times.cpu for outcome in repeated))

    # By repetition: the seconds of all configurations.
    of_repetitions = [sum(of_repetition) for of_repetition in zip(*seconds, strict=True)]
    count = len(outcomes)
    return {
        "per_second": count / sum(medians),
        "per_cpu_second": count / sum(processor_medians),
        "per_second_range": [count / max(of_repetitions), count / min(of_repetitions)],
        "repetitions": len(of_repetitions),
        "seconds": {
            "median": statistics.median(medians),
            "min": min(medians),
            "max": max(medians),
        },
    }


def _failures(outcomes: Outcomes, values: list[Epsilon]) -> dict[str, int]:
    """Return how often which error was raised, or no finite number given."""
    counts: dict[str, int] = {}
    for repeated, value in zip(outcomes, values, strict=True):
        if centre(value) is None:
            reason = repeated[0].error or "not a finite number"
            counts[reason] = counts.get(reason, 0) + 1
    return counts


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
        contradiction = {
            **grid.describe(i),
            "side": side,
            "claimed": claimed,
            "certified": [lower[i], upper[i]],
        }
        wrong.append(contradiction)
    return wrong


def _width(value: Epsilon) -> float | None:
    """Return the width of a bracket over its upper end."""
    if value.lower is None or value.upper is None:
        return None
    return (value.upper - value.lower) / value.upper


def _errors(values: list[Epsilon], truths: Sequence[float | None]) -> list[float | None]:
    """Return the relative errors as far as there are truths, None where either says nothing."""
    errors = []
    for value, truth in zip(values, truths, strict=False):
        number = centre(value)
        if number is None or not truth:
            errors.append(None)
        else:
            errors.append(number / truth - 1)
    return errors


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
    columns = [column[:subset] for column in grid.columns()[:3]]
    bounds = accounting.mu_bounds(*columns)

    def our_mus() -> Any:
        return accounting.mu_bounds(*columns)

    def their_mus() -> list[float | None]:
        mus = []
        for i in range(subset):
            call = functools.partial(gdpnum_mu, *grid.run(i)[:3])
            mus.append(clocks.attempt(call, CALL_LIMIT).value)
        return mus

    calls = {"gdpjax mu_bounds": our_mus, "gdpnum": their_mus}
    times = clocks.in_turn(calls, repetitions)

    ratios = []
    for mu, upper in zip(their_mus(), bounds.upper, strict=True):
        if mu is not None:
            ratios.append(mu / float(upper))
    if not ratios:
        return None
    widths = (bounds.upper - bounds.lower) / bounds.upper
    return {
        "per_second": {name: clocks.rates(subset, of_call) for name, of_call in times.items()},
        "relative_width": _quantiles([float(width) for width in widths]),
        "gdpnum_over_certified_upper": {
            "median": statistics.median(ratios),
            "min": min(ratios),
            "max": max(ratios),
        },
    }


def count_compilations(grid: Grid) -> dict[str, dict[str, int]]:
    """Count how often our functions compile for the grid in one call, again, and for one configuration, and others."""
    columns = grid.columns()
    reversed_columns = tuple(column[::-1] for column in columns)
    first_run = grid.run(0)
    other_runs = [grid.run(i) for i in range(1, 10)]
    counts = {}
    for name in GRID_FUNCTIONS:
        call = ours.FUNCTIONS[name].call
        counts[name] = {
            "first_call": _compiled_by(call, [columns]),
            "other_values": _compiled_by(call, [reversed_columns]),
            "one_alone": _compiled_by(call, [first_run]),
            "others_alone": _compiled_by(call, other_runs),
        }
    return counts


def _compiled_by(call: Callable[..., Any], calls: Sequence[Sequence[Any]]) -> int:
    """Count the compilations of calls with these arguments."""
    before = clocks.compilations()
    for arguments in calls:
        call(*arguments)
    return clocks.compilations() - before


def accuracy_of_ours(lower: Column, upper: Column, moments: Column) -> dict[str, Any]:
    """Return relative widths and errors of our numbers over the whole grid."""
    middle = 0.5 * (lower + upper)
    widths = (upper - lower) / upper
    errors_of_moments = moments / middle - 1
    return {
        "epsilon": {
            "min": float(middle.min()),
            "median": float(np.median(middle)),
            "max": float(middle.max()),
        },
        "epsilon_bounds": {
            "relative_width": _quantiles([float(width) for width in widths]),
            "wider_than_target": int(np.sum(widths > ours.WIDTH_TARGET)),
        },
        "moments_accountant_epsilon": {
            "relative_error": _quantiles([float(error) for error in errors_of_moments]),
            "below_certified_lower": int(np.sum(moments < lower)),
        },
    }
