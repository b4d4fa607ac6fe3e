"""The figures of a report: computed once for each run, each with its standing and its meaning."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from gdpjax._core.types import FAILURE, Bounds
from gdpjax.accounting import gdp_epsilon, moments_accountant_epsilon
from gdpjax.plotting import limiting_mu
from gdpjax.reporting._runs import Described

CERTIFIED = "certified"
UPPER_BOUND = "upper bound"
ESTIMATE = "estimate: may understate"
COMPARISON = "certified comparison"

_EPSILON = (
    "Epsilon, delta: whatever is released, its probability is at most e^epsilon times that under a neighbouring data "
    "set, plus delta. Delta should be well below 1 / size of the data."
)
_MU = (
    "Mu: to tell two neighbouring data sets apart is at least as hard as to tell a draw of the normal law N(0, 1) from "
    "one of N(mu, 1), except with the probability of failure."
)
_REGRET = "Regret: by how much mu overstates, at most, how well attacks do; near 0, mu alone describes the run."
_ATTACKS = (
    "An attack guesses which of two neighbouring data sets was used, such as whether a person is in it. Its true and "
    "false positive rates (TPR, FPR) are how often it says yes, rightly and wrongly; membership advantage: the largest "
    "difference of the two, 0 for a blind guess and 1 for certainty; Bayes success: how often the best guess is right "
    "if both data sets are as likely, 0.5 for a blind guess."
)
_MOMENTS = "Moments epsilon: at this delta, by the moments accountant, to compare with papers that used it."
_CLT = "CLT: by the central limit theorem, to compare with papers that used it."


class Figure(NamedTuple):
    """One line of a report.

    Fields:
        key: its name in JSON, the same for every run.
        label: what it is called in a table; the plain text form.
        value: `Bounds` of two numbers, or one number, or None where it is not known.
        standing: what kind of number it is.
        meaning: a sentence for whoever does not know the label.
        reason: why there is no value.
    """

    key: str
    label: str
    value: Bounds | float | None
    standing: str
    meaning: str
    reason: str = ""


def figures_of(run: Described, deltas: tuple[float, ...]) -> list[Figure]:
    """Return all figures of one run, in the order of the report."""
    curve = run.curve
    mu = curve.mu(FAILURE)
    certified = [
        *((f"epsilon_at_delta_{d:g}", f"epsilon at delta {d:g}", curve.epsilon(d), _EPSILON) for d in deltas),
        ("mu", f"mu, failure {FAILURE:g}", mu, _MU),
        ("regret", "regret of reporting mu", curve.regret(float(mu.upper)), _REGRET),
        ("advantage", "membership advantage", curve.advantage(), _ATTACKS),
        ("tpr_at_fpr_0.01", "TPR at FPR 0.01", curve.tpr(0.01), _ATTACKS),
        ("tpr_at_fpr_0.001", "TPR at FPR 0.001", curve.tpr(0.001), _ATTACKS),
        ("bayes_success", "Bayes success, prior 0.5", curve.bayes_success(0.5), _ATTACKS),
    ]
    figures = [
        Figure(key, label, Bounds(*map(float, bounds)), CERTIFIED, meaning) for key, label, bounds, meaning in certified
    ]

    # The other accountants, at the first delta, each with the reason where it has no number.
    delta, epsilon = deltas[0], figures[0].value
    moments, unknown = _answer(run, lambda events: moments_accountant_epsilon(events, delta=delta))
    limit, no_limit = _answer(run, limiting_mu)
    clt = None if limit is None else float(gdp_epsilon(delta, limit))
    excess, no_excess = _excess(epsilon, clt), no_limit or "the CLT's epsilon is infinite"
    return [
        *figures,
        Figure("epsilon_moments_accountant", f"moments epsilon at {delta:g}", moments, UPPER_BOUND, _MOMENTS, unknown),
        Figure("mu_clt", "CLT estimate of mu", limit, ESTIMATE, _CLT, no_limit),
        Figure("epsilon_clt", "CLT estimate of epsilon", clt, ESTIMATE, _CLT, no_limit),
        Figure("clt_understates_by", "epsilon less the CLT's", excess, COMPARISON, _CLT, no_excess),
    ]


def _answer(run: Described, accountant: Callable[[Any], Any]) -> tuple[float | None, str]:
    """Return the number of an accountant, or the reason why it has none for this run."""
    if run.unasked:
        return None, run.unasked
    try:
        return float(accountant(run.events)), ""
    except ValueError as error:
        return None, str(error).partition(": ")[0]


def _excess(epsilon: Any, estimate: float | None) -> Bounds | None:
    """Return by how much the truth exceeds an estimate; negative where the estimate overstates."""
    if estimate is None or not math.isfinite(estimate):
        return None
    lower, upper = epsilon.lower - estimate, epsilon.upper - estimate
    return Bounds(math.nextafter(lower, -math.inf), math.nextafter(upper, math.inf))
