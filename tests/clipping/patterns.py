"""Losses of one example in the ways people write models: name -> function that makes (loss, parameters, batch).

Every loss takes (params, *rows); sizes are odd and different, so that no two axes can be mistaken for one another.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

B = 5


# The numbers come from NumPy: JAX would compile a program for each shape.


def normal(seed, *shape, scale=None):
    """Normal numbers, by default of the size that keeps a product of unit size."""
    if scale is None:
        scale = 1 / math.sqrt(max(shape[0], 1)) if shape else 1
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape) * scale)


def batch(*shape, seed=100):
    """Rows of very different sizes: some are clipped and some are not."""
    x = np.random.default_rng(seed).normal(size=(B, *shape))
    sizes = np.exp2(np.arange(B) - 2.0)
    return jnp.asarray((x.T * sizes).T)


def tokens(length, vocabulary, seed=200):
    """Whole numbers below the size of the vocabulary: [B, length], or [B] for length 0."""
    shape = (B, length) if length else (B,)
    return jnp.asarray(np.random.default_rng(seed).integers(0, vocabulary, shape))


def initialized(init, *args):
    """The parameters of a model, made by one compiled program."""
    return jax.jit(init, compiler_options={"xla_backend_optimization_level": 0})(*args)


PATTERNS = {}


def pattern(function):
    """Put a function into `PATTERNS`, under its name."""
    PATTERNS[function.__name__] = function
    return function


@pattern
def dense_layers():
    params = {"a": normal(1, 3, 4), "b": normal(2, 4), "c": normal(3, 4, 2)}

    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ p["a"] + p["b"]) @ p["c"]) ** 2

    return loss, params, (batch(3),)


@pattern
def batched_product():
    def loss(p, x):
        return jnp.sum(jnp.tanh(jnp.einsum("hd,hde->he", x, p["w"])))

    return loss, {"w": normal(1, 3, 4, 2)}, (batch(3, 4),)


@pattern
def split_weight():
    params = {"qkv": normal(1, 3, 12)}

    def loss(p, x):
        q, k, v = jnp.split(p["qkv"], 3, axis=1)
        return jnp.sum(jax.nn.softmax((x @ q) @ (x @ k).T) @ (x @ v)) ** 2

    return loss, params, (batch(5, 3),)


@pattern
def concatenated_kernels():
    params = {"i": normal(1, 3, 4), "f": normal(2, 3, 4), "b": normal(3, 8)}

    def loss(p, x):
        gates = x @ jnp.concatenate([p["i"], p["f"]], axis=-1) + p["b"]
        return jnp.sum(jnp.tanh(gates[:4]) * jax.nn.sigmoid(gates[4:]))

    return loss, params, (batch(3),)


@pattern
def a_kernel_beside_itself():
    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ jnp.concatenate([p["w"], p["w"]], axis=1)) * jnp.arange(8.0))

    return loss, {"w": normal(1, 3, 4)}, (batch(3),)


@pattern
def reshaped_and_transposed():
    params = {"w": normal(1, 2, 3, 4)}

    def loss(p, x):
        w = p["w"].transpose(1, 0, 2).reshape(3, 8)
        every_second = p["w"].reshape(6, 4)[::2]
        return jnp.sum(jnp.sin(x @ w)) + jnp.sum((x @ every_second) ** 2)

    return loss, params, (batch(3),)


@pattern
def cast_and_scaled():
    params = {"w": normal(1, 3, 4)}

    def loss(p, x):
        return jnp.sum(jnp.sin(x @ (-2.0 * p["w"] / 3.0)))

    return loss, params, (batch(3),)


@pattern
def weight_norm():
    params = {"v": normal(1, 3, 4), "g": normal(2, 4)}

    def loss(p, x):
        w = p["g"] * p["v"] / jnp.linalg.norm(p["v"], axis=0)
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    return loss, params, (batch(3),)


@pattern
def masked_weight():
    mask = jnp.triu(jnp.ones((3, 4)))

    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ (p["w"] * mask)))

    return loss, {"w": normal(1, 3, 4)}, (batch(3),)


@pattern
def merged_lora():
    base = normal(9, 5, 4)
    params = {"a": normal(1, 5, 2), "b": normal(2, 2, 4)}

    def loss(p, x):
        return jnp.sum(jnp.sin(x @ (base + 0.5 * (p["a"] @ p["b"]))))

    return loss, params, (batch(3, 5),)


@pattern
def merged_lora_transposed():
    params = {"a": normal(1, 2, 5), "b": normal(2, 4, 2), "w": normal(3, 5, 4)}

    def loss(p, x):
        return jnp.sum(jnp.sin(x @ (p["w"] + (p["b"] @ p["a"]).T)))

    return loss, params, (batch(5),)


@pattern
def l2_in_the_loss():
    params = {"a": normal(1, 3, 4), "c": normal(3, 4)}

    def regulariser(p):
        return sum(jnp.sum(leaf**2) for leaf in p.values())

    def loss(p, x):
        return jnp.tanh(x @ p["a"]) @ p["c"] + 0.1 * regulariser(p)

    return loss, params, (batch(3),)


@pattern
def embedding():
    params = {"e": normal(1, 7, 3), "w": normal(2, 3)}

    def loss(p, t):
        return jnp.mean(p["e"][t], axis=0) @ p["w"]

    return loss, params, (tokens(9, 7),)


@pattern
def embedding_of_one():
    params = {"user": normal(1, 7, 3), "item": normal(2, 5, 3)}

    def loss(p, u, i):
        return (p["user"][u] @ p["item"][i] - 1.0) ** 2

    return loss, params, (tokens(0, 7), tokens(0, 5, seed=3))


@pattern
def tied_embedding():
    params = {"e": normal(1, 7, 3), "pos": normal(2, 6, 3)}

    def loss(p, t):
        logits = jnp.tanh(p["e"][t] + p["pos"]) @ p["e"].T
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), t[:, None], axis=1))

    return loss, params, (tokens(6, 7),)


@pattern
def tables_of_a_stack():
    """Each layer of a scan looks rows up in a table of its own."""
    params = {"e": normal(1, 2, 7, 3), "w": normal(2, 3)}

    def loss(p, t):
        def layer(h, table):
            return jnp.tanh(h + table[t].sum(0)), None

        h, _ = lax.scan(layer, p["w"] * 0, p["e"])
        return h @ p["w"]

    return loss, params, (tokens(4, 7),)


@pattern
def scalars_and_vectors():
    params = {"s": jnp.array(0.7), "v": normal(1, 3), "unused": normal(2, 2)}
    params |= {"steps": jnp.arange(2), "empty": jnp.zeros((0, 3))}

    def loss(p, x):
        return p["s"] * jnp.sum(jnp.sin(x * p["v"])) + p["steps"][1]

    return loss, params, (batch(3),)


@pattern
def vector_products():
    def loss(p, x):
        return jnp.vdot(p["w"], x) ** 2 + jnp.dot(x, p["w"])

    return loss, {"w": normal(1, 3)}, (batch(3),)


def _conv(
    padding="SAME",
    strides=(1, 1),
    groups=1,
    rhs_dilation=(1, 1),
    lhs_dilation=(1, 1),
    channels=4,
    out=6,
):
    params = {"k": normal(1, 3, 2, channels // groups, out, scale=0.3), "b": normal(2, out)}

    def loss(p, x):
        y = lax.conv_general_dilated(
            x[None],
            p["k"],
            strides,
            padding,
            lhs_dilation,
            rhs_dilation,
            ("NHWC", "HWIO", "NHWC"),
            groups,
        )
        return jnp.sum(jnp.tanh(y + p["b"]) ** 2)

    return loss, params, (batch(7, 6, channels),)


@pattern
def convolution():
    return _conv()


@pattern
def convolution_strided_valid():
    return _conv("VALID", (2, 3))


@pattern
def convolution_grouped():
    return _conv(groups=2)


def _stack(body=lambda f: f):
    params = {"w": normal(1, 4, 3, 3), "b": normal(2, 4, 3), "head": normal(3, 3)}

    def loss(p, x):
        @body
        def layer(h, layer_params):
            w, b = layer_params
            return jnp.tanh(h @ w + b), None

        h, _ = lax.scan(layer, x, (p["w"], p["b"]))
        return jnp.sum(h @ p["head"]) ** 2

    return loss, params


@pattern
def layers_by_scan_with_remat():
    return *_stack(jax.checkpoint), (batch(3),)


@pattern
def carried_parameter():
    params = {"w": normal(1, 3, 3)}

    def loss(p, x):
        def step(carry, _):
            return ((carry[0] * 0.9, jnp.tanh(carry[1] @ carry[0])), None)

        return jnp.sum(lax.scan(step, (p["w"], x), None, length=3)[0][1])

    return loss, params, (batch(3),)


@pattern
def complex_on_the_way():
    params = {"w": normal(1, 3, 4), "v": normal(2, 5, 2)}

    def loss(p, x, i):
        fourier = jnp.fft.fft(x) @ p["w"].astype(jnp.complex64 if x.dtype == jnp.float32 else jnp.complex128)
        looked_up = lax.complex(p["v"], p["v"])[i]
        return jnp.sum(jnp.abs(fourier) ** 2) + jnp.sum(jnp.abs(looked_up) ** 2)

    return loss, params, (batch(3), tokens(0, 5))


@pattern
def convolution_without_output():
    params = {"k": normal(1, 5, 3, 4), "w": normal(2, 3)}

    def loss(p, x):
        y = lax.conv_general_dilated(x[None], p["k"], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
        return jnp.sum(y) + jnp.sum(x @ p["w"])

    return loss, params, (batch(2, 3),)


@pattern
def branch_on_data():
    params = {"a": normal(1, 3, 4), "c": normal(2, 3, 4)}

    def loss(p, x):
        return jnp.sum(
            lax.cond(
                x[0] > 0,
                lambda v: jnp.tanh(v @ p["a"]),
                lambda v: jnp.sin(v @ p["c"] + v @ p["a"]),
                x,
            )
        )

    return loss, params, (batch(3),)


@pattern
def branch_on_parameters():
    params = {"a": normal(1, 3, 4), "c": normal(2, 3, 4), "d": normal(3, 3, 4), "s": jnp.ones(4)}

    def loss(p, x):
        first = lax.cond(
            p["a"][0, 0] > 0,
            lambda v: v @ p["a"] - v @ p["c"],
            lambda v: v @ p["d"] - v @ p["a"],
            x,
        )
        chosen = lax.cond(p["a"][0, 0] > 0, lambda: p["s"], lambda: -2.0 * p["s"])
        return jnp.sum(jnp.tanh(first) * chosen)

    return loss, params, (batch(3),)


def _flax(module, *rows):
    params = initialized(module.init, jax.random.key(0), *(row[0] for row in rows))["params"]

    def loss(p, *rows):
        return jnp.sum(module.apply({"params": p}, *rows) ** 2)

    return loss, params, rows


@pattern
def linen_attention():
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, t):
            x = nn.Embed(7, 4)(t)
            return nn.MultiHeadDotProductAttention(2, qkv_features=6)(x, x).mean(0)

    return _flax(Network(), tokens(5, 7))


TAKE_NO_BRANCH_OF_THEIR_OWN = {
    "branch_on_data",
    "carried_parameter",
    "convolution",
    "embedding",
    "linen_attention",
    "weight_norm",
}
"""Patterns that take only branches of gdpjax/clipping which the others take together, and wait for the long run.

(Found by recording the branches that each pattern takes while its sum is traced.)
"""


def with_slow_ones(names):
    """The names as parameters of a test, those that take no branch of their own marked as slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in TAKE_NO_BRANCH_OF_THEIR_OWN else ()) for name in names]


def make(name, dtype):
    """The pattern with its parameters and rows in a dtype; must run under enable_x64 for float64."""
    loss, params, rows = PATTERNS[name]()

    def cast(leaf):
        return jnp.asarray(np.asarray(leaf).astype(dtype)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return loss, jax.tree.map(cast, params), tuple(cast(row) for row in rows)
