"""The exact Gaussian functions: a million points a call beside the papers' formulas, and errors at 60 digits."""

import functools
import importlib
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import clocks, turns
from benchmarks.accounting import ours, paper
from benchmarks.accounting.grid import Points, make_points

CHECKED = 200
"""Points whose values are compared with the exact ones."""
DIGITS = 60
"""Of the exact values."""
CALL_LIMIT = 10.0
"""Seconds after which a peer's call for one point is given up."""

OfPoint = Callable[[int], float]
"""The value at the point of a number."""


def measure(size: int, repetitions: int) -> dict[str, Any]:
    """Return rates, compilations and errors of every elementwise function, ours and the peers'."""
    points = make_points(size)
    results = {}
    for name, function in ours.FUNCTIONS.items():
        if function.elementwise:
            results[name] = _measure_function(name, function, points, repetitions)
    return results


def _measure_function(name: str, function: ours.Function, points: Points, repetitions: int) -> dict[str, Any]:
    """Return the results of one function."""
    size = points.mu.size
    columns = ours.arguments(name, size)

    # Calls with the same shapes: the first one may compile, the second one, with other values, may not.
    at_start = clocks.compilations()
    values = {"gdpjax": function.call(*columns)}
    after_first = clocks.compilations()
    function.call(*(column[::-1] for column in columns))
    after_second = clocks.compilations()

    # On whole arrays: ours, and the papers' formula where it takes arrays.
    calls: dict[str, Callable[[], Any]] = {"gdpjax": functools.partial(function.call, *columns)}
    formula = _whole_array_peers(points).get(name)
    if formula is not None:
        calls["paper"] = formula
        values["paper"] = formula()
    times = turns.in_turn(calls, repetitions)
    rates = {library: clocks.rates(size, of_library) for library, of_library in times.items()}

    # The peers that take one point a call, as many as are checked.
    for library, of_point in _one_by_one_peers(points).get(name, {}).items():
        calls_of_points = [functools.partial(_number, of_point, i) for i in range(min(CHECKED, size))]
        outcomes = [clocks.attempt(call, CALL_LIMIT) for call in calls_of_points]
        values[library] = [outcome.value for outcome in outcomes]
        seconds = [outcome.times.wall for outcome in outcomes if outcome.error is None]
        if seconds:
            ends = {"min": 1 / max(seconds), "max": 1 / min(seconds)}
            rates[library] = {"median": 1 / statistics.mean(seconds), **ends, "repetitions": 1}

    errors = {library: _errors(name, points, of_library) for library, of_library in values.items()}
    return {
        "points": size,
        "per_second": rates,
        "compilations": {
            "first_call": after_first - at_start,
            "other_values": after_second - after_first,
        },
        "relative_error": errors,
    }


# ---- The peers ----


def _whole_array_peers(points: Points) -> dict[str, Callable[[], Any]]:
    """Return the papers' formula beside each function of ours that it computes for arrays."""
    return {
        "Gaussian": lambda: paper.tradeoff(points.alpha, points.mu),
        "clt_mu_poisson": lambda: paper.clt_mu(points.noise_multiplier, points.sampling_prob, points.num_steps),
        "gdp_delta": lambda: paper.delta(points.epsilon, points.mu),
    }


def _one_by_one_peers(points: Points) -> dict[str, dict[str, OfPoint]]:
    """Return the peers that take one point a call, by function of ours and library."""
    mu, epsilon, delta = points.mu, points.epsilon, points.delta

    # The others have the noise's standard deviation for 1 / mu.
    def dp_accounting(name: str) -> Callable[[float, float], float]:
        return getattr(importlib.import_module("dp_accounting"), name)

    def autodp(i: int) -> float:
        return importlib.import_module("autodp.dp_bank").get_eps_ana_gaussian(1 / mu[i], delta[i])

    return {
        "gdp_epsilon": {
            "paper": lambda i: paper.epsilon(delta[i], mu[i]),
            "dp_accounting": lambda i: dp_accounting("get_epsilon_gaussian")(1 / mu[i], delta[i]),
            "autodp": autodp,
        },
        "gdp_mu": {
            "paper": lambda i: paper.mu(epsilon[i], delta[i]),
            "dp_accounting": lambda i: 1 / dp_accounting("get_sigma_gaussian")(epsilon[i], delta[i]),
        },
    }


def _number(of_point: OfPoint, i: int) -> float:
    return float(of_point(i))


# ---- Errors ----


def _errors(name: str, points: Points, values: Any) -> dict[str, Any] | None:
    """Return the largest relative error over the first points, and the number of failures; None without mpmath."""
    try:
        import mpmath
    except ImportError:
        return None
    checked = values[:CHECKED]
    with mpmath.workdps(DIGITS):
        pairs = enumerate(checked)
        errors = [_relative_error(mpmath, name, points, i, value) for i, value in pairs if value is not None]
    return {"max": max(errors, default=None), "checked": len(errors), "failed": len(checked) - len(errors)}


def _relative_error(mp: Any, name: str, points: Points, i: int, value: float) -> float:
    """Return the error against the formula at 60 digits; of a root, the Newton step from it."""
    at = {field: mp.mpf(float(column[i])) for field, column in points._asdict().items()}
    value = mp.mpf(float(value))

    def delta(epsilon: Any, mu: Any) -> Any:
        above = mp.ncdf(-epsilon / mu + mu / 2)
        below = mp.ncdf(-epsilon / mu - mu / 2)
        return above - mp.exp(epsilon) * below

    match name:
        case "Gaussian":
            quantile = mp.sqrt(2) * mp.erfinv(1 - 2 * at["alpha"])
            exact = mp.ncdf(quantile - at["mu"])
        case "clt_mu_poisson":
            of_one_step = mp.expm1(at["noise_multiplier"] ** -2)
            exact = at["sampling_prob"] * mp.sqrt(at["num_steps"] * of_one_step)
        case "gdp_delta":
            exact = delta(at["epsilon"], at["mu"])
        case "gdp_epsilon":
            # The derivative of delta by epsilon.
            slope = -mp.exp(value) * mp.ncdf(-value / at["mu"] - at["mu"] / 2)
            exact = value - (delta(value, at["mu"]) - at["delta"]) / slope
        case _:
            # The derivative of delta by mu.
            slope = mp.npdf(-at["epsilon"] / value + value / 2)
            exact = value - (delta(at["epsilon"], value) - at["delta"]) / slope
    return float(abs(value - exact) / abs(exact))
