"""A task of a user's own, in a module of its own: a line through points. Not a test; the tests import it."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax.sweeps import Model


def load():
    """Points near a line; the outputs are wide, so that two hyperparameters matter."""
    draw = np.random.default_rng(1)
    x = draw.normal(size=(80, 3)).astype(np.float32)
    y = (x @ np.array([1.0, -2.0, 0.5], np.float32)).astype(np.float32)
    return (x[:64], y[:64]), (x[64:], y[64:])


def build(example, penalty=0.0, width: int = 1):
    """A sum of ``width`` lines."""
    x, _ = example

    def init(key):
        return 0.1 * jax.random.normal(key, (width, *x.shape))

    def loss(params, x, y):
        return 0.5 * (jnp.sum(params @ x) - y) ** 2 + penalty * jnp.sum(params**2)

    def scores(params, x, y):
        return {"rmse": jnp.sqrt(jnp.mean((jnp.sum(x @ params.T, axis=-1) - y) ** 2)), "size": jnp.sum(params**2)}

    return Model(init, loss, scores)


def optimizer(learning_rate, momentum=0.0):
    """Stochastic gradient descent."""
    return optax.sgd(learning_rate, momentum)
