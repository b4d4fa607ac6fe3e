"""Audits: empirical lower bounds on mu and epsilon, each with its confidence.

An accountant bounds the privacy loss from above, for every data set; an audit attacks one and bounds it from below. The
two must not cross: a lower bound above the certified upper one is a bug in the code or in the accounting. Every number
here says its confidence and its standing, "empirical lower".

Read in the order `_canaries`, `_one_run_theorems`, `_one_run` (one training run), `_many_runs` (many),
`_statistics`, `_step` (the audit of a private step), `_p_values` (tests of laws that are known),
`_worst_cases`, `_step_checks`, `_installation` (the audit of the step of this installation).
"""

# What is imported under an alias is for tests, and not public.
from gdpjax.auditing._canaries import (
    black_box_scores,
    flip_coins,
    gradient_canaries,
    mislabel,
    out_of_distribution,
    white_box_scores,
    with_gradient_canaries,
)
from gdpjax.auditing._installation import audit_installation
from gdpjax.auditing._many_runs import ErrorRegion, audit_many_runs
from gdpjax.auditing._one_run import RightGuesses, audit_one_run
from gdpjax.auditing._step import audit_step
from gdpjax.auditing._step_checks import step_checks as step_checks
from gdpjax.auditing._worst_cases import worst_cases as worst_cases

__all__ = [
    "ErrorRegion",
    "RightGuesses",
    "audit_installation",
    "audit_many_runs",
    "audit_one_run",
    "audit_step",
    "black_box_scores",
    "flip_coins",
    "gradient_canaries",
    "mislabel",
    "out_of_distribution",
    "white_box_scores",
    "with_gradient_canaries",
]
