"""Print, as JSON, what private training of a language model does on eight devices, beside one."""

import dataclasses
import json
import math
import re
import tempfile
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gdpjax
from experiments.language.config import PRESETS
from experiments.language.finetuning import Finetuning
from experiments.language.model import init_params
from experiments.language.sharding import spread
from gdpjax.training import resume_run, start_run

MODEL = dataclasses.replace(
    PRESETS["tiny"],
    vocab_size=64,
    num_layers=2,
    model_width=32,
    num_heads=4,
    num_kv_heads=2,
    head_width=8,
    hidden_width=320,  # weights of more than 16,384 numbers, whose noise is drawn by a loop
    max_length=16,
    compute_dtype="float32",
)
MESHES = {
    "eight": (8, "Auto"),
    "four": (4, "Auto"),
    "explicit": (8, "Explicit"),
}
STEPS = 4
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def tuning():
    """Return a private training of four steps."""
    plan = gdpjax.make_plan(
        clip=1.0, max_examples=32, expected_batch_size=8, num_steps=STEPS, delta=1e-5, noise_multiplier=0.5
    )
    return Finetuning(MODEL, plan, learning_rate=1e-2)


def units(count):
    """Return rows of random tokens."""
    draw = np.random.default_rng(0)
    tokens = draw.integers(1, MODEL.vocab_size, (count, 2, 16)).astype(np.int32)
    return tokens, np.ones_like(tokens)


def placed(shape, kind, training, rows):
    """Return parameters and data on a mesh, or on one device."""
    params = init_params(MODEL, jax.random.key(1))
    if shape is None:
        return params, training.place(*rows)
    mesh = jax.make_mesh((shape,), ("data",), axis_types=(AxisType[kind],), devices=jax.devices()[:shape])
    return spread(params, mesh), training.place(*rows, sharding=NamedSharding(mesh, PartitionSpec()))


def trained(shape=None, kind="Auto", count=32):
    """Return the last state; without units only the noise moves the parameters."""
    training = tuning().training()
    params, data = placed(shape, kind, training, units(count))
    state = training.init(params, jax.random.key(7))
    for _ in range(STEPS):
        state, _ = training.step(state, data)
    return state


def sent(shape, kind):
    """Return how many numbers the compiled step sends between devices, by kind.

    Arrays of at most as many numbers as there are units are not counted.
    """
    training = tuning().training()
    params, data = placed(shape, kind, training, units(32))
    state = training.init(params, jax.random.key(7))
    found = {}
    for line in training.step.lower(state, data).compile().as_text().splitlines():
        match = re.search(rf"= (.*?) ({'|'.join(COLLECTIVES)})(?:-start)?\(", line)
        if match is None:
            continue
        shapes, name = match.groups()
        for dims in re.findall(r"\[([0-9,]*)\]", shapes):
            size = math.prod(int(dim) for dim in dims.split(",") if dim)
            if size > training.plan.max_examples:
                found[name] = found.get(name, 0) + size
    return found


def flat(tree):
    """Return all numbers of a tree."""
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def bytes_of_a_device(tree):
    """Return how much of the arrays lies on the first device."""
    first = jax.devices()[0]
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    return sum(shard.data.nbytes for leaf in leaves for shard in leaf.addressable_shards if shard.device == first)


def kept(state):
    """Return what is kept from step to step: parameters, and the optimizer's memory of them."""
    return state.params, state.opt_state


def resumed_elsewhere(folder, first, second):
    """Begin a run on one mesh and end it on another; return whether all is finite, and how many steps were lost."""
    training = tuning().training()
    params, data = placed(*first, training, units(32))
    start_run(folder, training, params, data, key=gdpjax.fresh_key(), scan=False).advance(2)
    training = tuning().training()
    params, data = placed(second, "Auto", training, units(32))
    run = resume_run(folder, training, params, data, scan=False)
    lost = run.num_lost
    run.advance(STEPS)
    assert run.ledger.num_steps == STEPS
    return bool(np.isfinite(flat(run.state.params)).all()), lost


def main():
    report = {}
    alone, noise = trained(), trained(count=0)
    size = float(np.abs(flat(alone.params)).max())
    for name, (shape, kind) in MESHES.items():
        state = trained(shape, kind)
        noise_here = flat(trained(shape, kind, count=0).params)
        report[name] = {
            "error": float(np.abs(flat(state.params) - flat(alone.params)).max()) / size,
            "noise_error": float(np.abs(noise_here - flat(noise.params)).max()) / size,
            "bytes": bytes_of_a_device(kept(state)) / bytes_of_a_device(kept(alone)),
            "sharded": not state.params["layers"]["feed_forward"]["up"]["kernel"].sharding.is_fully_replicated,
            "num_params": sum(leaf.size for leaf in jax.tree.leaves(state.params)),
            "sent": sent(shape, kind),
        }
    moves = {"on one": ("eight", None), "on four": ("explicit", 4)}
    for name, (first, second) in moves.items():
        with tempfile.TemporaryDirectory() as folder:
            report[name] = resumed_elsewhere(Path(folder) / "run", MESHES[first], second)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
