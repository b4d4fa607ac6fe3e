"""The audit of an epoch of allocation: its own claim stands, and that of Poisson sampling, which others make, falls."""

import numpy as np

import gdpjax
from gdpjax.accounting import certified
from gdpjax.ledger import AllocationEvent
from gdpjax.sampling import RandomAllocation
from tests.auditing.private_epoch import at_few_points, is_refuted, release_epoch

NOISE, STEPS = 0.3, 2
GRADIENTS = np.array([0.0] * 5 + [1.0], np.float32)  # the last example is the target
BATCHES = RandomAllocation(len(GRADIENTS), len(GRADIENTS) / STEPS, epochs=1)


def release(key, included):
    """The noisy sums of an epoch, in exactly one of which the target is."""
    return release_epoch(key, included, BATCHES, GRADIENTS, noise_multiplier=NOISE)


def claim(event):
    return at_few_points(lambda alpha: certified(event).tradeoff(alpha).lower)


def test_allocation_accounted_as_poisson_sampling_is_refuted():
    """Every example is surely in one of the two sums, of which Poisson sampling may leave it out altogether."""
    assert is_refuted(release, claim(gdpjax.Event(NOISE, 1 / STEPS, STEPS)))


def test_allocation_accounted_as_what_it_is_stands():
    assert not is_refuted(release, claim(AllocationEvent(NOISE, STEPS)))
