"""The figures of a report: computed once for each run, each with its standing."""

from collections.abc import Callable
from typing import Any

from gdpjax._core.types import FAILURE
from gdpjax.accounting import gdp_epsilon, moments_accountant_epsilon
from gdpjax.plotting import limiting_mu
from gdpjax.reporting._runs import Described, Figure

CERTIFIED = "certified"
UPPER_BOUND = "upper bound"
ESTIMATE = "estimate"


def figures_of(run: Described, deltas: list[float]) -> dict[str, Figure]:
    """Return all figures of one run by their names, in the order of the report."""
    curve = run.curve
    mu = curve.mu(FAILURE)
    figures = {}
    for delta in deltas:
        figures[f"epsilon_at_delta_{delta:g}"] = Figure(f"epsilon at delta {delta:g}", curve.epsilon(delta), CERTIFIED)
    figures |= {
        "mu": Figure(f"mu, failure {FAILURE:g}", mu, CERTIFIED),
        "regret": Figure("regret of reporting mu", curve.regret(float(mu.upper)), CERTIFIED),
        "advantage": Figure("membership advantage", curve.advantage(), CERTIFIED),
        "tpr_at_fpr_0.01": Figure("TPR at FPR 0.01", curve.tpr(0.01), CERTIFIED),
        "tpr_at_fpr_0.001": Figure("TPR at FPR 0.001", curve.tpr(0.001), CERTIFIED),
        "bayes_success": Figure("Bayes success, prior 0.5", curve.bayes_success(0.5), CERTIFIED),
    }

    # The other accountants, at the first delta.
    delta = deltas[0]
    return figures | {
        "epsilon_moments_accountant": _asked(
            run,
            f"moments epsilon at {delta:g}",
            UPPER_BOUND,
            lambda events: moments_accountant_epsilon(events, delta=delta),
        ),
        "mu_clt": _asked(run, "CLT estimate of mu", ESTIMATE, limiting_mu),
        "epsilon_clt": _asked(
            run,
            "CLT estimate of epsilon",
            ESTIMATE,
            lambda events: gdp_epsilon(delta, limiting_mu(events)),
        ),
    }


def _asked(run: Described, label: str, standing: str, accountant: Callable[[Any], Any]) -> Figure:
    """Return the number of an accountant, or the reason why it has none for this run."""
    if run.unasked:
        return Figure(label, None, standing, run.unasked)
    try:
        return Figure(label, float(accountant(run.events)), standing)
    except ValueError as error:
        return Figure(label, None, standing, str(error).partition(": ")[0])
