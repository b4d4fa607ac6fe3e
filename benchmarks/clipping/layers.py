"""Layers as plain functions of ONE example: no batch axis anywhere."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32, Int

Params = dict[str, Any]
"""Arrays by name, nested."""

Image = Float[Array, "height width channels"]
Padding = str | Sequence[tuple[int, int]]

ONE_PIXEL = ((1, 1), (1, 1))
EPSILON = 1e-5
"""What is added to a variance before it divides."""
MASKED = -1e9
"""The score of a position that may not be seen."""


def dense(params: Params, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    """Return x W + b."""
    return x @ params["kernel"] + params["bias"]


def lora_dense(base: Params, lora: Params, x: Float[Array, "*rows inputs"]) -> Float[Array, "*rows outputs"]:
    """Return x W + b + (x A) B."""
    low_rank = x @ lora["a"]["kernel"]
    return dense(base, x) + low_rank @ lora["b"]["kernel"]


def conv(params: Params, x: Image, stride: int = 1, padding: Padding = ONE_PIXEL) -> Image:
    """Return the convolution of one image, with the bias if there is one."""
    layout = ("NHWC", "HWIO", "NHWC")
    strides = (stride, stride)
    batch = jax.lax.conv_general_dilated(x[None], params["kernel"], strides, padding, dimension_numbers=layout)
    y = batch[0]
    return y + params["bias"] if "bias" in params else y


def max_pool(x: Image) -> Image:
    """Return maxima over windows of 2 by 2, stride 1.

    For everybody they are taken as XLA differentiates them best on a CPU (`experiments.models`).
    """
    rows = jnp.maximum(x[:-1], x[1:])
    return jnp.maximum(rows[:, :-1], rows[:, 1:])


def layer_norm(params: Params, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
    """Normalise over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt(variance + EPSILON) * params["scale"] + params["bias"]


def group_norm(params: Params, x: Image, groups: int) -> Image:
    """Normalise over the pixels and the channels of each group."""
    grouped = x.reshape(-1, groups, x.shape[-1] // groups)
    centred = grouped - grouped.mean((0, 2), keepdims=True)
    variance = (centred**2).mean((0, 2), keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + EPSILON)
    return normed.reshape(x.shape) * params["scale"] + params["bias"]


def attention(qkv: Float[Array, "length three_widths"], heads: int, causal: bool) -> Float[Array, "length width"]:
    """Return the attention of queries, keys and values that stand side by side in the last axis."""
    length, three_widths = qkv.shape
    width = three_widths // 3
    queries, keys, values = (part.reshape(length, heads, -1) for part in jnp.split(qkv, 3, axis=-1))

    scores = jnp.einsum("qhd,khd->hqk", queries, keys) * (width // heads) ** -0.5
    if causal:
        is_seen = jnp.tri(length, dtype=bool)
        scores = jnp.where(is_seen, scores, MASKED)
    weights = jax.nn.softmax(scores)
    return jnp.einsum("hqk,khd->qhd", weights, values).reshape(length, width)


def cross_entropy(logits: Float[Array, "*rows classes"], label: Int[Array, "*rows"]) -> Float[Array, ""]:
    """Return the mean over all but the last axis, in float32."""
    log_probs = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.take_along_axis(log_probs, label[..., None], axis=-1).mean()


def cast(tree: Any, dtype: str) -> Any:
    """Return the tree with floating leaves in ``dtype``: float32 parameters, computed with in another."""

    def cast_leaf(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast_leaf, tree)


def dense_params(rng: np.random.Generator, inputs: int, outputs: int, bias: bool = True) -> Params:
    """Draw a kernel ``[inputs, outputs]``, with a bias of 0."""
    return _kernel(rng, (inputs, outputs), inputs, bias)


def conv_params(rng: np.random.Generator, size: int, inputs: int, outputs: int, bias: bool = False) -> Params:
    """Draw a kernel ``[size, size, inputs, outputs]``, with a bias of 0 if there is to be one."""
    return _kernel(rng, (size, size, inputs, outputs), size * size * inputs, bias)


def embedding_params(rng: np.random.Generator, rows: int, width: int, scale: float = 0.02) -> Params:
    """Draw a table ``[rows, width]``."""
    return {"embedding": _normal(rng, (rows, width), scale)}


def norm_params(width: int) -> Params:
    """Return the parameters of a normalisation that changes nothing more."""
    return {"scale": np.ones(width, np.float32), "bias": np.zeros(width, np.float32)}


def _kernel(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int, bias: bool) -> Params:
    params = {"kernel": _normal(rng, shape, fan_in**-0.5)}
    if bias:
        params["bias"] = np.zeros(shape[-1], np.float32)
    return params


def _normal(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> Float32[np.ndarray, "..."]:
    return rng.standard_normal(shape, np.float32) * np.float32(scale)
