"""The plan of a training from its hyperparameters. The number of training examples is taken as public."""

from collections.abc import Mapping

import numpy as np

from gdpjax._core.epochs import steps_of_epochs
from gdpjax._core.types import NeighboringRelation
from gdpjax.sweeps._errors import UserError
from gdpjax.training import Plan, make_plan


def plan_of(settings: Mapping[str, float], delta: float, num_examples: int) -> Plan:
    """Return the plan of l2_clip_norm, batch_size, epochs and noise_multiplier, or epsilon, a certified target.

    Raises:
      UserError: a batch above the data, too little noise for a guarantee, a target that no noise meets.
    """
    batch_size = int(settings["batch_size"])
    epsilon = settings.get("epsilon")
    try:
        plan = make_plan(
            clip=settings["l2_clip_norm"],
            max_examples=num_examples,
            expected_batch_size=batch_size,
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
    if float(nearest) >= value:
        return float(nearest)
    next_number = np.nextafter(nearest, np.float32(np.inf))
    return float(next_number)
