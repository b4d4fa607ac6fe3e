"""The plan of a training from its hyperparameters, and what a run cost, from the ledger of its steps.

Each figure of a cost has its own standing:

* the CLT's epsilon is an asymptotic estimate and may understate the truth;
* the moments accountant's is an upper bound;
* the certified interval contains the truth.

The last two include the probability that a batch overflows, which is in the event. The number of training examples is
taken as public.
"""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

import gdpjax.accounting as accounting
from gdpjax._core.epochs import steps_of_epochs
from gdpjax._core.types import NeighboringRelation
from gdpjax.ledger import Event, ledger_of
from gdpjax.sweeps._errors import UserError
from gdpjax.training import Plan, make_plan


def plan_of(settings: Mapping[str, float], delta: float, num_examples: int) -> Plan:
    """Return the plan of l2_clip_norm, batch_size, epochs and noise_multiplier, or epsilon, a certified target.

    Raises:
      UserError: a batch above the data, too little noise for a guarantee, a target that no noise meets.
    """
    epsilon = settings.get("epsilon")
    try:
        plan = make_plan(
            clip=settings["l2_clip_norm"],
            max_examples=num_examples,
            expected_batch_size=int(settings["batch_size"]),
            num_steps=epoch_end(settings, num_examples, int(settings["epochs"])),
            delta=delta,
            noise_multiplier=settings["noise_multiplier"] if epsilon is None else None,
            epsilon=epsilon,
            neighboring_relation=NeighboringRelation.REPLACE_SPECIAL,
        )
    except ValueError as error:
        raise UserError(str(error)) from error
    reason = plan.without_privacy()
    if reason is not None:
        raise UserError(f"{reason}; take more noise")
    return plan


def epoch_end(settings: Mapping[str, float], num_examples: int, epoch: int) -> int:
    """Return the number of steps done after ``epoch`` epochs."""
    return steps_of_epochs(epoch, num_examples, int(settings["batch_size"]))


def float32_above(value: float) -> float:
    """Return the least float32 number that is at least ``value``.

    >>> float32_above(0.55) >= 0.55, float32_above(0.5)
    (True, 0.5)
    """
    nearest = np.float32(value)
    # NumPy would round a Python float to float32 before it compares.
    if float(nearest) < value:
        nearest = np.nextafter(nearest, np.float32(np.inf))
    return float(nearest)


@dataclasses.dataclass(frozen=True)
class Cost:
    """The cost of one run, or of its first ``num_steps`` steps."""

    noise_multiplier: float
    num_steps: int
    sampling_prob: float
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
    return cost_of_event(event, delta)


# Trials of a sweep share few costs.
@functools.cache
def cost_of_event(event: Event, delta: float) -> Cost:
    """Return the cost of equal steps."""
    if not event.overflow < delta:
        raise UserError(f"delta must exceed the overflow probability {event.overflow:.2g} of the batches, got {delta}")
    run = (event.noise_multiplier, event.sampling_prob, event.num_steps)
    lower, upper = accounting.epsilon_bounds(event, delta=delta)
    return Cost(
        noise_multiplier=event.noise_multiplier,
        num_steps=event.num_steps,
        sampling_prob=event.sampling_prob,
        delta=delta,
        overflow=event.overflow,
        neighboring_relation=NeighboringRelation(event.neighboring_relation).value,
        mu_clt=float(accounting.clt_mu_poisson(*run)),
        epsilon_clt=float(accounting.clt_epsilon(*run, delta)),
        epsilon_moments_accountant=float(accounting.moments_accountant_epsilon(event, delta=delta)),
        epsilon_lower=float(lower),
        epsilon_upper=float(upper),
    )
