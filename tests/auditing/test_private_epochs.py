"""The audits of private epochs: the claim of their own scheme stands, and those that others make of it fall."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from gdpjax.accounting import certified, tradeoff_bounds
from gdpjax.auditing import audit_step
from gdpjax.ledger import AllocationEvent, ShuffledEvent
from gdpjax.sampling import RandomAllocation, Shuffled, TruncatedPoisson
from gdpjax.tradeoff import Gaussian, subsample


def released_by(batches, noise_multiplier, others):
    """Return the release of the noisy sums of an epoch, to which the target adds 1 and each other example ``others``.

    They are sorted: which step it was does not matter.
    """
    gradients = jnp.array([others] * (batches.num_examples - 1) + [1.0], jnp.float32)  # the last one is the target's

    def release(key, included):
        sample_key, noise_key = jax.random.split(key)
        grad_fn = gdpjax.clipped_grad(lambda w, x: w * x, 1.0)
        tx = gdpjax.privatize(grad_fn, noise_multiplier, batches, noise_key)
        w = jnp.zeros(())
        num_valid = jnp.where(included, len(gradients), len(gradients) - 1)

        def release_step(state, step):
            batch = batches.sample(sample_key, step, num_valid=num_valid)
            total = grad_fn(w, gradients[batch.indices], is_padding=batch.is_padding)
            mean, state = tx.update(total, state, w)
            return state, mean

        _, released = jax.lax.scan(release_step, tx.init(w), jnp.arange(batches.num_steps))
        return jnp.sort(released)

    return release


ALLOCATION, SHUFFLED, TRUNCATED = (0.3, 2), (0.4, 4), (0.7, 0.9)  # noise and steps, and for the last the probability
allocated = released_by(RandomAllocation(6, 3, epochs=1), ALLOCATION[0], others=0.0)  # the target is in one of two sums
shuffled = released_by(Shuffled(12, 3, epochs=1), SHUFFLED[0], others=-1.0)
truncated = released_by(TruncatedPoisson(6, 5.4, 1, capacity=4), TRUNCATED[0], others=-1.0)  # one that is surely full


def at_few_points(claim):
    """The claim on a trade-off curve, computed at 8 of the 128 alpha that an audit asks for, with chords between.

    The chords of a convex curve lie above it, here by less than .001: a claim that stands so, stands itself, and those
    that are to be refuted promise .1 more than what is seen.
    """

    def coarse(alpha):
        points = np.linspace(alpha.min(), alpha.max(), 8)
        return np.interp(alpha, points, claim(points))

    return coarse


def is_refuted(release, claimed):
    """Return whether an audit of a release at a key that everybody knows refutes the claim."""
    audit = audit_step(release, jax.random.key(0), delta=1e-5, claimed=claimed, num_releases=4096, confidence=0.9999)
    return audit.refuted


def poisson(noise_multiplier, num_steps):
    return gdpjax.Event(noise_multiplier, 1 / num_steps, num_steps)


def test_allocation_accounted_as_poisson_sampling_is_refuted():
    """Every example is surely in one of the two sums, of which Poisson sampling may leave it out altogether."""
    claim = certified(poisson(*ALLOCATION)).tradeoff
    assert is_refuted(allocated, at_few_points(lambda alpha: claim(alpha).lower))


def test_allocation_accounted_as_what_it_is_stands():
    claim = certified(AllocationEvent(*ALLOCATION)).tradeoff
    assert not is_refuted(allocated, at_few_points(lambda alpha: claim(alpha).lower))


@pytest.mark.parametrize(
    "event",
    [
        pytest.param(AllocationEvent(*SHUFFLED), id="allocation", marks=pytest.mark.slow),
        pytest.param(poisson(*SHUFFLED), id="poisson", marks=pytest.mark.slow),
    ],
)
def test_shuffled_batches_accounted_as_something_else_are_refuted(event):
    assert is_refuted(shuffled, at_few_points(lambda alpha: tradeoff_bounds(event, alpha=alpha).lower))


def test_shuffled_batches_accounted_as_what_they_are_stand():
    curve = certified(ShuffledEvent(*SHUFFLED))
    assert not is_refuted(shuffled, lambda alpha: curve.above.tradeoff(alpha).lower)


@pytest.mark.parametrize(("moved", "refuted"), [(1, True), (2, False)], ids=["as poisson", "as it is"])
def test_truncation_is_accounted_as_a_replacement(moved, refuted):
    """The target may take the place of another, which adds -1."""
    noise_multiplier, prob = TRUNCATED
    assert is_refuted(truncated, subsample(Gaussian(moved / noise_multiplier), prob)) is refuted
