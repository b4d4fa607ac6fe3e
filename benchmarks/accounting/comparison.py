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

from benchmarks import clocks
from benchmarks.accounting import arbiter, ours
from benchmarks.accounting.grid import Grid
from benchmarks.accounting.peers import PEERS, Epsilon, Peer, gdpnum_mu
from gdpjax import accounting

CALL_LIMIT = 30.0
RTOLS = (1e-2, 1e-4, 3e-5, 1e-6)
REFERENCE_RTOL = 1e-5
PRV = "prv_accountant"
GRID_FUNCTIONS = tuple(name for name, function in ours.FUNCTIONS.items() if not function.elementwise)


def one_at_a_time() -> tuple[Peer, ...]:
    """Our functions called as the peers are, one configuration each."""

    def bounds(*run: Any, rtol: float = 1e-3) -> Epsilon:
        lower, upper = accounting.epsilon_bounds(*run, rtol=rtol)
        return Epsilon(lower=float(lower), upper=float(upper))

    calls: dict[str, tuple[str, Callable[..., Epsilon]]] = {
        "epsilon_bounds": ("bracket", bounds),
        "epsilon_estimate": ("estimate", lambda *run: Epsilon(estimate=float(accounting.epsilon_estimate(*run)))),
        "moments_accountant_epsilon": (
            "upper",
            lambda *run: Epsilon(upper=float(accounting.moments_accountant_epsilon(*run))),
        ),
    }
    for rtol in RTOLS:
        calls[f"epsilon_bounds, rtol={rtol:g}"] = ("bracket", functools.partial(bounds, rtol=rtol))
    return tuple(Peer(f"gdpjax {name}", "gdpjax", *how, sweep=False) for name, how in calls.items())


def race(grid: Grid, subset: int, repetitions: int, patience: float, sweep_seconds: float) -> dict[str, Any]:
    """Time and values of every library that is there, per configuration, and of our batched calls in between."""
    libraries = (*one_at_a_time(), *PEERS)
    missing = {peer.name: reason for peer in libraries if (reason := peer.missing())}
    present = [peer for peer in libraries if peer.name not in missing]
    for peer in present:  # imports, compilations and caches
        clocks.attempt(_call(peer, grid, 0), CALL_LIMIT)
    batched = {name: [] for name in GRID_FUNCTIONS}
    outcomes: dict[str, list[list[clocks.Outcome]]] = {peer.name: [[] for _ in range(subset)] for peer in present}
    for repetition in range(repetitions):
        # The slowest are not repeated: their first times alone are longer than any disturbance.
        taking_part = [peer for peer in present if not repetition or _spent(outcomes[peer.name]) < patience]
        for name, times in batched.items():
            times.append(clocks.time_call(lambda call=ours.FUNCTIONS[name].call: call(*grid.columns())))
        for i in range(subset):
            for peer in taking_part:
                outcomes[peer.name][i].append(clocks.attempt(_call(peer, grid, i), CALL_LIMIT))
    for peer in present:
        if peer.sweep:
            outcomes[peer.name] += _sweep(peer, grid, subset, sweep_seconds)
    return {"missing": missing, "present": present, "outcomes": outcomes, "batched": batched}


def _call(peer: Peer, grid: Grid, i: int) -> Callable[[], Epsilon]:
    run = grid.run(i)
    return lambda: peer.epsilon(*run)


def _spent(rows: list[list[clocks.Outcome]]) -> float:
    return sum(each.times.wall for row in rows for each in row)


def _sweep(peer: Peer, grid: Grid, start: int, seconds: float) -> list[list[clocks.Outcome]]:
    done: list[list[clocks.Outcome]] = []
    for i in range(start, grid.delta.size):
        if _spent(done) > seconds:
            break
        done.append([clocks.attempt(_call(peer, grid, i), CALL_LIMIT)])
    return done


