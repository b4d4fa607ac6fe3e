"""The noisy sums of a private epoch, for audits of the sampling, and such an audit."""

import jax
import jax.numpy as jnp
import numpy as np

import gdpjax
from gdpjax.auditing import audit_step


def release_epoch(key, included, batches, gradients, *, noise_multiplier):
    """Return the releases of an epoch; the last gradient is the target's, ``included`` or not."""
    sample_key, noise_key = jax.random.split(key)
    grad_fn = gdpjax.clipped_grad(lambda w, x: w * x, 1.0)
    tx = gdpjax.privatize(grad_fn, noise_multiplier, batches, noise_key)
    w = jnp.zeros(())
    num_valid = jnp.where(included, len(gradients), len(gradients) - 1)

    def release_step(state, step):
        batch = batches.sample(sample_key, step, num_valid=num_valid)
        total = grad_fn(w, jnp.asarray(gradients)[batch.indices], is_padding=batch.is_padding)
        mean, state = tx.update(total, state, w)
        return state, mean

    _, released = jax.lax.scan(release_step, tx.init(w), jnp.arange(batches.num_steps))
    return released


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
