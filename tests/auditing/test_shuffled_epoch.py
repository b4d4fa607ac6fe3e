"""The audit of an epoch of shuffled batches: its own claim stands, and those that others make of it fall."""

import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax import NeighboringRelation
from gdpjax.accounting import certified, tradeoff_bounds
from gdpjax.ledger import AllocationEvent, ShuffledEvent
from gdpjax.sampling import Shuffled
from tests.auditing.private_epoch import at_few_points, is_refuted, release_epoch

NOISE, STEPS = 0.4, 4
GRADIENTS = np.array([-1.0] * 11 + [1.0], np.float32)  # the last example is the target
BATCHES = Shuffled(len(GRADIENTS), len(GRADIENTS) / STEPS, epochs=1)
SPECIAL = NeighboringRelation.REPLACE_SPECIAL


def release(key, included):
    """The noisy sums of an epoch, in one of which the target is, or a null example in its place."""
    released = release_epoch(key, included, BATCHES, GRADIENTS, noise_multiplier=NOISE)
    return jnp.sort(released)  # which step it was does not matter, the largest sum does


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(AllocationEvent(NOISE, STEPS), id="allocation", marks=pytest.mark.slow),
        pytest.param(gdpjax.Event(NOISE, 1 / STEPS, STEPS), id="poisson", marks=pytest.mark.slow),
    ],
)
def test_shuffled_batches_accounted_as_something_else_are_refuted(event):
    assert is_refuted(release, at_few_points(lambda alpha: tradeoff_bounds(event, alpha=alpha).lower))


def test_shuffled_batches_accounted_as_what_they_are_stand():
    curve = certified(ShuffledEvent(NOISE, STEPS))
    assert not is_refuted(release, lambda alpha: curve.above.tradeoff(alpha).lower)
