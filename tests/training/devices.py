"""Run by test_devices in a process of its own with eight CPU devices: prints what it finds as JSON."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gdpjax
from gdpjax.training import make_plan, private_training

CASES = [(4, "Auto", True), (8, "Explicit", False)]
"""How many devices, the type of their axis, and whether the parameters are spread over them."""


def loss(params, x, y):
    """A small network."""
    return optax.softmax_cross_entropy_with_integer_labels(jnp.tanh(x @ params["a"]) @ params["b"], y)


def small():
    """A training of three steps, its parameters and its data."""
    plan = make_plan(clip=1.0, max_examples=96, expected_batch_size=24, num_steps=3, delta=1e-5, noise_multiplier=2.0)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(90, 16)).astype(np.float32)
    params = {"a": jnp.asarray(draw.normal(size=(16, 64)) / 4, jnp.float32), "b": jnp.zeros((64, 8))}
    return private_training(plan, loss, optax.sgd(0.5, momentum=0.9)), params, x, (x[:, 0] > 0).astype(np.int32)


SMALL = small()


def run(count, kind="Auto", fsdp=False, empty=False):
    """The parameters after three steps, flat."""
    training, params, x, y = SMALL
    if empty:
        x, y = x[:0], y[:0]
    data = training.place(x, y)
    if count > 1:
        mesh = jax.make_mesh((count,), ("data",), axis_types=(AxisType[kind],), devices=jax.devices()[:count])
        data = training.place(x, y, sharding=NamedSharding(mesh, PartitionSpec()))
        spec = PartitionSpec(None, "data") if fsdp else PartitionSpec()
        params = jax.device_put(params, NamedSharding(mesh, spec))
    state = training.init(params, jax.random.key(7))
    for _ in range(2 if empty else 3):
        state, _ = training.step(state, data)
    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert event.num_steps == (2 if empty else 3)
    if count > 1:
        assert len(state.params["a"].sharding.device_set) == count
        assert fsdp == (not state.params["a"].sharding.is_fully_replicated)
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])


def collectives_of_noise():
    """The operations between devices in a program that adds noise to small parameters on a mesh of two axes."""
    mesh = jax.make_mesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    both_axes = NamedSharding(mesh, PartitionSpec("data", "model"))
    one_axis = NamedSharding(mesh, PartitionSpec("data"))
    params = {
        "kernel": jax.device_put(jnp.zeros((64, 32)), both_axes),
        "bias": jax.device_put(jnp.zeros(32), one_axis),
    }
    noise = gdpjax.add_gaussian_noise(1.0, jax.random.key(0))
    state = noise.init(params)
    shardings = jax.tree.map(lambda leaf: leaf.sharding, params)

    def noisy(params):
        return noise.update(params, state, params)[0]

    program = jax.jit(noisy, out_shardings=shardings).lower(params).compile().as_text()
    names = ("all-gather", "all-reduce", "all-to-all", "collective-permute")
    return [name for name in names if name in program]


def print_report(cases):
    """Print how the runs of some cases differ from that of one device, and what is sent for the noise."""
    report = {}
    reference, noise = run(1), run(1, empty=True)
    for case in cases:
        apart = float(np.abs(run(*case) - reference).max())
        report[" ".join(map(str, case))] = {
            "error": apart / float(np.abs(reference).max()),
            "same_noise": bool(np.array_equal(run(*case, empty=True), noise)),
        }
    print(json.dumps({"runs": report, "collectives of noise": collectives_of_noise()}))


if __name__ == "__main__":
    print_report(CASES)
