"""The audit of a truncated step: its own claim stands, and that of Poisson sampling, which others make of it, falls."""

import jax
import jax.numpy as jnp
import numpy as np

import gdpjax
from gdpjax.sampling import TruncatedPoisson
from gdpjax.tradeoff import Gaussian, subsample
from tests.auditing.private_epoch import is_refuted

NOISE, PROB, CAPACITY = 0.7, 0.9, 4
GRADIENTS = np.array([-1.0] * 5 + [1.0], np.float32)  # the last example is the target
CLAIM = subsample(Gaussian(2 / NOISE), PROB)  # of one step that is surely full


def release(key, included):
    """One private step, the target taking the place of another where the batch is full."""
    sample_key, noise_key = jax.random.split(key)
    grad_fn = gdpjax.clipped_grad(lambda w, x: w * x, 1.0)
    batches = TruncatedPoisson(len(GRADIENTS), PROB * len(GRADIENTS), 1, capacity=CAPACITY)
    tx = gdpjax.privatize(grad_fn, NOISE, batches, noise_key)
    w, num_valid = jnp.zeros(()), jnp.where(included, len(GRADIENTS), len(GRADIENTS) - 1)
    batch = batches.sample(sample_key, 0, num_valid=num_valid)
    total = grad_fn(w, jnp.asarray(GRADIENTS)[batch.indices], is_padding=batch.is_padding)
    return tx.update(total, tx.init(w), w)[0]


def test_truncation_accounted_as_poisson_sampling_is_refuted():
    assert is_refuted(release, subsample(Gaussian(1 / NOISE), PROB))


def test_truncation_accounted_as_what_it_is_stands():
    assert not is_refuted(release, CLAIM)
