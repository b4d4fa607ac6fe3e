"""Print, as JSON, what correlated noise does on a mesh of eight devices: its bits, its layout, its communication."""

import json
import math
import re

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gdpjax
from gdpjax.correlated import BandedInverse, BandedToeplitz, BufferedToeplitz, MinSep
from gdpjax.sampling import PoissonNumbers, Promised
from tests.correlated.matrices import matrix_of

STRATEGIES = {
    "independent": None,
    "drawn_again": BandedInverse([1.0, -0.5, -0.2], memory="regenerate"),
    "banded_inverse": BandedInverse([1.0, -0.5, -0.2], memory="buffer"),
    "banded_toeplitz": BandedToeplitz([0.8, 0.5, 0.3]),
    "buffered": BufferedToeplitz([0.99, 0.5], [0.3, 0.2]),
}
# The first is drawn in parts, one a device; of the second every device draws the whole and keeps its part.
LEAVES = {
    "first_axis": ((4096, 32), PartitionSpec("x")),
    "last_axis": ((64, 2048), PartitionSpec(None, "x")),
}
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
    """Return `privatize` with this noise, and what a unit of noise is multiplied by."""
    key = jax.random.key(0)
    sum_of_one = gdpjax.Sensitivity(1.0)
    if strategy is None:
        return gdpjax.privatize(sum_of_one, 1.0, PoissonNumbers(0.1, 10), key), 0.1
    promise = MinSep(2, 2)
    private = gdpjax.privatize(sum_of_one, 1.0, Promised(10, 4, promise), key, noise=strategy)
    return private, 0.1 * strategy.sensitivity(4, promise)


def zeros(mesh=None):
    """Return the leaves, sharded over a mesh if there is one."""
    tree = {}
    for name, (shape, spec) in LEAVES.items():
        where = None if mesh is None else NamedSharding(mesh, spec)
        tree[name] = jax.device_put(np.zeros(shape, np.float32), where)
    return tree


def released(strategy, mesh=None):
    """Return what some steps release, a unit of the noise, the buffers before and after, and the compiled step."""
    params = zeros(mesh)
    private, unit = transformation(strategy)
    state = private.init(params)
    buffers = [jax.tree.leaves(state.past_noise)]
    step = jax.jit(private.update).lower(params, state, params).compile()
    outputs = []
    for _ in range(STEPS):
        output, state = step(params, state, params)
        outputs.append(output)
    buffers.append(jax.tree.leaves(state.past_noise))
    return outputs, unit, buffers, step.as_text()


def stacked(outputs):
    """Return each leaf of the outputs of all steps, [STEPS, ...], as NumPy arrays."""
    return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *outputs)


def of_noise(strategy, mesh, draws):
    """Return what the noise of one strategy does on a mesh, beside what it is: C^-1 times the draws of one device."""
    outputs, unit, (first_buffers, last_buffers), text = released(strategy, mesh)
    inverse = np.eye(STEPS) if strategy is None else np.linalg.inv(matrix_of(strategy, STEPS))
    differences = []
    for name, found in stacked(outputs).items():
        truth = unit * np.tensordot(inverse, draws[name], axes=1)
        differences.append(np.abs(found - truth).max())

    # A buffer has an axis for its slots before those of its leaf.
    specs = [NamedSharding(mesh, LEAVES[name][1]) for name in sorted(LEAVES)]
    beside = [NamedSharding(mesh, PartitionSpec(None, *each.spec)) for each in specs]
    smallest = min(math.prod(shape) for shape, _ in LEAVES.values())
    return {
        "difference": float(max(differences)),
        "outputs_in_place": all(
            leaf.sharding.is_equivalent_to(spec, 2)
            for output in outputs
            for leaf, spec in zip(jax.tree.leaves(output), specs, strict=True)
        ),
        "buffers_in_place": all(
            buffer.sharding.is_equivalent_to(spec, 3)
            for buffers in (first_buffers, last_buffers)
            for buffer, spec in zip(buffers, beside, strict=False)
        ),
        "num_buffers": len(last_buffers),
        "communicates": largest_communication(text) / smallest,
    }


def report(on_automatic_axes, on_explicit_axes):
    """Print what the noise of these strategies does on meshes.

    Args:
      on_automatic_axes: names of strategies whose mesh has axes that the compiler uses as it sees fit.
      on_explicit_axes: of those whose mesh has axes that are part of the types of arrays.
    """
    automatic = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Auto,))
    explicit = jax.make_mesh((8,), ("x",), axis_types=(AxisType.Explicit,))
    outputs, unit, _, _ = released(None)
    draws = jax.tree.map(lambda leaf: leaf / unit, stacked(outputs))
    found = {}
    for mesh, names in ((automatic, on_automatic_axes), (explicit, on_explicit_axes)):
        for name in names:
            found[name] = of_noise(STRATEGIES[name], mesh, draws)
    print(json.dumps(found))


if __name__ == "__main__":
    report(["drawn_again"], on_explicit_axes=["banded_toeplitz"])