def value_of(outcomes: list[clocks.Outcome]) -> Epsilon:
    """What the library says of a configuration, with NaN and infinity for nothing."""
    value = outcomes[0].value or Epsilon()
    return Epsilon(*(end if end is not None and math.isfinite(end) else None for end in value))


def centre(value: Epsilon) -> float | None:
    """The one number that a user would quote."""
    return next((end for end in (value.estimate, value.upper, value.lower) if end is not None), None)


def summarize(grid: Grid, subset: int, raced: dict[str, Any], lower: np.ndarray, upper: np.ndarray) -> dict[str, Any]:
    """Tables of the race against our narrow brackets ``lower``, ``upper`` of the whole grid."""
    outcomes = raced["outcomes"]
    values = {name: [value_of(each) for each in rows] for name, rows in outcomes.items()}
    independent = [value.estimate for value in values.get(PRV, [])]
    libraries = {}
    for peer in raced["present"]:
        rows, own = outcomes[peer.name], values[peer.name]
        libraries[peer.name] = {
            "standing": peer.standing,
            **_speed(rows[:subset]),
            "configurations": len(own),
            "failures": _failures(rows, own),
            "relative_width": _quantiles([_width(value) for value in own]),
            "relative_error": _quantiles([_error(value, _middle(lower, upper, i)) for i, value in enumerate(own)]),
            "relative_error_against_prv": _quantiles(
                [_error(value, middle) for value, middle in zip(own, independent, strict=False)]
            ),
            "wrong_side": [
                {**grid.describe(i), **found} for i in range(len(own)) if (found := _wrong(own[i], lower[i], upper[i]))
            ],
        }
    arbiter.judge(libraries)
    each = {name: [value._asdict() for value in own[:subset]] for name, own in values.items()}
    subset_rows = [
        {**grid.describe(i), "certified": [lower[i], upper[i]], "values": {name: each[name][i] for name in each}}
        for i in range(subset)
    ]
    return {"libraries": libraries, "missing": raced["missing"], "subset": subset_rows}


def _speed(rows: list[list[clocks.Outcome]]) -> dict[str, Any]:
    """Configurations/s from the median time of each configuration; failures count as time spent."""
    medians = [statistics.median(each.times.wall for each in row) for row in rows]
    processor = [statistics.median(each.times.cpu for each in row) for row in rows]
    passes = [sum(each) for each in zip(*([one.times.wall for one in row] for row in rows), strict=True)]
    return {
        "per_second": len(rows) / sum(medians),
        "per_cpu_second": len(rows) / sum(processor),
        "per_second_range": [len(rows) / max(passes), len(rows) / min(passes)],
        "repetitions": len(rows[0]),
        "seconds": {"median": statistics.median(medians), "min": min(medians), "max": max(medians)},
    }


def _failures(rows: list[list[clocks.Outcome]], values: list[Epsilon]) -> dict[str, int]:
    """How often which error was raised, or no finite number given."""
    reasons = [
        row[0].error or "not a finite number" for row, value in zip(rows, values, strict=True) if centre(value) is None
    ]
    return {reason: reasons.count(reason) for reason in dict.fromkeys(reasons)}


def _wrong(value: Epsilon, lower: float, upper: float) -> dict[str, Any] | None:
    """A "bound" on the wrong side of our bracket: one of the two is false."""
    if value.upper is not None and value.upper < lower:
        return {"side": "upper", "claimed": value.upper, "certified": [lower, upper]}
    if value.lower is not None and value.lower > upper:
        return {"side": "lower", "claimed": value.lower, "certified": [lower, upper]}
    return None


def _middle(lower: np.ndarray, upper: np.ndarray, i: int) -> float:
    return 0.5 * float(lower[i] + upper[i])


def _width(value: Epsilon) -> float | None:
    if value.lower is None or value.upper is None:
        return None
    return (value.upper - value.lower) / value.upper


def _error(value: Epsilon, truth: float | None) -> float | None:
    number = centre(value)
    return None if number is None or not truth else number / truth - 1


