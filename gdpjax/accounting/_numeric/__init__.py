"""Certified composition of Poisson-subsampled Gaussian steps by contour integration.

The method, in the order in which it is derived: `_moments` (one step), `_line` (the composition along a line),
`_contour` (delta and its bracket), `_plan` (where the line goes), `_solve` (epsilon from delta), `_driver` (directions
and retries), `_tradeoff` and `_dominating` (the curve and mu), `_batch` (arrays), `_bounds` (all of it, per run and per
run in phases).
"""

from gdpjax.accounting._numeric._bounds import (
    delta_of_phases,
    delta_of_runs,
    epsilon_of_phases,
    epsilon_of_runs,
    estimate_of_phases,
    estimate_of_runs,
    mu_of_phases,
    mu_of_runs,
    tradeoff_of_phases,
    tradeoff_of_runs,
)

__all__ = [
    "delta_of_phases",
    "delta_of_runs",
    "epsilon_of_phases",
    "epsilon_of_runs",
    "estimate_of_phases",
    "estimate_of_runs",
    "mu_of_phases",
    "mu_of_runs",
    "tradeoff_of_phases",
    "tradeoff_of_runs",
]
