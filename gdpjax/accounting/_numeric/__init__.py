"""Certified composition of Poisson-subsampled Gaussian steps by contour integration.

The method, in the order in which it is derived: `_moments` (one step), `_line` (the composition along a line),
`_contour` (delta and its bracket), `_plan` (where the line goes), `_solve` (epsilon from delta), `_driver` (directions
and retries), `_tradeoff` and `_dominating` (the curve and mu), `_batch` (arrays), `_bounds` (the public functions).
"""

from gdpjax.accounting._numeric._bounds import (
    delta_bounds,
    epsilon_bounds,
    epsilon_estimate,
    mu_bounds,
    phases_delta_bounds,
    phases_epsilon_bounds,
    tradeoff_bounds,
)

__all__ = [
    "delta_bounds",
    "epsilon_bounds",
    "epsilon_estimate",
    "mu_bounds",
    "phases_delta_bounds",
    "phases_epsilon_bounds",
    "tradeoff_bounds",
]
