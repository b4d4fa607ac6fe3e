"""What a run cost, from the ledger of what was run, never from the configuration.

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
from typing import Any

import numpy as np

import gdpjax.accounting as accounting
from gdpjax._core.types import NeighboringRelation
from gdpjax.ledger import Event, ledger_of
from gdpjax.sweeps._errors import UserError
from gdpjax.training import Plan

PIECE = 64


@dataclasses.dataclass(frozen=True)
class Cost:
    """What one run, or its first ``num_steps`` steps, cost."""

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
    """(delta - tau) / (1 - tau): the delta left for the ideal run once the overflow has been paid."""
    try:
        return float(accounting.delta_after_overflow(delta, overflow))
    except ValueError:
        raise UserError(
            f"delta must exceed the overflow probability {overflow:.2g} of the batches, got {delta}"
        ) from None


def cost_of(opt_state: Any, delta: float) -> Cost:
    """The cost of the steps recorded in ``opt_state``."""
    ledger = ledger_of(opt_state)
    (event,) = ledger.events  # hyperparameters are constant here, and equal steps are one event
    assert isinstance(event, Event)
    run = (event.noise_multiplier, event.sampling_prob, event.num_steps)
    left = effective_delta(delta, event.overflow)
    lower, upper = accounting.epsilon_bounds(ledger, delta=delta)  # pays for the overflow in the ledger itself
    return Cost(
        *run,
        delta=delta,
        overflow=event.overflow,
        neighboring_relation=NeighboringRelation(event.neighboring_relation).value,
        mu_clt=float(accounting.clt_mu_poisson(*run)),
        epsilon_clt=float(accounting.clt_epsilon(*run, delta)),
        epsilon_moments_accountant=float(accounting.moments_accountant_epsilon(*run, left)),
        epsilon_lower=float(lower),
        epsilon_upper=float(upper),
    )


def costs_of_plans(plans: Sequence[Plan]) -> list[Cost]:
    """What each plan costs when all its steps are taken: every accountant once, for all plans together."""
    # Trials of a sweep share few costs, and the accountants compile for the number of rows.
    run_of = [(p.noise_multiplier, p.sampling_prob, p.max_steps, p.delta, p.overflow) for p in plans]
    unique = list(dict.fromkeys(run_of))
    if not unique:
        return []
    noise, prob, steps, delta, overflow = (np.array(column, np.float64) for column in zip(*unique, strict=True))
    run = (noise, prob, steps)
    left = np.array([effective_delta(*pair) for pair in zip(delta, overflow, strict=True)])
    lower, upper = accounting.epsilon_with_overflow(
        lambda left: accounting.epsilon_bounds(*run, left), delta, overflow, announced=True
    )
    columns = (
        _in_pieces(accounting.clt_mu_poisson, *run),
        _in_pieces(accounting.clt_epsilon, *run, delta),
        _in_pieces(accounting.moments_accountant_epsilon, *run, left),
        lower,
        upper,
    )
    figures = dict(zip(unique, zip(*(column.tolist() for column in columns), strict=True), strict=True))
    relations = [NeighboringRelation(plan.neighboring_relation).value for plan in plans]
    return [Cost(*each, relation, *figures[each]) for each, relation in zip(run_of, relations, strict=True)]


def _in_pieces(function: Callable[..., Any], *columns: np.ndarray) -> np.ndarray:
    """``function`` of all rows, `PIECE` at a time: it is compiled for one number of rows."""
    count = len(columns[0])
    padded = [np.pad(column, (0, -count % PIECE), mode="edge") for column in columns]
    starts = range(0, len(padded[0]), PIECE)
    pieces = [np.asarray(function(*(column[first : first + PIECE] for column in padded))) for first in starts]
    return np.concatenate(pieces)[:count]
