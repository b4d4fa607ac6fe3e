"""The models, as users write them: ``loss(params, x, y)`` of ONE example; the fine-tune's takes the frozen base last.

A model holds its sizes. ``init(rng)`` gives (parameters, frozen arguments of the loss), ``batch(rng, size)`` the data.
"""

import dataclasses
from typing import Any

import jax
import numpy as np

from benchmarks.clipping import layers as nn
from benchmarks.clipping.flax_models import FlaxTransformer

Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class MLP:
    """Dense layers with relu."""

    widths: tuple[int, ...] = (784, 1024, 1024, 10)
    dtype: str = "float32"

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        pairs = zip(self.widths[:-1], self.widths[1:], strict=True)
        return {"layers": [nn.dense_params(rng, *pair) for pair in pairs]}, ()

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        params, x = nn.cast((params, x), self.dtype)
        *hidden, last = params["layers"]
        for layer in hidden:
            x = jax.nn.relu(nn.dense(layer, x))
        return nn.cross_entropy(nn.dense(last, x), y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        return _floats(rng, (size, self.widths[0])), _labels(rng, size, self.widths[-1])


@dataclasses.dataclass(frozen=True)
class CNN:
    """The MNIST network of arXiv:1911.11607."""

    channels: tuple[int, int] = (16, 32)
    dtype: str = "float32"

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        first, second = self.channels
        return {
            "conv0": nn.conv_params(rng, 8, 1, first, bias=True),
            "conv1": nn.conv_params(rng, 4, first, second, bias=True),
            "dense0": nn.dense_params(rng, 16 * second, 32),
            "dense1": nn.dense_params(rng, 32, 10),
        }, ()

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        params, x = nn.cast((params, x), self.dtype)
        x = nn.max_pool(jax.nn.relu(nn.conv(params["conv0"], x, 2, "SAME")))
        x = nn.max_pool(jax.nn.relu(nn.conv(params["conv1"], x, 2, "VALID")))
        x = jax.nn.relu(nn.dense(params["dense0"], x.reshape(-1)))
        return nn.cross_entropy(nn.dense(params["dense1"], x), y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        return _floats(rng, (size, 28, 28, 1)), _labels(rng, size, 10)


@dataclasses.dataclass(frozen=True)
class Transformer:
    """Decoder, layer norm first, fused qkv, a head of its own.

    With ``rank``: LoRA on qkv and out, the rest frozen. With ``tied``: the tokens' embedding is the head too, no bias.
    """

    depth: int = 4
    width: int = 256
    heads: int = 4
    length: int = 64
    vocabulary: int = 5000
    rank: int = 0
    tied: bool = False
    dtype: str = "float32"

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        base = {
            "tokens": nn.embedding_params(rng, self.vocabulary, self.width),
            "positions": nn.embedding_params(rng, self.length, self.width),
            "blocks": [block_params(rng, self.width) for _ in range(self.depth)],
            "norm": nn.norm_params(self.width),
        }
        if not self.tied:
            base["head"] = nn.dense_params(rng, self.width, self.vocabulary)
        if not self.rank:
            return base, ()
        return {"blocks": [lora_params(rng, self.width, self.rank) for _ in range(self.depth)]}, (base,)

    def loss(self, params: Any, x: jax.Array, y: jax.Array, *frozen: Any) -> jax.Array:
        params, frozen = nn.cast((params, frozen), self.dtype)
        base, loras = (frozen[0], params["blocks"]) if self.rank else (params, [None] * self.depth)
        x = base["tokens"]["embedding"][x] + base["positions"]["embedding"]
        for layer, lora in zip(base["blocks"], loras, strict=True):
            x = block(layer, x, self.heads, causal=True, lora=lora)
        x = nn.layer_norm(base["norm"], x)
        logits = x @ base["tokens"]["embedding"].T if self.tied else nn.dense(base["head"], x)
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
    dtype: str = "float32"

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        return {
            "tokens": nn.embedding_params(rng, self.vocabulary, self.width, scale=1.0),
            "dense0": nn.dense_params(rng, self.width, self.width),
            "dense1": nn.dense_params(rng, self.width, 2),
        }, ()

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        params = nn.cast(params, self.dtype)
        x = params["tokens"]["embedding"][x].mean(0)
        return nn.cross_entropy(nn.dense(params["dense1"], jax.nn.relu(nn.dense(params["dense0"], x))), y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        return _labels(rng, (size, self.length), self.vocabulary), _labels(rng, size, 2)


@dataclasses.dataclass(frozen=True)
class ResNet:
    """Pre-activation residual network (arXiv:1603.05027) with GroupNorm; ``widths`` by stage, halving the image."""

    widths: tuple[int, ...] = (16, 32, 64)
    blocks: int = 3
    stem: int = 16
    groups: int = 8
    size: int = 32
    dtype: str = "float32"

    def plan(self) -> list[tuple[int, int, int]]:
        """(inputs, outputs, stride) of each block."""
        found, inputs = [], self.stem
        for stage, width in enumerate(self.widths):
            for i in range(self.blocks):
                found.append((inputs, width, 2 if stage and not i else 1))
                inputs = width
        return found

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        return {
            "stem": nn.conv_params(rng, 3, 3, self.stem),
            "blocks": [self._block_params(rng, *each) for each in self.plan()],
            "norm": nn.norm_params(self.widths[-1]),
            "head": nn.dense_params(rng, self.widths[-1], 10),
        }, ()

    def _block_params(self, rng: np.random.Generator, inputs: int, outputs: int, stride: int) -> Any:
        block = {
            "norm0": nn.norm_params(inputs),
            "conv0": nn.conv_params(rng, 3, inputs, outputs),
            "norm1": nn.norm_params(outputs),
            "conv1": nn.conv_params(rng, 3, outputs, outputs),
        }
        changes = inputs != outputs or stride != 1
        return block | ({"shortcut": nn.conv_params(rng, 1, inputs, outputs)} if changes else {})

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        params, x = nn.cast((params, x), self.dtype)
        x = nn.conv(params["stem"], x)
        for block, (_, _, stride) in zip(params["blocks"], self.plan(), strict=True):
            h = jax.nn.relu(nn.group_norm(block["norm0"], x, self.groups))
            x = nn.conv(block["shortcut"], h, stride, "VALID") if "shortcut" in block else x
            h = nn.conv(block["conv0"], h, stride)
            x = x + nn.conv(block["conv1"], jax.nn.relu(nn.group_norm(block["norm1"], h, self.groups)))
        x = jax.nn.relu(nn.group_norm(params["norm"], x, self.groups)).mean((0, 1))
        return nn.cross_entropy(nn.dense(params["head"], x), y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        return _floats(rng, (size, self.size, self.size, 3)), _labels(rng, size, 10)


@dataclasses.dataclass(frozen=True)
class ViT:
    """Vision transformer without a class token: the mean of the patches goes to the head."""

    depth: int = 12
    width: int = 384
    heads: int = 6
    patch: int = 16
    size: int = 224
    classes: int = 1000
    dtype: str = "float32"

    @property
    def length(self) -> int:
        return (self.size // self.patch) ** 2

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        return {
            "patches": nn.conv_params(rng, self.patch, 3, self.width, bias=True),
            "positions": nn.embedding_params(rng, self.length, self.width),
            "blocks": [block_params(rng, self.width) for _ in range(self.depth)],
            "norm": nn.norm_params(self.width),
            "head": nn.dense_params(rng, self.width, self.classes),
        }, ()

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        params, x = nn.cast((params, x), self.dtype)
        x = nn.conv(params["patches"], x, self.patch, "VALID").reshape(self.length, self.width)
        x = x + params["positions"]["embedding"]
        for layer in params["blocks"]:
            x = block(layer, x, self.heads, causal=False)
        return nn.cross_entropy(nn.dense(params["head"], nn.layer_norm(params["norm"], x).mean(0)), y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        return _floats(rng, (size, self.size, self.size, 3)), _labels(rng, size, self.classes)


Model = MLP | CNN | Transformer | FlaxTransformer | TextAverage | ResNet | ViT


def block(params: Any, x: jax.Array, heads: int, causal: bool, lora: Any = None) -> jax.Array:
    """Attention and a gelu network of four times the width, each after a norm and around a residual."""

    def project(name: str, h: jax.Array) -> jax.Array:
        return nn.lora_dense(params[name], lora[name], h) if lora else nn.dense(params[name], h)

    x = x + project("out", nn.attention(project("qkv", nn.layer_norm(params["norm0"], x)), heads, causal))
    h = jax.nn.gelu(nn.dense(params["up"], nn.layer_norm(params["norm1"], x)))
    return x + nn.dense(params["down"], h)


def block_params(rng: np.random.Generator, width: int) -> Any:
    return {
        "norm0": nn.norm_params(width),
        "qkv": nn.dense_params(rng, width, 3 * width),
        "out": nn.dense_params(rng, width, width),
        "norm1": nn.norm_params(width),
        "up": nn.dense_params(rng, width, 4 * width),
        "down": nn.dense_params(rng, 4 * width, width),
    }


def lora_params(rng: np.random.Generator, width: int, rank: int) -> Any:
    """B is not zero, as after some steps: a zero B would leave A without a gradient."""

    def pair(outputs: int) -> Any:
        return {
            "a": nn.dense_params(rng, width, rank, bias=False),
            "b": nn.dense_params(rng, rank, outputs, bias=False),
        }

    return {"qkv": pair(3 * width), "out": pair(width)}


def _floats(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _labels(rng: np.random.Generator, shape: int | tuple[int, ...], classes: int) -> np.ndarray:
    return rng.integers(classes, size=shape, dtype=np.int32)
