"""The public constants of a run, fixed before any private image is looked at.

The number of training examples is taken as public. A batch is drawn by flipping one coin per example; static shapes
need a capacity, and a batch that exceeds it stops the run. That stop is itself observable, so its probability
``overflow`` (tau) is part of the privacy statement.
"""

import dataclasses

from experiments.config import TrainConfig
from experiments.errors import UserError
from gdpjax import sampling

ALLOWED_OVERFLOW = 1e-12


@dataclasses.dataclass(frozen=True)
class Plan:
    """Sampling and length of a run. ``sampling_prob`` is the dyadic number that is really used."""

    num_examples: int
    expected_batch_size: int
    sampling_prob: float
    num_steps: int
    epochs: int
    capacity: int
    overflow: float

    @property
    def overflow_per_step(self) -> float:
        """Each step's share of tau; the factor covers the rounding of the ledger's float32 sum of all of them."""
        return self.overflow / self.num_steps * (1 + self.num_steps * 2.0**-23)

    def epoch_end(self, epoch: int) -> int:
        """Number of steps done after ``epoch`` epochs."""
        return round(epoch * self.num_examples / self.expected_batch_size)


def make_plan(config: TrainConfig, num_examples: int) -> Plan:
    """The plan for ``num_examples`` training examples, or a UserError."""
    optimizer, delta = config.optimizer, config.privacy.delta
    batch_size = optimizer.batch_size
    if batch_size > num_examples:
        raise UserError(f"batch_size must be at most the number of examples, {num_examples}, got {batch_size}")
    num_steps = round(optimizer.epochs * num_examples / batch_size)
    sampling_prob = sampling.dyadic_probability(batch_size / num_examples)
    # a thousandth of delta at most, so that epsilon is not spent on shapes
    allowed = min(ALLOWED_OVERFLOW, delta / 1000)
    capacity = sampling.choose_capacity(num_examples, sampling_prob, num_steps, overflow=allowed)
    overflow = float(sampling.overflow_probability(num_examples, sampling_prob, num_steps, capacity))
    if not overflow < delta:
        raise UserError(f"delta must exceed the overflow probability {overflow:.2g} of the batches, got {delta}")
    return Plan(
        num_examples=num_examples,
        expected_batch_size=batch_size,
        sampling_prob=sampling_prob,
        num_steps=num_steps,
        epochs=optimizer.epochs,
        capacity=capacity,
        overflow=overflow,
    )
