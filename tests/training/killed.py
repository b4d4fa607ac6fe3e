"""A small run in a process of its own, to be killed: ``python killed.py FOLDER [KEY=VALUE ...]``.

Prints a line for every step, and one at the end.
"""

import functools
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
import optax

from gdpjax.training import make_plan, private_training, start_run

NUM_STEPS = 20


def loss(params, x, y):
    """A tiny network, so that rounding has something to differ in."""
    hidden = jnp.tanh(x @ params["w"] + params["b"])
    return optax.softmax_cross_entropy_with_integer_labels(hidden @ params["v"], y)


@functools.cache
def build(noise_multiplier=2.0, rate=0.5):
    """The training, its initial parameters and its data; the same ones, compiled once, for all tests of a process."""
    draw = np.random.default_rng(0)
    x = draw.normal(size=(64, 5)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    params = {
        "w": jnp.asarray(draw.normal(size=(5, 8)), jnp.float32),
        "b": jnp.zeros(8),
        "v": jnp.asarray(draw.normal(size=(8, 2)), jnp.float32),
    }
    plan = make_plan(
        clip=1.0,
        max_examples=64,
        expected_batch_size=16,
        num_steps=NUM_STEPS,
        delta=1e-5,
        noise_multiplier=noise_multiplier,
    )
    training = private_training(plan, loss, optax.adam(rate))
    return training, params, training.place(x, y)


def main(folder: Path, rate: float, chunk: int) -> None:
    """Start or resume, and print each step."""
    training, params, data = build(rate=rate)
    run = start_run(folder, training, params, data, key=jax.random.key(11), scan=False, resume=True)
    print("begin", run.step, run.num_lost, flush=True)

    def print_step(done: int) -> None:
        print("step", done, flush=True)

    while not run.finished:
        run.advance(chunk, on_step=print_step)
    print("end", flush=True)


if __name__ == "__main__":
    settings = dict(argument.split("=") for argument in sys.argv[2:])
    main(Path(sys.argv[1]), float(settings.get("rate", 0.5)), int(settings.get("chunk", 7)))
    os._exit(0)
