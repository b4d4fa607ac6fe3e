"""Audits: empirical lower bounds on mu and epsilon, each with its confidence.

An accountant bounds the privacy loss from above, for every data set; an audit attacks one and bounds it from below. The
two must not cross: a lower bound above the certified upper one is a bug in the code or in the accounting. Every number
here says its confidence and its standing, "empirical lower".

Read in the order `_canaries`, `_one_run_epsilon`, `_one_run_tradeoff`, `_one_run` (one training run), `_many_runs`
(many), `_statistics`, `_step` (the audit of a private step), `_p_values` (tests of laws that are known),
`_worst_cases`, `_step_checks`, `_installation` (the audit of the step of this installation).
"""

from gdpjax.auditing._canaries import (
    black_box_scores,
    coordinate_canaries,
    flip_coins,
    gradient_canaries,
    mislabel,
    out_of_distribution,
    white_box_scores,
    with_gradient_canaries,
)
from gdpjax.auditing._installation import InstallationAudit, audit_installation
from gdpjax.auditing._many_runs import (
    ErrorRegion,
    ManyRunsAudit,
    audit_many_runs,
    epsilon_from_errors,
    error_rate_upper,
    error_region,
    mu_from_errors,
)
from gdpjax.auditing._one_run import OneRunAudit, audit_one_run, count_correct
from gdpjax.auditing._one_run_epsilon import one_run_epsilon, one_run_p_value
from gdpjax.auditing._one_run_tradeoff import one_run_mu, one_run_refutes
from gdpjax.auditing._step import StepAudit, audit_step
from gdpjax.auditing._step_checks import step_checks
from gdpjax.auditing._worst_cases import worst_cases

__all__ = [
    "ErrorRegion",
    "InstallationAudit",
    "ManyRunsAudit",
    "OneRunAudit",
    "StepAudit",
    "audit_installation",
    "audit_many_runs",
    "audit_one_run",
    "audit_step",
    "black_box_scores",
    "coordinate_canaries",
    "count_correct",
    "epsilon_from_errors",
    "error_rate_upper",
    "error_region",
    "flip_coins",
    "gradient_canaries",
    "mislabel",
    "mu_from_errors",
    "one_run_epsilon",
    "one_run_mu",
    "one_run_p_value",
    "one_run_refutes",
    "out_of_distribution",
    "step_checks",
    "white_box_scores",
    "with_gradient_canaries",
    "worst_cases",
]
