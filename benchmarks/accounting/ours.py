"""The functions of gdpjax that are measured, their arguments and their targets."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.accounting.grid import make_grid, make_points
from gdpjax import accounting, tradeoff

FIRST_CALL_TARGET = 2.0
MEMORY_TARGET = 2e9
WIDTH_TARGET = 1e-3


class Function(NamedTuple):
    """A public function, the columns of the grid or of the points it takes, and the rate it should reach."""

    call: Callable[..., Any]
    columns: tuple[str, ...]
    target: float | None
    elementwise: bool


def _runs(call: Callable[..., Any], target: float | None) -> Function:
    return Function(call, ("noise_multiplier", "sampling_prob", "num_steps", "delta"), target, False)


def _points(call: Callable[..., Any], columns: str, target: float) -> Function:
    return Function(call, tuple(columns.split()), target, True)


FUNCTIONS = {
    "epsilon_bounds": _runs(accounting.epsilon_bounds, 500),
    "moments_accountant_epsilon": _runs(accounting.moments_accountant_epsilon, 1_000),
    "clt_epsilon": _runs(accounting.clt_epsilon, None),
    "Gaussian": _points(lambda alpha, mu: tradeoff.Gaussian(mu)(alpha), "alpha mu", 1e6),
    "clt_mu_poisson": _points(accounting.clt_mu_poisson, "noise_multiplier sampling_prob num_steps", 1e6),
    "gdp_delta": _points(accounting.gdp_delta, "epsilon mu", 1e6),
    "gdp_epsilon": _points(accounting.gdp_epsilon, "delta mu", 2e5),
    "gdp_mu": _points(accounting.gdp_mu, "epsilon delta", 2e5),
}


def arguments(name: str, size: int) -> tuple[np.ndarray, ...]:
    """Return the first ``size`` rows of the grid, or points, that function ``name`` takes."""
    function = FUNCTIONS[name]
    source = make_points(size) if function.elementwise else make_grid(size)
    return tuple(getattr(source, column) for column in function.columns)
