"""The figures of a report: computed once for each run, each with its standing."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gdpjax._core.types import FAILURE, Bounds, NeighboringRelation
from gdpjax.accounting import (
    clt_mu_poisson,
    clt_mu_uniform,
    gdp_compose,
    gdp_epsilon,
    moments_accountant_epsilon,
)
from gdpjax.ledger import AnyEvent, Event, GaussianEvent, Ledger, SampledEvent, UniformEvent
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
        reason: why there is no value.
    """

    key: str
    label: str
    value: Bounds | float | None
    standing: str
    reason: str = ""


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
    return figures + _other_accountants(run, deltas[0], epsilons[0])


def _other_accountants(run: Described, delta: float, epsilon: Bounds) -> list[Figure]:
    """Return the figures of the moments accountant and of the CLT, each with the reason where it has none."""
    moments, unknown = _answer(run, lambda steps: moments_accountant_epsilon(steps, delta=delta))
    mu, no_limit = _answer(run, _limiting_mu)
    clt = None if mu is None else float(gdp_epsilon(delta, mu))
    return [
        Figure("epsilon_moments_accountant", f"moments epsilon at delta {delta:g}", moments, UPPER_BOUND, unknown),
        Figure("mu_clt", "CLT mu", mu, ESTIMATE, no_limit),
        Figure("epsilon_clt", f"CLT epsilon at delta {delta:g}", clt, ESTIMATE, no_limit),
        Figure(
            "clt_understates_by",
            "epsilon less the CLT's",
            _excess(epsilon, clt),
            COMPARISON,
            no_limit or "the CLT's epsilon is infinite",
        ),
    ]


def _answer(run: Described, accountant: Callable[[Any], Any]) -> tuple[float | None, str]:
    """Return the number of an accountant, or the reason why it has none for this run."""
    if run.steps is None:
        return None, run.unasked
    try:
        return float(accountant(run.steps)), ""
    except ValueError as error:
        return None, str(error).partition(": ")[0]


def _limiting_mu(run: Ledger | AnyEvent) -> float:
    """Return the mu of the central limit theorem: that of each event, and squares add up."""
    mus = []
    for event in run.events if isinstance(run, Ledger) else (run,):
        if not isinstance(event, SampledEvent | GaussianEvent):
            raise ValueError(f"no central limit theorem for {type(event).__name__}")
        if event.noise_multiplier == 0:
            raise ValueError("no central limit theorem without noise")
        if isinstance(event, Event) and event.neighboring_relation is NeighboringRelation.REPLACE_ONE:
            raise ValueError("no central limit theorem for Poisson batches under REPLACE_ONE")
        if isinstance(event, GaussianEvent):
            mus.append(math.sqrt(event.num_steps) / event.noise_multiplier)
            continue
        limit = clt_mu_uniform if isinstance(event, UniformEvent) else clt_mu_poisson
        mus.append(float(limit(event.noise_multiplier, event.sampling_prob, event.num_steps)))
    return float(gdp_compose(mus))


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
