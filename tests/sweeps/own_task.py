"""A task of a user's own in a module of its own, which the tests import: a line through points."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax.sweeps import Model


def load():
    """Return 64 points on a plane to train on, and 16 to test on."""
    generator = np.random.default_rng(1)
    x = generator.normal(size=(80, 3)).astype(np.float32)
    slope = np.array([1.0, -2.0, 0.5], np.float32)
    y = (x @ slope).astype(np.float32)
    train = (x[:64], y[:64])
    test = (x[64:], y[64:])
    return train, test


def build(example, penalty=0.0, width: int = 1):
    """Return a model that is a sum of ``width`` linear ones."""
    x, _ = example

    def init(key):
        return 0.1 * jax.random.normal(key, (width, *x.shape))

    def loss(params, x, y):
        residual = jnp.sum(params @ x) - y
        return 0.5 * residual**2 + penalty * jnp.sum(params**2)

    def scores(params, x, y):
        residuals = jnp.sum(x @ params.T, axis=-1) - y
        return {
            "rmse": jnp.sqrt(jnp.mean(residuals**2)),
            "size": jnp.sum(params**2),
        }

    return Model(init, loss, scores)


def optimizer(learning_rate, momentum=0.0):
    """Return stochastic gradient descent with momentum."""
    return optax.sgd(learning_rate, momentum)
