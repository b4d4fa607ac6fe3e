"""The audit of an epoch of allocation: its own claim stands, and that of Poisson sampling, which others make, falls."""

import jax
import numpy as np

import gdpjax
from gdpjax.accounting import certified
from gdpjax.auditing import audit_step
from gdpjax.ledger import AllocationEvent
from gdpjax.sampling import RandomAllocation
from tests.auditing.private_epoch import at_few_points, release_epoch

NOISE, STEPS = 0.3, 2
GRADIENTS = np.array([0.0] * 5 + [1.0], np.float32)  # the last example is the target
BATCHES = RandomAllocation(len(GRADIENTS), len(GRADIENTS) / STEPS, epochs=1)


def release(key, included):
    """The noisy sums of an epoch, in exactly one of which the target is."""
    return release_epoch(key, included, BATCHES, GRADIENTS, noise_multiplier=NOISE)


def audited(event):
    return audit_step(
        release,
        jax.random.key(0),
        delta=1e-5,
        claimed=at_few_points(lambda alpha: certified(event).tradeoff(alpha).lower),
        num_releases=4096,
        confidence=0.9999,
    ).refuted


def test_allocation_accounted_as_poisson_sampling_is_refuted():
    """Every example is surely in one of the two sums, of which Poisson sampling may leave it out altogether."""
    assert audited(gdpjax.Event(NOISE, 1 / STEPS, STEPS))


def test_allocation_accounted_as_what_it_is_stands():
    assert not audited(AllocationEvent(NOISE, STEPS))
