"""The models, as users write them: ``loss(params, x, y)`` of ONE example.

A model holds its sizes. ``init(rng)`` gives the parameters, ``batch(rng, size)`` the data.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from benchmarks.clipping import layers as nn

Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class MLP:
    """Dense layers with relu."""

    widths: tuple[int, ...] = (784, 1024, 1024, 10)

    def init(self, rng: np.random.Generator) -> Any:
        pairs = zip(self.widths[:-1], self.widths[1:], strict=True)
        return {"layers": [nn.dense_params(rng, *pair) for pair in pairs]}

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        *hidden, last = params["layers"]
        for layer in hidden:
            x = jax.nn.relu(nn.dense(layer, x))
        logits = nn.dense(last, x)
        return nn.cross_entropy(logits, y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        vectors = _floats(rng, (size, self.widths[0]))
        return vectors, _labels(rng, size, self.widths[-1])


@dataclasses.dataclass(frozen=True)
class CNN:
    """The MNIST network of arXiv:1911.11607."""

    channels: tuple[int, int] = (16, 32)

    def init(self, rng: np.random.Generator) -> Any:
        first, second = self.channels
        params = {
            "conv0": nn.conv_params(rng, 8, 1, first, bias=True),
            "conv1": nn.conv_params(rng, 4, first, second, bias=True),
            "dense0": nn.dense_params(rng, 16 * second, 32),
            "dense1": nn.dense_params(rng, 32, 10),
        }
        return params

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        # Two convolutions, each with relu and pooling.
        x = nn.conv(params["conv0"], x, 2, "SAME")
        x = nn.max_pool(jax.nn.relu(x))
        x = nn.conv(params["conv1"], x, 2, "VALID")
        x = nn.max_pool(jax.nn.relu(x))

        # Two dense layers.
        x = nn.dense(params["dense0"], x.reshape(-1))
        x = jax.nn.relu(x)
        logits = nn.dense(params["dense1"], x)
        return nn.cross_entropy(logits, y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        images = _floats(rng, (size, 28, 28, 1))
        return images, _labels(rng, size, 10)


@dataclasses.dataclass(frozen=True)
class Transformer:
    """Decoder, layer norm first, fused qkv, a head of its own; ``tied``: the tokens' embedding is the head, no bias."""

    depth: int = 4
    width: int = 256
    heads: int = 4
    length: int = 64
    vocabulary: int = 5000
    tied: bool = False

    def init(self, rng: np.random.Generator) -> Any:
        params = {
            "tokens": nn.embedding_params(rng, self.vocabulary, self.width),
            "positions": nn.embedding_params(rng, self.length, self.width),
            "blocks": [block_params(rng, self.width) for _ in range(self.depth)],
            "norm": nn.norm_params(self.width),
        }
        if not self.tied:
            params["head"] = nn.dense_params(rng, self.width, self.vocabulary)
        return params

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        # Tokens and positions, then the blocks.
        x = params["tokens"]["embedding"][x] + params["positions"]["embedding"]
        for layer in params["blocks"]:
            x = block(layer, x, self.heads)
        x = nn.layer_norm(params["norm"], x)

        # The logits of each position's next token.
        logits = x @ params["tokens"]["embedding"].T if self.tied else nn.dense(params["head"], x)
        return nn.cross_entropy(logits, y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        text = _labels(rng, (size, self.length + 1), self.vocabulary)
        return text[:, :-1], text[:, 1:]


@dataclasses.dataclass(frozen=True)
class TextAverage:
    """The IMDb network of arXiv:1911.11607: the mean of the words' embeddings, then two dense layers."""

    vocabulary: int = 10_000
    length: int = 256
    width: int = 16

    def init(self, rng: np.random.Generator) -> Any:
        params = {
            "tokens": nn.embedding_params(rng, self.vocabulary, self.width, scale=1.0),
            "dense0": nn.dense_params(rng, self.width, self.width),
            "dense1": nn.dense_params(rng, self.width, 2),
        }
        return params

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        words = params["tokens"]["embedding"][x]
        x = words.mean(0)
        x = jax.nn.relu(nn.dense(params["dense0"], x))
        logits = nn.dense(params["dense1"], x)
        return nn.cross_entropy(logits, y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        texts = _labels(rng, (size, self.length), self.vocabulary)
        return texts, _labels(rng, size, 2)


@dataclasses.dataclass(frozen=True)
class ResNet:
    """Pre-activation residual network (arXiv:1603.05027) with GroupNorm; ``widths`` by stage, halving the image."""

    widths: tuple[int, ...] = (16, 32, 64)
    blocks: int = 3
    stem: int = 16
    groups: int = 8
    size: int = 32

    def plan(self) -> list[tuple[int, int, int]]:
        """Return (inputs, outputs, stride) of each block."""
        sizes_of_blocks = []
        inputs = self.stem
        for stage, width in enumerate(self.widths):
            for number in range(self.blocks):
                # The first block of each stage but the first one halves the image.
                halves = stage > 0 and number == 0
                sizes_of_blocks.append((inputs, width, 2 if halves else 1))
                inputs = width
        return sizes_of_blocks

    def init(self, rng: np.random.Generator) -> Any:
        params = {
            "stem": nn.conv_params(rng, 3, 3, self.stem),
            "blocks": [residual_block_params(rng, *sizes) for sizes in self.plan()],
            "norm": nn.norm_params(self.widths[-1]),
            "head": nn.dense_params(rng, self.widths[-1], 10),
        }
        return params

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        x = nn.conv(params["stem"], x)
        for layer, (_, _, stride) in zip(params["blocks"], self.plan(), strict=True):
            x = residual_block(layer, x, stride, self.groups)

        # The mean over all pixels goes to the head.
        x = jax.nn.relu(nn.group_norm(params["norm"], x, self.groups))
        x = x.mean((0, 1))
        logits = nn.dense(params["head"], x)
        return nn.cross_entropy(logits, y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        images = _floats(rng, (size, self.size, self.size, 3))
        return images, _labels(rng, size, 10)


Model = MLP | CNN | Transformer | TextAverage | ResNet


# ---- Blocks of transformers ----


def block(params: Any, x: jax.Array, heads: int) -> jax.Array:
    """Causal attention and a gelu network of four times the width, each after a norm and around a residual."""
    # Attention.
    normed = nn.layer_norm(params["norm0"], x)
    mixed = nn.attention(nn.dense(params["qkv"], normed), heads)
    x = x + nn.dense(params["out"], mixed)

    # The gelu network.
    normed = nn.layer_norm(params["norm1"], x)
    hidden = jax.nn.gelu(nn.dense(params["up"], normed))
    return x + nn.dense(params["down"], hidden)


def block_params(rng: np.random.Generator, width: int) -> Any:
    return {
        "norm0": nn.norm_params(width),
        "qkv": nn.dense_params(rng, width, 3 * width),
        "out": nn.dense_params(rng, width, width),
        "norm1": nn.norm_params(width),
        "up": nn.dense_params(rng, width, 4 * width),
        "down": nn.dense_params(rng, 4 * width, width),
    }


# ---- Blocks of residual networks ----


def residual_block(params: Any, x: jax.Array, stride: int, groups: int) -> jax.Array:
    """Two convolutions, each after a norm and relu, around a residual."""
    activated = jax.nn.relu(nn.group_norm(params["norm0"], x, groups))
    if "shortcut" in params:
        x = nn.conv(params["shortcut"], activated, stride, "VALID")

    hidden = nn.conv(params["conv0"], activated, stride)
    activated = jax.nn.relu(nn.group_norm(params["norm1"], hidden, groups))
    return x + nn.conv(params["conv1"], activated)


def residual_block_params(rng: np.random.Generator, inputs: int, outputs: int, stride: int) -> Any:
    """Draw a block's parameters, with a shortcut if the block changes the shape."""
    params = {
        "norm0": nn.norm_params(inputs),
        "conv0": nn.conv_params(rng, 3, inputs, outputs),
        "norm1": nn.norm_params(outputs),
        "conv1": nn.conv_params(rng, 3, outputs, outputs),
    }
    if inputs != outputs or stride != 1:
        params["shortcut"] = nn.conv_params(rng, 1, inputs, outputs)
    return params


# ---- Data ----


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw normal numbers."""
    return rng.standard_normal(shape, np.float32)


def _labels(rng: np.random.Generator, shape: int | tuple[int, ...], classes: int) -> np.ndarray:
    """Draw whole numbers from 0 to ``classes`` - 1."""
    return rng.integers(classes, size=shape, dtype=np.int32)
