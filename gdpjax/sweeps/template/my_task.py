"""A task to train: the data, the model with its loss, and the optimizer. Replace each by your own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax.sweeps import Model

NUM_CLASSES = 3


def load():
    """Return training data, which are private, and evaluation data, which are public: a few hundred made-up points."""
    draw = np.random.default_rng(0)
    labels = draw.integers(NUM_CLASSES, size=1200).astype(np.int32)
    centres = 2.0 * np.eye(NUM_CLASSES, 8)
    points = (centres[labels] + draw.normal(size=(1200, 8))).astype(np.float32)
    return (points[:1000], labels[:1000]), (points[1000:], labels[1000:])


def build(example, label_smoothing=0.0, width: int = 16):
    """Return a network with one hidden layer. ``example`` holds shapes and types of one point and its label."""
    point, _ = example

    def init(key):
        first, second = jax.random.split(key)
        return {
            "hidden": jax.random.normal(first, (point.shape[0], width)) / jnp.sqrt(point.shape[0]),
            "output": jax.random.normal(second, (width, NUM_CLASSES)) / jnp.sqrt(width),
        }

    def logits(params, points):
        return jnp.tanh(points @ params["hidden"]) @ params["output"]

    def loss(params, point, label):
        # Of ONE example: there is no batch axis here.
        target = optax.smooth_labels(jax.nn.one_hot(label, NUM_CLASSES), label_smoothing)
        return optax.softmax_cross_entropy(logits(params, point), target)

    def scores(params, points, labels):
        return {"accuracy": jnp.mean(jnp.argmax(logits(params, points), axis=-1) == labels)}

    return Model(init, loss, scores)


def optimizer(learning_rate, momentum=0.9):
    """Return stochastic gradient descent with momentum, along the noisy gradients."""
    return optax.sgd(learning_rate, momentum)
