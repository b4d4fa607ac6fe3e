"""A sweep over a task of your own: which learning rate, clip norm and batch size are best within epsilon 2?

It shows what `gdpjax.sweeps` takes (data, model, optimizer, and a dictionary of hyperparameters) and what comes back:
each training has its own keys and its own certified epsilon, those of one shape share a compiled program, and the
folder has a report in HTML. It prints the best within epsilon 2, what choosing costs, and the statement of one more
training with the chosen settings.

It needs the extra sweeps:

    pip install '.[sweeps]'    # in a clone of gdpjax
    python examples/sweep.py [FOLDER]
"""

import pathlib
import sys
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax import sweeps


def load():
    """Return training data, which are private, and evaluation data, which are public."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(1500, 8)).astype(np.float32)
    y = (np.sin(2 * x[:, 0]) + x[:, 1] > 0).astype(np.float32)
    return (x[:1000], y[:1000]), (x[1000:], y[1000:])


def build(example, width: int = 32):
    """Return the model. ``example`` has the shapes of one example; integers such as ``width`` can be searched, too."""
    x, _ = example

    def init(key):
        first, second = jax.random.split(key)
        return {
            "in": jax.random.normal(first, (*x.shape, width)) / x.shape[0] ** 0.5,
            "out": jax.random.normal(second, (width,)) / width,
        }

    def logit(params, x):
        return jnp.tanh(x @ params["in"]) @ params["out"]

    def loss(params, x, y):  # ONE example
        return optax.sigmoid_binary_cross_entropy(logit(params, x), y)

    def scores(params, x, y):  # all evaluation data
        return {"accuracy": jnp.mean((logit(params, x) > 0) == (y > 0.5))}

    return sweeps.Model(init, loss, scores)


def optimizer(learning_rate):
    return optax.adam(learning_rate)


HYPERPARAMETERS = {
    "learning_rate": {"min": 0.01, "max": 0.1, "count": 3, "log": True},
    "l2_clip_norm": [0.3, 1.0],
    "epsilon": [1.0, 2.0],  # certified targets, for which the noise is found
    "batch_size": 100,
    "epochs": 10,
    "seeds": 2,  # trainings of each configuration
}


def main(out=None, hyperparameters=HYPERPARAMETERS):
    folder = pathlib.Path(out or tempfile.mkdtemp())
    task = sweeps.Task(load, build, optimizer)
    result = sweeps.run_sweep(task, {"delta": 1e-5, "hyperparameters": hyperparameters}, folder / "sweep")
    print(result.best_in_words(epsilon=2.0))
    print(f"all {len(result.rows)} trainings, and what choosing among them costs: {result.report}\n")

    # The sweep keeps scores, not weights. Training again is one more release, with an epsilon of its own.
    best = result.best(epsilon=2.0)
    settings = {name: best[name] for name in hyperparameters if name != "seeds"}
    trained = sweeps.train(task, {"delta": 1e-5, "hyperparameters": settings}, folder / "best")
    print(f"trained again: accuracy on public data {trained.scores['accuracy']:.3f}")
    chosen = f"learning rate, clip norm and epsilon, by {len(result.rows)} other trainings on the same data"
    print(trained.plan.replace(tuned=chosen).statement())
    return result, trained


if __name__ == "__main__":
    main(*sys.argv[1:])
