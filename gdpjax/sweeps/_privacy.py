"""The cost of a run, from the ledger of its steps, never from the configuration.

Each figure has its own standing:

* the CLT's epsilon is an asymptotic estimate and may understate the truth;
* the moments accountant's is an upper bound;
* the certified interval contains the truth.

A run that may be stopped by an overflowing batch is a mixture: with probability tau anything may happen, otherwise
the ideal run. Hence delta <= tau + (1 - tau) delta_ideal, and an upper bound on epsilon at delta is the ideal one at
(delta - tau) / (1 - tau).
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import gdpjax.accounting as accounting
from gdpjax._core.types import Bounds, NeighboringRelation
from gdpjax.ledger import Event, ledger_of
from gdpjax.sweeps._errors import UserError
from gdpjax.training import Plan

PIECE = 64
"""The number of rows for which an accountant is compiled."""


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one run, or of its first ``num_steps`` steps."""

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    delta: float
    overflow: float
    neighboring_relation: str
    mu_clt: float
    epsilon_clt: float
    epsilon_moments_accountant: float
    epsilon_lower: float
    epsilon_upper: float


def effective_delta(delta: float, overflow: float) -> float:
    """Return (delta - tau) / (1 - tau), the delta left for the ideal run once the overflow has been paid."""
    try:
        return float(accounting.delta_after_overflow(delta, overflow))
    except ValueError:
        raise UserError(
            f"delta must exceed the overflow probability {overflow:.2g} of the batches, got {delta}"
        ) from None


def cost_of(opt_state: Any, delta: float) -> Cost:
    """Return the cost of the steps recorded in ``opt_state``."""
    # Hyperparameters are constant here, and equal steps are one event.
    ledger = ledger_of(opt_state)
    (event,) = ledger.events
    assert isinstance(event, Event)
    run = (event.noise_multiplier, event.sampling_prob, event.num_steps)

    # The certified bounds of a ledger pay for its overflow themselves.
    delta_of_ideal_run = effective_delta(delta, event.overflow)
    lower, upper = accounting.epsilon_bounds(ledger, delta=delta)
    return Cost(
        noise_multiplier=event.noise_multiplier,
        sampling_prob=event.sampling_prob,
        num_steps=event.num_steps,
        delta=delta,
        overflow=event.overflow,
        neighboring_relation=NeighboringRelation(event.neighboring_relation).value,
        mu_clt=float(accounting.clt_mu_poisson(*run)),
        epsilon_clt=float(accounting.clt_epsilon(*run, delta)),
        epsilon_moments_accountant=float(accounting.moments_accountant_epsilon(*run, delta_of_ideal_run)),
        epsilon_lower=float(lower),
        epsilon_upper=float(upper),
    )


def costs_of_plans(plans: Sequence[Plan]) -> list[Cost]:
    """Return the cost of each plan when all its steps are taken, by one call of each accountant for all plans."""
    # Trials of a sweep share few costs, and the accountants compile for the number of rows.
    runs = [_RunOfPlan.of(plan) for plan in plans]
    distinct_runs = list(dict.fromkeys(runs))
    if not distinct_runs:
        return []

    # A column of each parameter.
    noise_multiplier, sampling_prob, num_steps, delta, overflow = np.array(distinct_runs, np.float64).T
    parameters = (noise_multiplier, sampling_prob, num_steps)
    pairs = zip(delta, overflow, strict=True)
    delta_of_ideal_run = np.array([effective_delta(own_delta, own_overflow) for own_delta, own_overflow in pairs])

    def certified_bounds(delta: np.ndarray) -> Bounds:
        return accounting.epsilon_bounds(*parameters, delta)

    # A column of each figure.
    lower, upper = accounting.epsilon_with_overflow(certified_bounds, delta, overflow, announced=True)
    mu_clt = _in_pieces(accounting.clt_mu_poisson, *parameters)
    epsilon_clt = _in_pieces(accounting.clt_epsilon, *parameters, delta)
    epsilon_moments = _in_pieces(accounting.moments_accountant_epsilon, *parameters, delta_of_ideal_run)
    figures = np.stack([mu_clt, epsilon_clt, epsilon_moments, lower, upper], axis=1)
    figures_of_run = dict(zip(distinct_runs, figures.tolist(), strict=True))

    costs = []
    for plan, run in zip(plans, runs, strict=True):
        relation = NeighboringRelation(plan.neighboring_relation).value
        costs.append(Cost(*run, relation, *figures_of_run[run]))
    return costs


class _RunOfPlan(NamedTuple):
    """The parameters of a plan that decide its cost."""

    noise_multiplier: float
    sampling_prob: float
    num_steps: int
    delta: float
    overflow: float

    @classmethod
    def of(cls, plan: Plan) -> "_RunOfPlan":
        return cls(plan.noise_multiplier, plan.sampling_prob, plan.max_steps, plan.delta, plan.overflow)


def _in_pieces(function: Callable[..., Any], *columns: np.ndarray) -> np.ndarray:
    """Return ``function`` of all rows, `PIECE` at a time: it is compiled for one number of rows."""
    num_rows = len(columns[0])
    num_missing = -num_rows % PIECE
    padded = [np.pad(column, (0, num_missing), mode="edge") for column in columns]
    pieces = []
    for first in range(0, num_rows + num_missing, PIECE):
        rows = [column[first : first + PIECE] for column in padded]
        pieces.append(np.asarray(function(*rows)))
    return np.concatenate(pieces)[:num_rows]
