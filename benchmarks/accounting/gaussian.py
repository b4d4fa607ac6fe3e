"""The exact Gaussian functions: a million points a call beside the papers' formulas, and errors at 60 digits."""

import importlib
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks import clocks
from benchmarks.accounting import ours, paper
from benchmarks.accounting.grid import Points, make_points

CHECKED = 200


def _whole_array_peers(points: Points) -> dict[str, Callable[[], Any]]:
    return {
        "gdp_tradeoff": lambda: paper.tradeoff(points.alpha, points.mu),
        "clt_mu_poisson": lambda: paper.clt_mu(points.noise_multiplier, points.sampling_prob, points.num_steps),
        "gdp_delta": lambda: paper.delta(points.epsilon, points.mu),
    }


def _one_by_one_peers(points: Points) -> dict[str, dict[str, Callable[[int], float]]]:
    """By function of ours and library: the value at point i."""

    def dp_accounting(name: str, *arguments: float) -> float:
        return getattr(importlib.import_module("dp_accounting"), name)(*arguments)

    def autodp(i: int) -> float:
        return importlib.import_module("autodp.dp_bank").get_eps_ana_gaussian(1 / points.mu[i], points.delta[i])

    return {
        "gdp_epsilon": {
            "paper": lambda i: paper.epsilon(points.delta[i], points.mu[i]),
            "dp_accounting": lambda i: dp_accounting("get_epsilon_gaussian", 1 / points.mu[i], points.delta[i]),
            "autodp": autodp,
        },
        "gdp_mu": {
            "paper": lambda i: paper.mu(points.epsilon[i], points.delta[i]),
            "dp_accounting": lambda i: 1 / dp_accounting("get_sigma_gaussian", points.epsilon[i], points.delta[i]),
        },
    }


def measure(size: int, repetitions: int) -> dict[str, Any]:
    """Rates, compilations and errors of every elementwise function, ours and the peers'."""
    points = make_points(size)
    peers = _whole_array_peers(points)
    results = {}
    for name, function in ours.FUNCTIONS.items():
        if not function.elementwise:
            continue
        columns = ours.arguments(name, size)
        compiled = clocks.compilations()
        values = {"gdpjax": function.call(*columns)}
        first = clocks.compilations()
        function.call(*(column[::-1] for column in columns))
        counts = {"first_call": first - compiled, "other_values": clocks.compilations() - first}
        calls: dict[str, Callable[[], Any]] = {"gdpjax": lambda call=function.call, columns=columns: call(*columns)}
        if name in peers:
            calls["paper"], values["paper"] = peers[name], peers[name]()
        times = clocks.in_turn(calls, repetitions)
        rates = {library: clocks.rates(size, each) for library, each in times.items()}
        single = {library: _singly(call, size) for library, call in _one_by_one_peers(points).get(name, {}).items()}
        values |= {library: numbers for library, (_, numbers) in single.items()}
        results[name] = {
            "points": size,
            "per_second": rates | {library: rate for library, (rate, _) in single.items() if rate},
            "compilations": counts,
            "relative_error": {library: _errors(name, points, numbers) for library, numbers in values.items()},
        }
    return results


def _singly(call: Callable[[int], float], size: int) -> tuple[dict[str, Any] | None, list[float | None]]:
    """Rate of calls for one point each, and the values; None where it failed."""
    outcomes = [clocks.attempt(lambda i=i: float(call(i)), 10.0) for i in range(min(CHECKED, size))]
    done = [each.times.wall for each in outcomes if each.error is None]
    rate = 1 / statistics.mean(done) if done else None
    rates = {"median": rate, "min": 1 / max(done), "max": 1 / min(done), "repetitions": 1} if done else None
    return rates, [each.value for each in outcomes]


def _errors(name: str, points: Points, values: Any) -> dict[str, Any] | None:
    """Return the largest relative error over the first points, and the number of failures."""
    try:
        import mpmath
    except ImportError:
        return None
    with mpmath.workdps(60):
        errors = [
            _relative_error(mpmath, name, points, i, values[i])
            for i in range(min(CHECKED, len(values)))
            if values[i] is not None
        ]
    failed = sum(value is None for value in values[:CHECKED])
    return {"max": max(errors, default=None), "checked": len(errors), "failed": failed}


def _relative_error(mp: Any, name: str, points: Points, i: int, value: float) -> float:
    """Against the formula at 60 digits; of a root, the Newton step from it."""
    at = {field: mp.mpf(float(column[i])) for field, column in points._asdict().items()}
    value = mp.mpf(float(value))

    def delta(epsilon: Any, mu: Any) -> Any:
        return mp.ncdf(-epsilon / mu + mu / 2) - mp.exp(epsilon) * mp.ncdf(-epsilon / mu - mu / 2)

    if name == "gdp_tradeoff":
        exact = mp.ncdf(mp.sqrt(2) * mp.erfinv(1 - 2 * at["alpha"]) - at["mu"])
    elif name == "clt_mu_poisson":
        exact = at["sampling_prob"] * mp.sqrt(at["num_steps"] * mp.expm1(at["noise_multiplier"] ** -2))
    elif name == "gdp_delta":
        exact = delta(at["epsilon"], at["mu"])
    elif name == "gdp_epsilon":
        slope = -mp.exp(value) * mp.ncdf(-value / at["mu"] - at["mu"] / 2)
        exact = value - (delta(value, at["mu"]) - at["delta"]) / slope
    else:
        slope = mp.npdf(-at["epsilon"] / value + value / 2)
        exact = value - (delta(at["epsilon"], value) - at["delta"]) / slope
    return float(abs(value - exact) / abs(exact))
