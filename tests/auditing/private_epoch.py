"""The noisy sums of a private epoch, for audits of the sampling."""

import jax
import jax.numpy as jnp
import numpy as np

import gdpjax


def release_epoch(key, included, draw, gradients, *, noise_multiplier, num_steps, sampling):
    """Return the releases of an epoch of ``num_steps``; the last gradient is the target's, ``included`` or not.

    ``draw(key, step, num_valid)`` gives the batch of a step.
    """
    sample_key, noise_key = jax.random.split(key)
    grad_fn = gdpjax.clipped_grad(lambda w, x: w * x, 1.0)
    tx = gdpjax.privatize(
        grad_fn,
        noise_multiplier=noise_multiplier,
        sampling_prob=1 / num_steps,
        expected_batch_size=1.0,
        key=noise_key,
        sampling=sampling,
        scheme={"steps_per_epoch": num_steps},
    )
    w = jnp.zeros(())
    num_valid = jnp.where(included, len(gradients), len(gradients) - 1)

    def release_step(state, step):
        batch = draw(sample_key, step, num_valid)
        total = grad_fn(w, jnp.asarray(gradients)[batch.indices], is_padding=batch.is_padding)
        mean, state = tx.update(total, state, w)
        return state, mean

    _, released = jax.lax.scan(release_step, tx.init(w), jnp.arange(num_steps))
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
