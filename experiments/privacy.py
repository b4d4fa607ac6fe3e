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
from typing import Any

import gdpjax
from experiments.errors import UserError
from gdpjax import accounting


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
    if not overflow < delta:
        raise UserError(f"delta must exceed the overflow probability {overflow:.2g} of the batches, got {delta}")
    return (delta - overflow) / (1 - overflow)


def cost_of(opt_state: Any, delta: float) -> Cost:
    """The cost of the steps recorded in ``opt_state``."""
    ledger = gdpjax.ledger_of(opt_state)
    (event,) = ledger.events  # hyperparameters are constant here, and equal steps are one event
    assert isinstance(event, gdpjax.Event)
    run = (event.noise_multiplier, event.sampling_prob, event.num_steps)
    left = effective_delta(delta, event.overflow)
    lower, upper = accounting.epsilon_bounds(ledger, delta=delta)  # pays for the overflow in the ledger itself
    return Cost(
        *run,
        delta=delta,
        overflow=event.overflow,
        neighboring_relation=gdpjax.NeighboringRelation(event.neighboring_relation).value,
        mu_clt=float(accounting.clt_mu_poisson(*run)),
        epsilon_clt=float(accounting.clt_epsilon(*run, delta)),
        epsilon_moments_accountant=float(accounting.moments_accountant_epsilon(*run, left)),
        epsilon_lower=float(lower),
        epsilon_upper=float(upper),
    )
