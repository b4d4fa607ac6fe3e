"""Print, as JSON, what correlated noise does on a mesh of eight devices: its bits, its layout, its communication."""

import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gdpjax
from gdpjax.correlated import BandedInverse, BandedToeplitz, BufferedToeplitz, Dense, MinSep, lambda_cgd
from gdpjax.training import make_plan, private_training

STRATEGIES = {
    "independent": None,
    "lambda_cgd": lambda_cgd(0.9),
    "drawn_again": BandedInverse([1.0, -0.5, -0.2], memory="regenerate"),
    "banded_inverse": BandedInverse([1.0, -0.5, -0.2], memory="buffer"),
    "banded_toeplitz": BandedToeplitz([0.8, 0.5, 0.3]),
    "buffered": BufferedToeplitz([0.99, 0.5], [0.3, 0.2]),
    "dense": Dense(np.tril(np.full((4, 4), 0.3), -1) + np.eye(4)),
}
# Leaves with an axis over the devices: large enough that few of their rows of 64 draw a second word, and small.
LEAVES = {
    "first_axis": ((4096, 32), PartitionSpec("x")),
    "last_axis": ((64, 2048), PartitionSpec(None, "x")),
    "odd": ((1000, 72), PartitionSpec("x")),
}
SMALL = {"first_axis": ((64, 3), PartitionSpec("x")), "last_axis": ((3, 64), PartitionSpec(None, "x"))}
STEPS = 3
COMMUNICATION = re.compile(
    r"= (?P<result>.+?) (?P<kind>all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter)(-start)?\("
)
ARRAY = re.compile(r"[a-z]+[0-9]*\[([0-9,]*)\]")


def largest_communication(text):
    """Return how many elements the largest array has that a compiled program sends between devices."""
    largest = 0
    for found in COMMUNICATION.finditer(text):
        for shape in ARRAY.findall(found["result"]):
            largest = max(largest, math.prod(int(size) for size in shape.split(",") if size))
    return largest


def transformation(strategy):
    """Return `privatize` with this noise."""
    noise = {"sampling_prob": 0.1}
    if strategy is not None:
        noise = {"correlation": strategy, "participation": MinSep(2, 2), "num_steps": 4}
    return gdpjax.privatize(
        gdpjax.Sensitivity(1.0), noise_multiplier=1.0, expected_batch_size=10, key=jax.random.key(0), **noise
    )


def zeros(leaves, mesh=None):
    """Return the leaves, sharded over a mesh if there is one."""
    tree = {}
    for name, (shape, spec) in leaves.items():
        where = None if mesh is None else NamedSharding(mesh, spec)
        tree[name] = jax.device_put(jnp.zeros(shape), where)
    return tree


def released(strategy, leaves, mesh=None):
    """Return what some steps release, and the last state."""
    params = zeros(leaves, mesh)
    private = transformation(strategy)
    state = private.init(params)
    update = jax.jit(private.update)
    outputs = []
    for _ in range(STEPS):
        output, state = update(params, state, params)
        outputs.append(output)
    return outputs, state


def of_noise(strategy, mesh):
    """Return what the noise of one strategy does on a mesh, beside one device."""
    alone, _ = released(strategy, SMALL)
    spread, state = released(strategy, SMALL, mesh)
    pairs = zip(jax.tree.leaves(alone), jax.tree.leaves(spread), strict=True)
    report = {
        "difference": max(float(np.abs(np.asarray(one) - np.asarray(many)).max()) for one, many in pairs),
        "released_as_the_parameters": all(
            output[name].sharding.is_equivalent_to(NamedSharding(mesh, spec), 2)
            for output in spread
            for name, (_, spec) in SMALL.items()
        ),
        "buffers_as_the_parameters": True,
        "communicates": {},
        "temporary": {},
    }
    # A buffer has an axis for its slots before those of its leaf; the names are leaf paths.
    if state.past_noise:
        for buffer, (_, spec) in zip(state.past_noise.values(), SMALL.values(), strict=True):
            beside = NamedSharding(mesh, PartitionSpec(None, *spec))
            report["buffers_as_the_parameters"] &= buffer.sharding.is_equivalent_to(beside, 3)

    for name in LEAVES:
        params = zeros({name: LEAVES[name]}, mesh)
        size = params[name].size
        private = transformation(strategy)
        program = jax.jit(private.update).lower(params, private.init(params), params).compile()
        report["communicates"][name] = largest_communication(program.as_text()) / size
        report["temporary"][name] = program.memory_analysis().temp_size_in_bytes / params[name].nbytes
    return report


def trained(strategy, mesh=None, empty=False):
    """Return the parameters after a short run, flat, with the rows and one of the leaves over the devices."""
    plan = make_plan(
        clip=1.0, max_examples=96, expected_batch_size=24, epochs=1, delta=1e-5, noise_multiplier=2.0,
        correlation=strategy,
    )  # fmt: skip

    def loss(params, x, y):
        return optax.softmax_cross_entropy_with_integer_labels(jnp.tanh(x @ params["a"]) @ params["b"], y)

    training = private_training(plan, loss, optax.sgd(0.5, momentum=0.9))
    draw = np.random.default_rng(0)
    x = draw.normal(size=(0 if empty else 96, 16)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int32)
    params = {"a": jnp.asarray(draw.normal(size=(16, 64)) / 4, jnp.float32), "b": jnp.zeros((64, 8))}
    if empty:
        params["a"] = jnp.zeros((16, 64))
    if mesh is None:
        data = training.place(x, y)
    else:
        data = training.place(x, y, sharding=NamedSharding(mesh, PartitionSpec()))
        params = jax.device_put(params, NamedSharding(mesh, PartitionSpec(None, "x")))
    state = training.init(params, jax.random.key(7))
    state, _ = training.run_steps(state, data, plan.max_steps)
    assert gdpjax.ledger_of(state.opt_state).events[0].num_steps == plan.max_steps
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.params)])


def of_training(strategy, mesh):
    """Return how far a run on the mesh ends from that on one device, relative to it, with data and with noise only."""
    found = {}
    for name, empty in (("run", False), ("noise", True)):
        reference = trained(strategy, empty=empty)
        apart = np.abs(trained(strategy, mesh, empty) - reference).max()
        found[name] = float(apart / np.abs(reference).max())
    return found


def main() -> None:
    report = {"noise": {}, "training": {}}
    for kind in (AxisType.Auto, AxisType.Explicit):
        mesh = jax.make_mesh((8,), ("x",), axis_types=(kind,))
        for name, strategy in STRATEGIES.items():
            report["noise"][f"{kind.name} {name}"] = of_noise(strategy, mesh)
    mesh = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    for name in ("drawn_again", "banded_inverse", "banded_toeplitz", "buffered"):
        report["training"][name] = of_training(STRATEGIES[name], mesh)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
