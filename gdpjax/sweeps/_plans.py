"""One training of a sweep: its settings, the plan that follows from them, what it cost, and its randomness.

Each figure of a cost has its own standing:

* the CLT's epsilon is an asymptotic estimate and may understate the truth;
* the moments accountant's is an upper bound;
* the certified interval contains the truth.

The last two include the probability that a batch overflows, which is in the event. The number of training examples is
taken as public.

Without a seed a training has its own keys from the system's entropy. With one they are derived from it, and anyone who
knows the seed can compute the noise and subtract it. Two trainings with one seed and the same settings on data that
differ have the same noise, which their difference does not have. So seeded trainings are reproducible, not private.
"""

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

import gdpjax.accounting as accounting
from gdpjax._core.keys import fresh_key
from gdpjax._core.types import NeighboringRelation
from gdpjax.ledger import Event, ledger_of
from gdpjax.sampling import steps_of_epochs
from gdpjax.sweeps.records import UserError
from gdpjax.training import Plan, make_plan

SEED_NOTICE = (
    "seeded run: it is reproducible, and therefore NOT private against anyone who knows the seed, or who sees what the "
    "same seed and settings gave on other data (the noise is the same)"
)


def plan_of(
    settings: Mapping[str, float],
    delta: float,
    num_examples: int,
    *,
    unit: str = "example",
    tuned: str = "not stated",
) -> Plan:
    """Return the plan of l2_clip_norm, batch_size, epochs and noise_multiplier, or epsilon, a certified target.

    ``unit`` is what one row is, and ``tuned`` how the hyperparameters were chosen, for the statement of the plan.

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
            unit=unit,
            tuned=tuned,
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


@dataclasses.dataclass(frozen=True)
class Trial:
    """One training.

    Attributes:
      number: its place in the sweep.
      settings: all its hyperparameters.
      delta: of its epsilon.
      seed: None for keys from the system's entropy.
      replicate: which of the seeds it has.
      names: of data, model and optimizer.
      plan: not there before it is planned.
      cost: certified, of the plan.
    """

    number: int
    settings: dict[str, float]
    delta: float
    seed: int | None
    replicate: int
    names: Mapping[str, str]
    plan: Plan = None  # pyright: ignore[reportAssignmentType]
    cost: Cost = None  # pyright: ignore[reportAssignmentType]

    def identity(self, diagnostics: bool = True) -> dict[str, Any]:
        """Return the flat settings that decide what it computes, its seed included, but nothing of its folder."""
        # A target has done its part when the noise multiplier is known.
        settings = {name: value for name, value in self.settings.items() if name != "epsilon"}
        return {**self.names, **settings, "delta": self.delta, "seed": self.seed, "diagnostics": diagnostics}

    def keys(self, root: jax.Array) -> "Keys":
        """Return its own keys: those of `train` with its row where it has a seed, else of the sweep's key and number.

        One that is run again with other settings has other noise: with the same, the difference would have none.
        """
        return make_keys(self.seed, self.identity(), jax.random.fold_in(root, self.number))


class Keys(NamedTuple):
    """Keys of the initial parameters, and of the private training: sampling and noise."""

    init: Any
    training: Any


def make_keys(seed: int | None, settings: Mapping[str, object], root: jax.Array | None = None) -> Keys:
    """Return independent keys from all settings of a training, and a seed, or ``root``, or the system's entropy.

    Two settings with one seed get different keys: with the same noise, the difference of their results would have none.
    """
    key = fresh_key() if root is None else root
    if seed is not None:
        key = jax.random.key(seed)

    # 64 bits of a digest of the settings, in two words.
    text = json.dumps(settings, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).digest()
    for first in (0, 4):
        word = int.from_bytes(digest[first : first + 4], "little")
        key = jax.random.fold_in(key, word)
    return Keys(*jax.random.split(key, 2))
