"""One process of several that tune a language model: ``processes.py PORT COUNT INDEX FOLDER [die] [lora]``.

The first prints a line: the step that it began with, the lost steps, the charged steps, the part of the state that is
on one device, a digest of what the same noise makes of the parameters without units, how far from there the units moved
a parameter, and the final parameters.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec


def main(count: int, index: int, folder: Path, die: bool, lora: LoraConfig | None) -> None:
    """Train from the folder's checkpoint or from the start; the last process may die in the middle of a chunk."""
    plan = gdpjax.make_plan(
        clip=1.0, max_examples=16, expected_batch_size=4, num_steps=6, delta=1e-5, noise_multiplier=0.5
    )
    tuning = Finetuning(MODEL, plan, learning_rate=1e-2, lora=lora)
    training = tuning.training()

    # All devices share each weight. The weights of the other processes are wrong, and must not be used.
    mesh = mesh_of(2 * count)
    weights = init_params(MODEL, jax.random.key(1 + index))
    params = spread(tuning.initial(weights, jax.random.key(5 + index)), mesh)
    everywhere = NamedSharding(mesh, PartitionSpec())

    # The noise of the run alone, as there are no units.
    no_units = training.place(*units(0), sharding=everywhere)
    state = training.init(params, jax.random.key(11))
    for _ in range(plan.num_steps):
        state, _ = training.step(state, no_units)
    noise = flat(state.params)

    data = training.place(*units(16), sharding=everywhere)
    if has_run(folder):
        run = resume_run(folder, training, params, data, scan=False)
    else:
        run = start_run(folder, training, params, data, key=jax.random.key(11), scan=False)
    began, lost = run.step, run.num_lost

    def on_step(done: int) -> None:
        if die and done == 3 and index == count - 1:
            os._exit(9)

    while not run.finished:
        run.advance(2, on_step=on_step)
    values = flat(run.state.params)
    share = local_bytes(run.state) / all_bytes(run.state)
    if index == 0:
        words = " ".join(f"{value:.9g}" for value in values)
        digest, learned = hashlib.sha256(noise.tobytes()).hexdigest(), np.abs(values - noise).max()
        print("RESULT", began, lost, run.ledger.num_steps, share, digest, learned, words, flush=True)


def units(num_units: int) -> tuple[np.ndarray, np.ndarray]:
    """Return units of one sequence of random tokens."""
    tokens = np.random.default_rng(0).integers(1, MODEL.vocab_size, (num_units, 1, MODEL.max_length)).astype(np.int32)
    return tokens, np.ones_like(tokens)


def flat(tree) -> np.ndarray:
    """Return all numbers of a tree on every process."""
    leaves = [multihost_utils.process_allgather(leaf, tiled=True) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([np.ravel(leaf).astype(np.float32) for leaf in leaves])


def all_bytes(state) -> int:
    """Return the bytes of parameters and of what Adam keeps of them."""
    return sum(leaf.nbytes for leaf in jax.tree.leaves((state.params, state.opt_state)))


def local_bytes(state) -> int:
    """Return those on one device of this process."""
    leaves = jax.tree.leaves((state.params, state.opt_state))
    return sum(leaf.addressable_shards[0].data.nbytes for leaf in leaves)


if __name__ == "__main__":
    port, count, index, folder, *rest = sys.argv[1:]
    if int(count) > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.config.update("jax_enable_recoverability", True)
        jax.distributed.initialize(
            f"localhost:{port}", num_processes=int(count), process_id=int(index), heartbeat_timeout_seconds=10
        )

    # Some of these make arrays when they are imported, which is for after JAX knows of the other processes.
    import gdpjax
    from experiments.language.config import PRESETS
    from experiments.language.finetuning import Finetuning
    from experiments.language.lora import LoraConfig
    from experiments.language.model import init_params
    from experiments.language.sharding import mesh_of, spread
    from gdpjax.training import has_run, resume_run, start_run

    MODEL = dataclasses.replace(
        PRESETS["tiny"],
        vocab_size=64,
        num_layers=2,
        model_width=16,
        num_heads=2,
        num_kv_heads=2,
        head_width=8,
        hidden_width=32,
        max_length=8,
        compute_dtype="float32",
    )
    adapters = LoraConfig(rank=2, alpha=4.0, targets="query|down") if "lora" in rest else None
    main(int(count), int(index), Path(folder), "die" in rest, adapters)
