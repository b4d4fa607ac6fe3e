"""Layers as plain functions of ONE example: no batch axis anywhere."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Params = dict[str, Any]
ONE_PIXEL = ((1, 1), (1, 1))


def dense(params: Params, x: jax.Array) -> jax.Array:
    return x @ params["kernel"] + params["bias"]


def lora_dense(base: Params, lora: Params, x: jax.Array) -> jax.Array:
    """x W + b + (x A) B."""
    return dense(base, x) + (x @ lora["a"]["kernel"]) @ lora["b"]["kernel"]


def conv(params: Params, x: jax.Array, stride: int = 1, padding: Any = ONE_PIXEL) -> jax.Array:
    """``[H, W, C]`` to ``[H', W', C']``."""
    y = jax.lax.conv_general_dilated(
        x[None], params["kernel"], (stride, stride), padding, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )[0]
    return y + params["bias"] if "bias" in params else y


def max_pool(x: jax.Array) -> jax.Array:
    """Windows of 2 by 2, stride 1, for everybody as XLA differentiates them best on a CPU (`experiments.models`)."""
    rows = jnp.maximum(x[:-1], x[1:])
    return jnp.maximum(rows[:, :-1], rows[:, 1:])


def layer_norm(params: Params, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * params["scale"] + params["bias"]


def group_norm(params: Params, x: jax.Array, groups: int) -> jax.Array:
    grouped = x.reshape(-1, groups, x.shape[-1] // groups)
    centred = grouped - grouped.mean((0, 2), keepdims=True)
    normed = centred * jax.lax.rsqrt((centred**2).mean((0, 2), keepdims=True) + 1e-5)
    return normed.reshape(x.shape) * params["scale"] + params["bias"]


def attention(qkv: jax.Array, heads: int, causal: bool) -> jax.Array:
    """Of ``[T, 3 width]``, the queries, keys and values side by side; ``[T, width]``."""
    length, width = qkv.shape[0], qkv.shape[1] // 3
    q, k, v = (part.reshape(length, heads, -1) for part in jnp.split(qkv, 3, axis=-1))
    scores = jnp.einsum("qhd,khd->hqk", q, k) * (width // heads) ** -0.5
    if causal:
        scores = jnp.where(jnp.tri(length, dtype=bool), scores, -1e9)
    return jnp.einsum("hqk,khd->qhd", jax.nn.softmax(scores), v).reshape(length, width)


def cross_entropy(logits: jax.Array, label: jax.Array) -> jax.Array:
    """Mean over all but the last axis, in float32."""
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_probs, label[..., None], axis=-1).mean()


def cast(tree: Any, dtype: str) -> Any:
    """Floating leaves in ``dtype``: float32 parameters, computed with in another."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree)


def dense_params(rng: np.random.Generator, inputs: int, outputs: int, bias: bool = True) -> Params:
    return _kernel(rng, (inputs, outputs), inputs, bias)


def conv_params(rng: np.random.Generator, size: int, inputs: int, outputs: int, bias: bool = False) -> Params:
    return _kernel(rng, (size, size, inputs, outputs), size * size * inputs, bias)


def embedding_params(rng: np.random.Generator, rows: int, width: int, scale: float = 0.02) -> Params:
    return {"embedding": _normal(rng, (rows, width), scale)}


def norm_params(width: int) -> Params:
    return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}


def _kernel(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int, bias: bool) -> Params:
    kernel = {"kernel": _normal(rng, shape, fan_in**-0.5)}
    return kernel | ({"bias": np.zeros(shape[-1], np.float32)} if bias else {})


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> np.ndarray:
    return rng.standard_normal(shape, np.float32) * np.float32(scale)
