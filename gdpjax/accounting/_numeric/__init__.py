"""Certified composition of subsampled Gaussian steps and of events of bounded loss, by contour integration.

The method, in the order in which it is derived: `_ratio` (the likelihood ratio of a step), `_moments` (its moments),
`_finite` (events of bounded loss), `_atoms` (events given by their outcomes), `_run` (a whole run), `_line` (the
composition along a line), `_contour` (delta and its bracket), `_plan` (where the line goes), `_solve` (epsilon from
delta), `_rare` (runs that hardly ever sample an example), `_driver` (directions and retries), `_tradeoff` and
`_dominating` (the curve and mu), `_closed` (closed forms), `_batch` (arrays), `_bounds` (all of it, per run and per run
in phases).

All of it is NumPy in float64, one run after another, on the host. In a hard corner a number may be infinite or NaN;
what is certified is decided by comparisons that NaN fails, and by `fmin` and `fmax`, which leave it out.
"""

from gdpjax.accounting._numeric._bounds import Family, of_phases, of_runs, profile_of_phases
from gdpjax.accounting._numeric._finite import LAPLACE
from gdpjax.accounting._numeric._tradeoff import complement

__all__ = ["LAPLACE", "Family", "complement", "of_phases", "of_runs", "profile_of_phases"]
