"""The figures of a report: computed once for each run, each with its standing."""

import math
from typing import Any, NamedTuple

import numpy as np

from gdpjax._core.types import FAILURE, Bounds
from gdpjax.accounting import (
    clt_epsilon,
    clt_mu_poisson,
    clt_mu_uniform,
    delta_after_overflow,
    moments_accountant_epsilon,
)
from gdpjax.ledger import AnyEvent, Event
from gdpjax.reporting._runs import Described
from gdpjax.tradeoff import CertifiedCurve

FALSE_POSITIVE_RATES = (1e-2, 1e-3)
PRIOR = 0.5
CERTIFIED = "certified"
UPPER_BOUND = "upper bound"
ESTIMATE = "estimate: may understate"
COMPARISON = "certified comparison"


class Figure(NamedTuple):
    """One line of a report.

    Fields:
        key: its name in JSON, the same for every run.
        label: what it is called in a table; the plain text form.
        value: `Bounds` of two numbers, or one number, or None where it is not known.
        standing: what kind of number it is.
    """

    key: str
    label: str
    value: Bounds | float | None
    standing: str


def figures_of(run: Described, deltas: tuple[float, ...]) -> list[Figure]:
    """All figures of one run, in the order of the report."""
    curve = run.curve
    epsilons = [_numbers(curve.epsilon(delta)) for delta in deltas]
    mu = _numbers(curve.mu(FAILURE))
    figures = [
        Figure(f"epsilon_at_delta_{delta:g}", f"epsilon at delta {delta:g}", epsilon, CERTIFIED)
        for delta, epsilon in zip(deltas, epsilons, strict=True)
    ]
    figures += [
        Figure("mu", f"mu, failure {FAILURE:g}", mu, CERTIFIED),
        Figure("regret", "regret of reporting mu", _numbers(curve.regret(mu.upper)), CERTIFIED),
        Figure("advantage", "membership advantage", _numbers(curve.advantage()), CERTIFIED),
    ]
    for rate in FALSE_POSITIVE_RATES:
        figures.append(Figure(f"tpr_at_fpr_{rate:g}", f"TPR at FPR {rate:g}", _numbers(curve.tpr(rate)), CERTIFIED))
    success = _numbers(curve.bayes_success(PRIOR))
    figures.append(Figure("bayes_success", f"Bayes success, prior {PRIOR:g}", success, CERTIFIED))
    return figures + _other_accountants(run.event, deltas[0], epsilons[0])


def _other_accountants(event: AnyEvent | None, delta: float, epsilon: Bounds) -> list[Figure]:
    """Return the figures of the moments accountant and the CLT, where they know the scheme."""
    moments = clt = mu = None
    if event is not None and not isinstance(event, Event):
        moments = float(moments_accountant_epsilon(event, delta=delta))
    if isinstance(event, Event) and event.sampling in ("poisson", "uniform"):
        run = event.noise_multiplier, event.sampling_prob, event.num_steps
        clt = float(clt_epsilon(*run, delta, sampling=event.sampling))
        mu = float((clt_mu_poisson if event.sampling == "poisson" else clt_mu_uniform)(*run))
        if event.overflow < delta:
            left = delta_after_overflow(delta, event.overflow) if event.overflow else delta
            moments = float(moments_accountant_epsilon(*run, left, sampling=event.sampling))
    return [
        Figure("epsilon_moments_accountant", f"moments accountant at delta {delta:g}", moments, UPPER_BOUND),
        Figure("mu_clt", "CLT mu", mu, ESTIMATE),
        Figure("epsilon_clt", f"CLT epsilon at delta {delta:g}", clt, ESTIMATE),
        Figure("clt_understates_by", "epsilon less the CLT's", _excess(epsilon, clt), COMPARISON),
    ]


def _excess(epsilon: Bounds, estimate: float | None) -> Bounds | None:
    """By how much the truth exceeds an estimate; negative where the estimate overstates."""
    if estimate is None or not math.isfinite(estimate):
        return None
    return Bounds(
        math.nextafter(epsilon.lower - estimate, -math.inf), math.nextafter(epsilon.upper - estimate, math.inf)
    )


def _numbers(bounds: Bounds) -> Bounds:
    return Bounds(float(bounds.lower), float(bounds.upper))


def picture_points(curve: CertifiedCurve, num_points: int = 18) -> Any:
    """alpha and certified bounds on f(alpha) for a picture: alpha up to 1/2, whose mirror image is the rest."""
    alpha = np.unique(np.append(np.linspace(0.0, 0.5, num_points // 2), np.geomspace(1e-4, 0.5, num_points // 2)))
    bounds = curve.tradeoff(alpha)
    return alpha, np.asarray(bounds.lower, np.float64), np.asarray(bounds.upper, np.float64)
