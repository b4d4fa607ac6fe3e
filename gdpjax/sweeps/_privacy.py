"""The cost of a run, from the ledger of its steps, never from the configuration.

Each figure has its own standing:

* the CLT's epsilon is an asymptotic estimate and may understate the truth;
* the moments accountant's is an upper bound;
* the certified interval contains the truth.

The last two include the probability that a batch overflows, which is in the event.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import gdpjax.accounting as accounting
from gdpjax._core.types import NeighboringRelation
from gdpjax.ledger import Event, ledger_of
from gdpjax.sweeps._errors import UserError
from gdpjax.training import Plan


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


def cost_of(opt_state: Any, delta: float) -> Cost:
    """Return the cost of the steps recorded in ``opt_state``."""
    # Hyperparameters are constant here, and equal steps are one event.
    (event,) = ledger_of(opt_state).events
    assert isinstance(event, Event)
    return _cost_of_event(event, delta)


def costs_of_plans(plans: Sequence[Plan]) -> list[Cost]:
    """Return the cost of each plan when all its steps are taken."""
    return [_cost_of_event(plan.event, plan.delta) for plan in plans]


# Trials of a sweep share few costs.
@functools.cache
def _cost_of_event(event: Event, delta: float) -> Cost:
    if not event.overflow < delta:
        raise UserError(f"delta must exceed the overflow probability {event.overflow:.2g} of the batches, got {delta}")
    run = (event.noise_multiplier, event.sampling_prob, event.num_steps)
    lower, upper = accounting.epsilon_bounds(event, delta=delta)
    return Cost(
        *run,
        delta=delta,
        overflow=event.overflow,
        neighboring_relation=NeighboringRelation(event.neighboring_relation).value,
        mu_clt=float(accounting.clt_mu_poisson(*run)),
        epsilon_clt=float(accounting.clt_epsilon(*run, delta)),
        epsilon_moments_accountant=float(accounting.moments_accountant_epsilon(event, delta=delta)),
        epsilon_lower=float(lower),
        epsilon_upper=float(upper),
    )
