"""Losses of one example in the ways people write models: name -> function that makes (loss, parameters, batch).

Every loss takes (params, *rows); sizes are odd and different, so that no two axes can be mistaken for one another.
"""

import functools
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
def weight_on_the_left():
    def loss(p, x):
        return jnp.sum(jnp.sin(p["w"] @ x))

    return loss, {"w": normal(1, 4, 3)}, (batch(3),)


@pattern
def sequence():
    params = {"q": normal(1, 3, 4), "k": normal(2, 3, 4), "v": normal(3, 3, 5)}

    def loss(p, x):
        scores = jax.nn.softmax((x @ p["q"]) @ (x @ p["k"]).T)
        return jnp.sum((scores @ (x @ p["v"])) ** 2)

    return loss, params, (batch(6, 3),)


@pattern
def einsum_heads():
    params = {"qkv": normal(1, 3, 2, 3, 4), "out": normal(2, 2, 4, 3)}

    def loss(p, x):
        weights = jnp.swapaxes(p["qkv"].reshape(3, 3, 2, 4), 0, 0)
        q, k, v = jnp.einsum("td,dahe->ahte", x, weights)
        scores = jax.nn.softmax(jnp.einsum("hte,hse->hts", q, k))
        return jnp.sum(jnp.einsum("hts,hse,hed->td", scores, v, p["out"]) ** 2)

    return loss, params, (batch(5, 3),)


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
def lora():
    base = normal(9, 5, 4)
    params = {"a": normal(1, 5, 2), "b": normal(2, 2, 4)}

    def loss(p, x):
        return jnp.sum(jnp.sin(x @ base + (x @ p["a"]) @ p["b"]))

    return loss, params, (batch(3, 5),)


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
def tied_dense():
    params = {"w": normal(1, 3, 3)}

    def loss(p, x):
        return jnp.sum(jnp.tanh(jnp.tanh(x @ p["w"]) @ p["w"]) @ p["w"].T)

    return loss, params, (batch(3),)


@pattern
def used_hundreds_of_times():
    params = {"w": normal(1, 3, 3), "b": normal(2, 3)}

    def loss(p, x):
        for _ in range(120):
            x = jnp.tanh(x @ p["w"] + p["b"])
        return jnp.sum(x)

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
def embedding_take():
    params = {"e": normal(1, 7, 3)}
    indices = tokens(9, 12) - 3  # out of range on both sides

    def loss(p, t):
        return jnp.sum(jnp.nan_to_num(jnp.take(p["e"], t, axis=0)) ** 3)

    return loss, params, (indices,)


@pattern
def embedding_clipped():
    params = {"e": normal(1, 7, 3)}

    def loss(p, t):
        return jnp.sum(jnp.sin(jnp.take(p["e"], t, axis=0, mode="clip")))

    return loss, params, (tokens(9, 12) - 3,)


@pattern
def embedding_twice():
    params = {"e": normal(1, 7, 3)}

    def loss(p, s, t):
        return jnp.sum(p["e"][s] @ p["e"][t].T)

    return loss, params, (tokens(4, 7), tokens(5, 7, seed=4))