def _quantiles(values: Sequence[float | None]) -> dict[str, float] | None:
    """Of what there is: the median and the largest size, and both ends with their sign."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    sizes = [abs(value) for value in numbers]
    ends = {"min": min(numbers), "max": max(numbers)}
    return {"median_size": statistics.median(sizes), "max_size": max(sizes), **ends, "count": len(numbers)}


def compare_mu(grid: Grid, subset: int, repetitions: int) -> dict[str, Any] | None:
    """gdpnum's mu beside `mu_bounds`. The statements differ, so that only speed and ratio are given."""
    try:
        gdpnum_mu(*grid.run(0)[:3])
    except ImportError:
        return None
    columns = [column[:subset] for column in grid.columns()[:3]]
    bounds = accounting.mu_bounds(*columns)
    calls = {
        "gdpjax mu_bounds": lambda: accounting.mu_bounds(*columns),
        "gdpnum": lambda: [clocks.attempt(lambda i=i: gdpnum_mu(*grid.run(i)[:3]), CALL_LIMIT) for i in range(subset)],
    }
    times = clocks.in_turn(calls, repetitions)
    theirs = [clocks.attempt(lambda i=i: gdpnum_mu(*grid.run(i)[:3]), CALL_LIMIT).value for i in range(subset)]
    ratio = [mu / float(upper) for mu, upper in zip(theirs, bounds.upper, strict=True) if mu is not None]
    if not ratio:
        return None
    width = (bounds.upper - bounds.lower) / bounds.upper
    return {
        "per_second": {name: clocks.rates(subset, each) for name, each in times.items()},
        "relative_width": _quantiles([float(value) for value in width]),
        "gdpnum_over_certified_upper": {"median": statistics.median(ratio), "min": min(ratio), "max": max(ratio)},
    }


def reference(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """The narrow certified brackets of the grid, that everybody is compared with."""
    return accounting.epsilon_bounds(*grid.columns(), rtol=REFERENCE_RTOL)


def count_compilations(grid: Grid) -> dict[str, dict[str, int]]:
    """How often our functions compile for the grid in one call, again, and for one configuration, and others."""
    columns, other, counts = grid.columns(), tuple(column[::-1] for column in grid.columns()), {}
    for name in GRID_FUNCTIONS:
        call = ours.FUNCTIONS[name].call
        counts[name] = {
            "first_call": _compiled_by(lambda call=call: call(*columns)),
            "other_values": _compiled_by(lambda call=call: call(*other)),
            "one_alone": _compiled_by(lambda call=call: call(*grid.run(0))),
            "others_alone": _compiled_by(lambda call=call: [call(*grid.run(i)) for i in range(1, 10)]),
        }
    return counts


def _compiled_by(call: Callable[[], Any]) -> int:
    before = clocks.compilations()
    call()
    return clocks.compilations() - before


def accuracy_of_ours(lower: np.ndarray, upper: np.ndarray, estimate: np.ndarray, moments: np.ndarray) -> dict[str, Any]:
    """Relative widths and errors of our numbers over the whole grid."""
    middle = 0.5 * (lower + upper)
    widths = [float(value) for value in (upper - lower) / upper]
    return {
        "epsilon": {"min": float(middle.min()), "median": float(np.median(middle)), "max": float(middle.max())},
        "epsilon_bounds": {
            "relative_width": _quantiles(widths),
            "wider_than_target": sum(width > ours.WIDTH_TARGET for width in widths),
        },
        "epsilon_estimate": {
            "relative_error": _quantiles([float(value) for value in estimate / middle - 1]),
            "outside_certified": int(np.sum((estimate < lower) | (estimate > upper))),
        },
        "moments_accountant_epsilon": {
            "relative_error": _quantiles([float(value) for value in moments / middle - 1]),
            "below_certified_lower": int(np.sum(moments < lower)),
        },
    }
