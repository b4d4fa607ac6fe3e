"""Run by test_mesh in a process of its own with eight CPU devices: prints what it finds as JSON."""

import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import gdpjax

FAST = {"xla_backend_optimization_level": 0}
RNG = np.random.default_rng(0)
PARAMS = {
    "a": RNG.normal(size=(16, 32)).astype(np.float32),
    "b": np.zeros(32, np.float32),
    "c": np.full((32, 8), 1 / 8, np.float32),
}
X = RNG.normal(size=(64, 16)).astype(np.float32)
Y = np.arange(64) % 8


GHOST = {"strategy": "ghost"}
CHUNKS = {"microbatch_size": 3}
CASES = [
    (2, AxisType.Explicit, False, CHUNKS),
    (8, AxisType.Auto, False, CHUNKS),
    (8, AxisType.Auto, True, GHOST),
    (8, AxisType.Explicit, True, GHOST),
]


@jax.custom_vjp
def layer(w, h):
    return h @ w


layer.defvjp(lambda w, h: (h @ w, (w, h)), lambda saved, g: (jnp.outer(saved[1], g), saved[0] @ g))


def loss(p, x, y, key, scale):
    """A layer with dropout, one with a derivative rule, and an argument that all examples share."""
    hidden = jnp.tanh(x @ p["a"] + p["b"]) * jax.random.bernoulli(key, 0.8, (32,))
    return -jax.nn.log_softmax(layer(p["c"], hidden) * scale)[y]


def placed(args, padding, devices, axis_type, fsdp):
    """The arguments and the padding on a mesh: rows along it, and parameters too if they are split."""
    mesh = jax.make_mesh((devices,), ("data",), axis_types=(axis_type,), devices=jax.devices()[:devices])
    along_mesh = NamedSharding(mesh, PartitionSpec("data"))
    everywhere = NamedSharding(mesh, PartitionSpec())
    params, x, y, *shared = args
    params = jax.device_put(params, along_mesh if fsdp else everywhere)
    x, y, padding = jax.device_put((x, y, padding), along_mesh)
    return (params, x, y, *jax.device_put(shared, everywhere)), padding


def run(devices, axis_type, fsdp, **options):
    """The sum and its info as one vector, and the all-reduces of the compiled program and of what was asked for."""
    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2), key_argnums=3, return_info=True, **options)
    args = (PARAMS, X, Y, jax.random.key(7), np.float32(1.5))
    padding = np.arange(64) % 9 == 4
    if devices > 1:
        args, padding = placed(args, padding, devices, axis_type, fsdp)
    step = jax.jit(lambda args, padding: grad_fn(*args, is_padding=padding), compiler_options=FAST)
    lowered = step.lower(args, padding)
    program = lowered.compile()
    reduced = re.findall(r"= (\S.*?) all-reduce(?:-start)?\(", program.as_text())

    # What is asked of the compiler: a CPU reduces a half-precision sum in float32, other backends do not.
    asked = re.findall(r"all_reduce.*?\}\) : \((.*?)\)", lowered.as_text(), flags=re.DOTALL)
    values = [np.ravel(leaf) for leaf in jax.tree.leaves(program(args, padding))]
    return np.concatenate(values), reduced, asked


def num_elements(types):
    """Return how many numbers the types of an all-reduce hold in float32, as f32[3,4]."""
    total = 0
    for dimensions in re.findall(r"f32\[([0-9,]*)\]", types):
        total += math.prod(int(length) for length in dimensions.split(",") if length)
    return total


def main():
    reference, *_ = run(1, None, False)
    report = {}
    for devices, axis_type, fsdp, options in CASES:
        values, reduced, asked = run(devices, axis_type, fsdp, **options)
        error = np.abs(values - reference).max() / np.abs(reference).max()
        types = re.findall(r"\b([a-z]+\d+)\[", " ".join(reduced))
        report[f"{devices} {axis_type.name} {'fsdp' if fsdp else ''} {options}"] = {
            "error": float(error),
            "all_reduces": len(reduced),
            "elements": sum(num_elements(shapes) for shapes in reduced),
            "asked_types": sorted(set(re.findall(r"(bf16|f16|f32|f64)>", " ".join(asked)))),
            "other_types": sorted(set(types) - {"f32"}),
        }
    report["checked shard_map"] = checked_shard_map()
    print(json.dumps(report))


def checked_shard_map():
    """Check that gradients JAX would add up over devices before the clip are refused, and right without JAX's check."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    specs = {
        "mesh": mesh,
        "in_specs": (PartitionSpec(), PartitionSpec("d")),
        "out_specs": PartitionSpec(),
    }
    params = np.ones(16, np.float32)
    answers = []
    for strategy in ("vmap", "ghost"):
        grad_fn = gdpjax.clipped_grad(lambda p, x: jnp.sum(x * p), 1.0, strategy=strategy)

        def local(p, x, grad_fn=grad_fn):
            return jax.lax.psum(grad_fn(p, x), "d")

        def both(p, x, grad_fn=grad_fn, local=local):
            return jax.shard_map(local, check_vma=False, **specs)(p, x), grad_fn(p, x)

        unchecked, expected = jax.jit(both, compiler_options=FAST)(params, X)
        answers.append(float(np.abs(np.asarray(unchecked) - np.asarray(expected)).max()))
        try:
            jax.shard_map(local, **specs)(params, X)
        except ValueError as error:
            answers.append("check_vma=False" in str(error))
    return answers


if __name__ == "__main__":
    main()
