"""Certified composition of subsampled Gaussian steps and of events of bounded loss, by contour integration.

The modules, in the order in which the method is derived:

* `_likelihood_ratio`: the likelihood ratio of a step; `_moments`: its moments.
* `_bounded_losses`, `_atoms`: events of bounded loss, and events given by their outcomes.
* `_run_description`: a whole run; `_characteristic_function`: the composition along a line.
* `_contour`: delta and its bracket; `_contour_choice`: where the line goes; `_inversion`: epsilon from delta.
* `_rare_outcomes`: runs that hardly ever sample an example; `_without_contour`: closed forms, hardly any noise.
* `_directions`: both directions, and as many tries as it needs.
* `_tradeoff`: the curve and mu.
* `_questions`: all of it, for arrays of runs and of runs in phases.

All of it is NumPy in float64 on the host. Runs of one kind of step are looked at side by side: what is one number of a
run is then an array [runs] (`RunDescription.apart`), and they share the number of frequencies and of panels. In a hard
corner a number may be infinite or NaN; what is certified is decided by comparisons that NaN fails, and by `fmin` and
`fmax`, which leave it out.
"""

from gdpjax._composition._bounded_losses import LAPLACE
from gdpjax._composition._questions import (
    DELTA,
    EPSILON,
    MU,
    TRADEOFF,
    Family,
    Question,
    of_phases,
    of_runs,
    prepare,
    profile_of_phases,
)
from gdpjax._composition._tradeoff import complement
from gdpjax._composition._without_contour import has_closed_form

__all__ = [
    "DELTA",
    "EPSILON",
    "LAPLACE",
    "MU",
    "TRADEOFF",
    "Family",
    "Question",
    "complement",
    "has_closed_form",
    "of_phases",
    "of_runs",
    "prepare",
    "profile_of_phases",
]
