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


def conv(params: Params, x: Image, stride: int = 1, padding: Padding = ONE_PIXEL) -> Image:
    """Return the convolution of one image, with the bias if there is one."""
    # XLA convolves batches: the image becomes a batch of one.
    batch_of_one = x[None]
    convolved = jax.lax.conv_general_dilated(
        batch_of_one,
        params["kernel"],
        window_strides=(stride, stride),
        padding=padding,
        dimension_numbers=("NHWC", "HWIO", "NHWC"),
    )
    y = convolved[0]
    if "bias" in params:
        y = y + params["bias"]
    return y


def max_pool(x: Image) -> Image:
    """Return maxima over windows of 2 by 2, stride 1.

    For everybody they are taken as XLA differentiates them best on a CPU (`experiments.models`).
    """
    # The larger one of each two neighbours in a column, then of each two in a row.
    rows = jnp.maximum(x[:-1], x[1:])
    return jnp.maximum(rows[:, :-1], rows[:, 1:])


def layer_norm(params: Params, x: Float[Array, "*rows width"]) -> Float[Array, "*rows width"]:
    """Normalise over the last axis."""
    centred = x - x.mean(-1, keepdims=True)
    variance = (centred**2).mean(-1, keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + EPSILON)
    return normed * params["scale"] + params["bias"]


def group_norm(params: Params, x: Image, groups: int) -> Image:
    """Normalise over the pixels and the channels of each group."""
    # Axes: pixels, groups, channels of a group.
    grouped = x.reshape(-1, groups, x.shape[-1] // groups)
    centred = grouped - grouped.mean((0, 2), keepdims=True)
    variance = (centred**2).mean((0, 2), keepdims=True)
    normed = centred * jax.lax.rsqrt(variance + EPSILON)

    # Each channel has a scale and a bias of its own.
    return normed.reshape(x.shape) * params["scale"] + params["bias"]


def attention(
    qkv: Float[Array, "length three_widths"],
    heads: int,
) -> Float[Array, "length width"]:
    """Return the causal attention of queries, keys and values that stand side by side in the last axis."""
    length, three_widths = qkv.shape
    width = three_widths // 3
    head_width = width // heads

    # Each of the three gets an axis of heads.
    parts = jnp.split(qkv, 3, axis=-1)
    queries, keys, values = (part.reshape(length, heads, head_width) for part in parts)

    # How much each position looks at each other one, and at none that follows it.
    scores = jnp.einsum("qhd,khd->hqk", queries, keys) * head_width**-0.5
    is_seen = jnp.tri(length, dtype=bool)
    scores = jnp.where(is_seen, scores, MASKED)
    weights = jax.nn.softmax(scores)
    mixed = jnp.einsum("hqk,khd->qhd", weights, values)
    return mixed.reshape(length, width)


def cross_entropy(
    logits: Float[Array, "*rows classes"],
    label: Int[Array, "*rows"],
) -> Float[Array, ""]:
    """Return the mean over all but the last axis."""
    log_probs = jax.nn.log_softmax(logits)
    log_prob_of_label = jnp.take_along_axis(log_probs, label[..., None], axis=-1)
    return -log_prob_of_label.mean()


def dense_params(rng: np.random.Generator, inputs: int, outputs: int, bias: bool = True) -> Params:
    """Draw a kernel ``[inputs, outputs]``, with a bias of 0 if there is to be one."""
    shape = (inputs, outputs)
    return _kernel(rng, shape, fan_in=inputs, bias=bias)


def conv_params(
    rng: np.random.Generator,
    size: int,
    inputs: int,
    outputs: int,
    bias: bool = False,
) -> Params:
    """Draw a kernel ``[size, size, inputs, outputs]``, with a bias of 0 if there is to be one."""
    shape = (size, size, inputs, outputs)
    return _kernel(rng, shape, fan_in=size * size * inputs, bias=bias)


def embedding_params(rng: np.random.Generator, rows: int, width: int, scale: float = 0.02) -> Params:
    """Draw a table ``[rows, width]``."""
    table = _normal(rng, (rows, width), scale)
    return {"embedding": table}


def norm_params(width: int) -> Params:
    """Return the parameters of a normalisation that changes nothing more."""
    return {
        "scale": np.ones(width, np.float32),
        "bias": np.zeros(width, np.float32),
    }


def _kernel(rng: np.random.Generator, shape: tuple[int, ...], fan_in: int, bias: bool) -> Params:
    """Draw a kernel whose outputs have the variance of its inputs."""
    params = {"kernel": _normal(rng, shape, scale=fan_in**-0.5)}
    if bias:
        num_outputs = shape[-1]
        params["bias"] = np.zeros(num_outputs, np.float32)
    return params


def _normal(
    rng: np.random.Generator,
    shape: tuple[int, ...],
    scale: float,
) -> Float32[np.ndarray, "..."]:
    """Draw normal numbers of mean 0 and standard deviation ``scale``."""
    numbers = rng.standard_normal(shape, np.float32)
    return numbers * np.float32(scale)
