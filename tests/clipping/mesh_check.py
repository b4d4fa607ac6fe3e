"""Run by test_mesh in a process of its own with eight CPU devices: prints what it finds as JSON."""

import json
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
    (8, AxisType.Explicit, False, GHOST),
    (8, AxisType.Explicit, True, GHOST),
]


@jax.custom_vjp
def layer(w, h):
    return h @ w


layer.defvjp(
    lambda w, h: (h @ w, (w, h)),
    lambda saved, g: (jnp.outer(saved[1], g), saved[0] @ g),
)


def loss(p, x, y, key, scale):
    hidden = jnp.tanh(x @ p["a"] + p["b"]) * jax.random.bernoulli(key, 0.8, (32,))
    return -jax.nn.log_softmax(layer(p["c"], hidden) * scale)[y]


def run(devices, axis_type, fsdp, **options):
    grad_fn = gdpjax.clipped_grad(loss, 1.0, batch_argnums=(1, 2), key_argnums=3, return_info=True, **options)
    args = (PARAMS, X, Y, jax.random.key(7), np.float32(1.5))
    padding = np.arange(64) % 9 == 4
    if devices > 1:
        mesh = jax.make_mesh(
            (devices,),
            ("data",),
            axis_types=(axis_type,),
            devices=jax.devices()[:devices],
        )

        def put(tree, *spec):
            return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(*spec)))

        args = (
            put(PARAMS, *(("data",) if fsdp else ())),
            put(X, "data"),
            put(Y, "data"),
            *put(args[3:]),
        )
        padding = put(padding, "data")
    step = jax.jit(lambda args, padding: grad_fn(*args, is_padding=padding), compiler_options=FAST)
    lowered = step.lower(args, padding)
    program = lowered.compile()
    found = re.findall(r"= (\S.*?) all-reduce(?:-start)?\(", program.as_text())
    # What is asked of the compiler: a CPU reduces a half-precision sum in float32, other backends do not.
    asked = re.findall(r"all_reduce.*?\}\) : \((.*?)\)", lowered.as_text(), flags=re.DOTALL)
    total, info = program(args, padding)
    flat = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((total, info))])
    return flat, found, asked


def main():
    reference, *_ = run(1, None, False)
    report = {}
    for devices, axis_type, fsdp, options in CASES:
        values, reduced, asked = run(devices, axis_type, fsdp, **options)
        shapes = [dims for r in reduced for dims in re.findall(r"f32\[([0-9,]*)\]", r)]
        report[f"{devices} {axis_type.name} {'fsdp' if fsdp else ''} {options}"] = {
            "error": float(np.abs(values - reference).max() / np.abs(reference).max()),
            "all_reduces": len(reduced),
            "elements": int(sum(np.prod([int(n) for n in dims.split(",") if n]) for dims in shapes)),
            "asked_types": sorted({t for r in asked for t in re.findall(r"(bf16|f16|f32|f64)>", r)}),
            "other_types": [t for r in reduced for t in re.findall(r"\b([a-z]+\d+)\[", r) if t != "f32"],
        }
    report["checked shard_map"] = checked_shard_map()
    print(json.dumps(report))


def checked_shard_map():
    """Where JAX would add gradients up over devices before they are clipped: refused, and right without the check."""
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Auto,))
    spec = PartitionSpec
    specs = dict(mesh=mesh, in_specs=(spec(), spec("d")), out_specs=spec())
    answers = []
    for strategy in ("vmap", "ghost"):
        grad_fn = gdpjax.clipped_grad(lambda p, x: jnp.sum(x * p), 1.0, strategy=strategy)

        def local(p, x, grad_fn=grad_fn):
            return jax.lax.psum(grad_fn(p, x), "d")

        def both(p, x, grad_fn=grad_fn, local=local):
            return jax.shard_map(local, check_vma=False, **specs)(p, x), grad_fn(p, x)

        unchecked, expected = jax.jit(both, compiler_options=FAST)(np.ones(16, np.float32), X)
        answers.append(float(np.abs(np.asarray(unchecked) - np.asarray(expected)).max()))
        try:
            jax.shard_map(local, **specs)(np.ones(16, np.float32), X)
        except ValueError as error:
            answers.append("check_vma=False" in str(error))
    return answers


if __name__ == "__main__":
    main()
