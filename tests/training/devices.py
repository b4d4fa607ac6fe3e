"""Train on several CPU devices, and print as JSON how the runs differ; test_devices starts this as a process."""

import json
import tempfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gdpjax
from gdpjax.training import make_plan, private_training, start_run

CASES = [(4, "Auto", True), (8, "Explicit", False)]
"""How many devices, the type of their axis, and whether the parameters are spread over them."""


def loss(params, x, y):
    """Return the cross-entropy of a small network."""
    hidden = jnp.tanh(x @ params["a"])
    logits = hidden @ params["b"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, y)


def small():
    """Return a training of three steps, its parameters and its data."""
    plan = make_plan(
        clip=1.0,
        max_examples=96,
        expected_batch_size=24,
        num_steps=3,
        delta=1e-5,
        noise_multiplier=2.0,
    )
    generator = np.random.default_rng(0)
    x = generator.normal(size=(90, 16)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    params = {
        "a": jnp.asarray(generator.normal(size=(16, 64)) / 4, jnp.float32),
        "b": jnp.zeros((64, 8)),
    }
    training = private_training(plan, loss, optax.sgd(0.5, momentum=0.9))
    return training, params, x, y


SMALL = small()


def run(num_devices, axis_type="Auto", fsdp=False, empty=False):
    """Return the parameters after three steps, flat; or after two on no data, which are noise alone."""
    training, params, x, y = SMALL
    num_steps = 3
    if empty:
        num_steps = 2
        x = x[:0]
        y = y[:0]
    data = training.place(x, y)
    if num_devices > 1:
        devices = jax.devices()[:num_devices]
        mesh = jax.make_mesh((num_devices,), ("data",), axis_types=(AxisType[axis_type],), devices=devices)
        data = training.place(x, y, sharding=NamedSharding(mesh, PartitionSpec()))
        spec = PartitionSpec(None, "data") if fsdp else PartitionSpec()
        params = jax.device_put(params, NamedSharding(mesh, spec))

    state = training.init(params, jax.random.key(7))
    for _ in range(num_steps):
        state, _ = training.step(state, data)

    (event,) = gdpjax.ledger_of(state.opt_state).events
    assert event.num_steps == num_steps
    if num_devices > 1:
        sharding = state.params["a"].sharding
        assert len(sharding.device_set) == num_devices
        assert fsdp == (not sharding.is_fully_replicated)
    leaves = [np.ravel(leaf) for leaf in jax.tree.leaves(state.params)]
    return np.concatenate(leaves)


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


def leaves_that_moved():
    """The leaves of a run that a chunk leaves spread otherwise, where the optimizer has not spread its momentum."""
    training, params, x, y = SMALL
    momentum = optax.trace(0.9)
    unspread = momentum._replace(init=lambda params: momentum.init(jax.tree.map(lambda p: jnp.zeros(p.shape), params)))
    training = private_training(training.plan, loss, unspread)
    spread = NamedSharding(jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,)), PartitionSpec(None, "data"))
    with tempfile.TemporaryDirectory() as folder:
        run = start_run(folder, training, jax.device_put(params, spread), training.place(x, y), key=jax.random.key(7))
        before = [leaf.sharding for leaf in jax.tree.leaves(run.state)]
        run.advance(1)
        after = jax.tree.leaves(run.state)
    pairs = zip(after, before, strict=True)
    return [leaf.shape for leaf, sharding in pairs if not leaf.sharding.is_equivalent_to(sharding, leaf.ndim)]


def print_report(cases):
    """Print how the runs of some cases differ from that of one device, and what is sent for the noise."""
    reference = run(1)
    reference_noise = run(1, empty=True)
    largest = float(np.abs(reference).max())
    report = {}
    for case in cases:
        name = " ".join(str(part) for part in case)
        largest_difference = float(np.abs(run(*case) - reference).max())
        noise = run(*case, empty=True)
        report[name] = {
            "error": largest_difference / largest,
            "same_noise": bool(np.array_equal(noise, reference_noise)),
        }
    found = {"runs": report, "collectives of noise": collectives_of_noise(), "moved": leaves_that_moved()}
    print(json.dumps(found))


if __name__ == "__main__":
    print_report(CASES)
