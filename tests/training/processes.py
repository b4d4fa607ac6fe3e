"""One process of several: ``processes.py PORT COUNT INDEX FOLDER [whole] [resume] [die] [correlated]``.

The first process prints a line at the end. With ``whole`` it makes another run before, from its start to its end, in
the folder FOLDER.whole, and leaves the parameters in FOLDER.npy. With ``resume`` it goes on from the folder's
checkpoint. (It does not look for one: a process that is late would find what another has just begun.)
"""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.experimental import multihost_utils
from jax.sharding import AxisType, NamedSharding, PartitionSpec

SEED = 1011


def build(index: int, correlated: bool):
    """Return a training, its parameters on one device of this process, and its data on all devices."""
    from gdpjax import IndependentGaussian
    from gdpjax.correlated import BandedInverse
    from gdpjax.sampling import Poisson, Shuffled
    from gdpjax.training import make_plan, private_training

    # Twelve steps of Poisson batches; or four epochs of three, with noise that takes back parts of two draws.
    batches = Poisson(96, 24, num_steps=12)
    noise = IndependentGaussian()
    if correlated:
        batches = Shuffled(90, 30, epochs=4, order="fixed")
        noise = BandedInverse([1.0, -0.6, -0.1])
    plan = make_plan(batches, clip=1.0, delta=1e-5, noise_multiplier=2.0, noise=noise)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 16)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    # The first process's parameters are taken.
    params = jnp.asarray(draw.normal(size=(16, 2)), jnp.float32) / 4 + index

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(jnp.tanh(x @ params), y)

    training = private_training(plan, loss, optax.sgd(0.5, momentum=0.9))
    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    return training, params, training.place(x, y, sharding=NamedSharding(mesh, PartitionSpec()))


def finished(run, on_step=None) -> np.ndarray:
    """Take the steps that are left, and return the parameters, flat."""
    while not run.finished:
        run.advance(5, on_step=on_step)
    return np.ravel(multihost_utils.process_allgather(run.state.params, tiled=True))


def main(count: int, index: int, folder: Path, *options: str) -> None:
    """Train from the folder's checkpoint or from the start; the last process may die in the middle of a chunk."""
    from gdpjax.training import resume_run, start_run

    parts = build(index, "correlated" in options)
    key = jax.random.key(SEED)
    if "whole" in options:
        values = finished(start_run(folder.with_suffix(".whole"), *parts, key=key, scan=False))
        if index == 0:
            np.save(folder.with_suffix(".npy"), values)
    if "resume" in options:
        run = resume_run(folder, *parts, scan=False)
    else:
        run = start_run(folder, *parts, key=key, scan=False)
    began, lost = run.step, run.num_lost

    def on_step(done):
        if "die" in options and done == 7 and index == count - 1:
            os._exit(9)

    final = finished(run, on_step)
    if index == 0:
        print("RESULT", began, lost, run.ledger.num_steps, " ".join(f"{value:.9g}" for value in final), flush=True)


if __name__ == "__main__":
    port, count, index, folder, *rest = sys.argv[1:]
    if int(count) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_enable_recoverability", True)
        jax.distributed.initialize(
            f"localhost:{port}", num_processes=int(count), process_id=int(index), heartbeat_timeout_seconds=10
        )
    main(int(count), int(index), Path(folder), *rest)