@pattern
def tied_embedding():
    params = {"e": normal(1, 7, 3), "pos": normal(2, 6, 3)}

    def loss(p, t):
        logits = jnp.tanh(p["e"][t] + p["pos"]) @ p["e"].T
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), t[:, None], axis=1))

    return loss, params, (tokens(6, 7),)


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
    params = {
        "k": normal(1, 3, 2, channels // groups, out, scale=0.3),
        "b": normal(2, out),
    }

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


@pattern
def convolution_depthwise():
    return _conv(groups=4, out=8)


@pattern
def convolution_dilated():
    return _conv(rhs_dilation=(2, 1), padding=((2, 1), (0, 3)))


@pattern
def convolution_transposed():
    params = {"k": normal(1, 3, 2, 4, 5, scale=0.3)}

    def loss(p, x):
        return jnp.sum(jnp.sin(lax.conv_transpose(x[None], p["k"], (2, 2), "SAME")))

    return loss, params, (batch(4, 3, 4),)


@pattern
def convolution_cropped():
    return _conv(padding=((-1, 2), (1, -1)), lhs_dilation=(2, 1))


@pattern
def convolution_in_one_dimension():
    params = {"k": normal(1, 5, 3, 4, scale=0.3)}  # output, input, width

    def loss(p, x):
        y = lax.conv_general_dilated(x[None], p["k"], (2,), "SAME", dimension_numbers=("NCH", "OIH", "NCH"))
        return jnp.sum(jnp.tanh(y))

    return loss, params, (batch(3, 8),)


@pattern
def group_norm():
    params = {"k": normal(1, 3, 3, 3, 4), "scale": jnp.ones(4), "bias": jnp.zeros(4)}

    def loss(p, x):
        y = lax.conv_general_dilated(x[None], p["k"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean = y.mean((1, 2), keepdims=True)
        variance = y.var((1, 2), keepdims=True)
        y = (y - mean) / jnp.sqrt(variance + 1e-5)
        return jnp.sum(jnp.tanh(y * p["scale"] + p["bias"]) * x[..., :1])

    return loss, params, (batch(5, 5, 3),)


@pattern
def recurrent():
    params = {"w": normal(1, 3, 4), "u": normal(2, 4, 4), "b": normal(3, 4)}

    def loss(p, x):
        def step(h, row):
            h = jnp.tanh(row @ p["w"] + h @ p["u"] + p["b"])
            return h, jnp.sum(h)

        h, sums = lax.scan(step, jnp.zeros(4), x)
        return jnp.sum(h**2) + jnp.sum(sums)

    return loss, params, (batch(6, 3),)


@pattern
def recurrent_backwards_with_embedding():
    params = {"e": normal(1, 7, 3), "u": normal(2, 3, 3)}

    def loss(p, t):
        def step(h, token):
            return (jnp.tanh(h @ p["u"] + p["e"][token]), None)

        h, _ = lax.scan(step, jnp.ones_like(p["u"][0]), t, reverse=True)
        return jnp.sum(h**2)

    return loss, params, (tokens(6, 7),)


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
def layers_by_scan():
    return *_stack(), (batch(3),)


@pattern
def layers_by_scan_on_sequences():
    return *_stack(), (batch(5, 3),)


@pattern
def layers_by_scan_with_remat():
    return *_stack(jax.checkpoint), (batch(3),)


@pattern
def nested_scans():
    params = {"w": normal(1, 2, 3, 3), "u": normal(2, 3, 3)}

    def loss(p, x):
        def layer(h, w):
            def inner(g, _):
                return (jnp.tanh(g @ w + h @ p["u"]), None)

            return lax.scan(inner, h, None, length=3)[0], None

        return jnp.sum(lax.scan(layer, x, p["w"])[0])

    return loss, params, (batch(3),)


@pattern
def fori_loop():
    params = {"w": normal(1, 3, 3)}

    def loss(p, x):
        return jnp.sum(lax.fori_loop(0, 4, lambda i, h: jnp.tanh(h @ p["w"]), x))

    return loss, params, (batch(3),)


@pattern
def carried_parameter():
    params = {"w": normal(1, 3, 3)}

    def loss(p, x):
        def step(carry, _):
            return ((carry[0] * 0.9, jnp.tanh(carry[1] @ carry[0])), None)

        return jnp.sum(lax.scan(step, (p["w"], x), None, length=3)[0][1])

    return loss, params, (batch(3),)


@pattern
def while_loop_beside():
    params = {"w": normal(1, 3, 3)}

    def loss(p, x):
        count = lax.while_loop(lambda n: n < 4, lambda n: n + 1, 0)
        return jnp.sum(jnp.tanh(x @ p["w"])) * count

    return loss, params, (batch(3),)


@pattern
def remat():
    params = {"a": normal(1, 3, 4), "c": normal(2, 4, 2)}
    layer = jax.checkpoint(lambda w, x: jnp.tanh(x @ w))

    def loss(p, x):
        return jnp.sum(layer(p["c"], layer(p["a"], x)))

    return loss, params, (batch(3),)


@pattern
def of_itself():
    params = {"w": normal(1, 3, 3), "v": normal(2, 3, 3), "u": normal(3, 3, 3)}

    def loss(p, x):
        squared = p["w"] * p["w"]
        twice = p["v"] + p["v"]
        product = p["u"] @ p["u"]
        return jnp.sum(x @ squared + x @ twice + x @ product)

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
def stacked_layers_by_index():
    params = {"w": normal(1, 3, 4, 4), "e": normal(2, 5, 4)}

    def loss(p, x, t):
        h = lax.fori_loop(0, 3, lambda k, h: jnp.tanh(h @ p["w"][k]), x)
        h = lax.scan(lambda h, j: (h * p["e"][j], None), h, t)[0]
        h = h + jax.checkpoint(lambda i: p["e"][i])(t[0])
        return jnp.sum(lax.cond(x[0] > 0, lambda i: h * p["e"][i], lambda i: h, t[1]))

    return loss, params, (batch(4), tokens(3, 5))


@pattern
def nothing_to_do():
    params = {"w": normal(1, 4, 4), "v": normal(2, 4, 3), "u": normal(3, 4, 4)}

    def loss(p, x):
        def layer(h, _):
            return jnp.tanh(h @ p["w"]), None

        h, _ = lax.scan(layer, x, None, length=0)
        return jnp.sum(h @ p["u"]) + jnp.sum(jnp.zeros((0, 4)) @ p["v"])

    return loss, params, (batch(4),)


@pattern
def convolution_without_output():
    params = {"k": normal(1, 5, 3, 4), "w": normal(2, 3)}

    def loss(p, x):
        y = lax.conv_general_dilated(x[None], p["k"], (1,), "VALID", dimension_numbers=("NWC", "WIO", "NWC"))
        return jnp.sum(y) + jnp.sum(x @ p["w"])

    return loss, params, (batch(2, 3),)


@pattern
def nested_jit():
    params = {"a": normal(1, 3, 4), "c": normal(2, 4, 4)}
    inner = jax.jit(lambda w, x: jnp.tanh(x @ w))

    @jax.jit
    def outer(p, x):
        h = inner(p["a"], x)
        return inner(p["c"], inner(p["c"], h))

    def loss(p, x):
        return jnp.sum(outer(p, x))

    return loss, params, (batch(3),)


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
    params = {
        "a": normal(1, 3, 4),
        "c": normal(2, 3, 4),
        "d": normal(3, 3, 4),
        "s": jnp.ones(4),
    }

    def loss(p, x):
        first = lax.cond(
            p["a"][0, 0] > 0,
            lambda v: v @ p["a"] - v @ p["c"],
            lambda v: v @ p["d"] - v @ p["a"],
            x,
        )
        chosen = lax.cond(p["a"][0, 0] > 0, lambda: p["s"], lambda: -p["s"])
        return jnp.sum(jnp.tanh(first) * chosen)

    return loss, params, (batch(3),)


@jax.custom_vjp
def _layer(w, x):
    return jnp.tanh(x @ w)


_layer.defvjp(
    lambda w, x: (_layer(w, x), (w, x)),
    lambda saved, s: (
        jnp.outer(saved[1], s * (1 - _layer(*saved) ** 2)),
        saved[0] @ (s * (1 - _layer(*saved) ** 2)),
    ),
)


@pattern
def custom_vjp_layer():
    params = {"a": normal(1, 3, 4), "c": normal(2, 4, 2)}

    def loss(p, x):
        return jnp.sum(_layer(p["a"], x) @ p["c"])

    return loss, params, (batch(3),)


@jax.custom_jvp
def _smooth(w, x):
    return jnp.sin(x @ w)


_smooth.defjvp(lambda primals, tangents: jax.jvp(lambda w, x: jnp.sin(x @ w), primals, tangents))


@pattern
def custom_jvp_layer():
    params = {"a": normal(1, 3, 4), "c": normal(2, 4, 2)}

    def loss(p, x):
        return jnp.sum(jax.nn.silu(_smooth(p["a"], x)) @ p["c"])

    return loss, params, (batch(3),)


@pattern
def mixture_of_experts():
    params = {
        "gate": normal(1, 3, 4),
        "up": normal(2, 4, 3, 5),
        "down": normal(3, 4, 5, 3),
    }

    def loss(p, x):
        gates = jax.nn.softmax(x @ p["gate"])
        hidden = jax.nn.relu(jnp.einsum("td,edh->teh", x, p["up"]))
        return jnp.sum(jnp.einsum("te,teh,ehd->td", gates, hidden, p["down"]) ** 2)

    return loss, params, (batch(6, 3),)


@pattern
def stop_gradient():
    params = {"a": normal(1, 3, 4)}

    def loss(p, x):
        return jnp.sum(jnp.tanh(x @ p["a"]) * (x @ lax.stop_gradient(p["a"])))

    return loss, params, (batch(3),)


@pattern
def inner_vmap():
    params = {"w": normal(1, 3, 4)}

    def loss(p, x):
        return jnp.sum(jax.vmap(lambda row: jnp.tanh(row @ p["w"]))(x))

    return loss, params, (batch(6, 3),)


@pattern
def gradient_penalty():
    params = {"w": normal(1, 3, 4), "v": normal(2, 4)}

    def score(x, p):
        return jnp.tanh(x @ p["w"]) @ p["v"]

    def loss(p, x):
        return jnp.sum(jax.grad(score)(x, p) ** 2)

    return loss, params, (batch(3),)


def _flax(module, *rows):
    params = initialized(module.init, jax.random.key(0), *(row[0] for row in rows))["params"]

    def loss(p, *rows):
        return jnp.sum(module.apply({"params": p}, *rows) ** 2)

    return loss, params, rows


@pattern
def linen_network():
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(4, (3, 3), strides=2)(x[None])
            x = nn.relu(nn.GroupNorm(2)(x))
            return nn.Dense(3)(nn.LayerNorm()(nn.Dense(5)(x.reshape(-1))))

    return _flax(Network(), batch(6, 5, 3))


@pattern
def linen_attention():
    import flax.linen as nn

    class Network(nn.Module):
        @nn.compact
        def __call__(self, t):
            x = nn.Embed(7, 4)(t)
            return nn.MultiHeadDotProductAttention(2, qkv_features=6)(x, x).mean(0)

    return _flax(Network(), tokens(5, 7))


def _like_parameters(key, shape, dtype=None):
    return jnp.zeros(shape, jnp.float64 if jax.config.jax_enable_x64 else jnp.float32)


def _linen_rnn(cell):
    import flax.linen as nn

    return _flax(nn.RNN(getattr(nn, cell)(4, carry_init=_like_parameters)), batch(5, 3))


PATTERNS["linen_gru"] = functools.partial(_linen_rnn, "GRUCell")
PATTERNS["linen_lstm"] = functools.partial(_linen_rnn, "OptimizedLSTMCell")


@pattern
def nnx_network():
    from flax import nnx

    class Network(nnx.Module):
        def __init__(self, rngs):
            self.first, self.second = (
                nnx.Linear(3, 4, rngs=rngs),
                nnx.Linear(4, 2, rngs=rngs),
            )
            self.norm = nnx.LayerNorm(4, rngs=rngs)

        def __call__(self, x):
            return self.second(nnx.relu(self.norm(self.first(x))))

    graph, params, rest = nnx.split(Network(nnx.Rngs(0)), nnx.Param, ...)

    def loss(p, x):
        return jnp.sum(nnx.merge(graph, p, rest)(x) ** 2)

    return loss, params, (batch(3),)


@pattern
def equinox_network():
    import equinox

    key = jax.random.key(0)
    network = equinox.nn.MLP(3, 2, 4, 1, key=key)
    params, static = equinox.partition(network, equinox.is_inexact_array)

    def loss(p, x):
        return jnp.sum(equinox.combine(p, static)(x) ** 2)

    return loss, params, (batch(3),)


@pattern
def haiku_network():
    import haiku

    def network(x):
        x = haiku.Conv2D(4, 3, with_bias=True)(x[None])
        x = jax.nn.relu(haiku.LayerNorm(-1, True, True)(x))
        return haiku.Linear(2)(x.mean((0, 1, 2)))

    transformed = haiku.without_apply_rng(haiku.transform(network))
    x = batch(5, 5, 3)

    def loss(p, x):
        return jnp.sum(transformed.apply(p, x) ** 2)

    return loss, initialized(transformed.init, jax.random.key(0), x[0]), (x,)


# Each of these takes only branches of gdpjax/clipping that the patterns outside this set take together, so they wait
# for the long run. (Found by recording the branches that each pattern takes while its sum is traced.)
TAKE_NO_BRANCH_OF_THEIR_OWN = {
    *(
        "convolution_cropped",
        "embedding_clipped",
        "l2_over_the_tree",
        "remat",
    ),
    *(
        "branch_on_data",
        "carried_parameter",
        "convolution",
        "convolution_depthwise",
    ),
    *(
        "convolution_dilated",
        "convolution_in_one_dimension",
        "convolution_transposed",
        "custom_jvp_layer",
    ),
    *(
        "custom_vjp_layer",
        "einsum_heads",
        "embedding",
        "embedding_take",
        "embedding_twice",
        "equinox_network",
    ),
    *(
        "fori_loop",
        "gradient_penalty",
        "group_norm",
        "haiku_network",
        "inner_vmap",
    ),
    *(
        "layers_by_scan",
        "layers_by_scan_on_sequences",
        "linen_attention",
        "linen_gru",
    ),
    *(
        "linen_lstm",
        "linen_network",
        "linen_weight_norm",
        "lora",
        "mixture_of_experts",
    ),
    *(
        "nested_jit",
        "nested_scans",
        "nnx_network",
        "norm_scaled_by_the_example",
        "nothing_to_do",
        "of_itself",
    ),
    *(
        "recurrent",
        "recurrent_backwards_with_embedding",
        "rule_with_bias",
    ),
    *(
        "rules_under_vmap_and_cond",
        "rules_with_options",
        "sequence",
    ),
    *(
        "stacked_layers_by_index",
        "stop_gradient",
        "straight_through_by_stop_gradient",
        "straight_through_weights",
    ),
    *(
        "surrogate_gradient",
        "tied_dense",
        "used_hundreds_of_times",
        "weight_norm",
    ),
    *("weight_norm_by_column", "weight_on_the_left", "while_loop_beside"),
}


def with_slow_ones(names):
    """The names as parameters of a test, those that take no branch of their own marked as slow."""
    return [pytest.param(name, marks=pytest.mark.slow if name in TAKE_NO_BRANCH_OF_THEIR_OWN else ()) for name in names]


def make(name, dtype):
    """The pattern with its parameters and rows in a dtype; must run under enable_x64 for float64."""
    loss, params, rows = PATTERNS[name]()

    def cast(leaf):
        return jnp.asarray(np.asarray(leaf).astype(dtype)) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return loss, jax.tree.map(cast, params), tuple(cast(row) for row in rows)
