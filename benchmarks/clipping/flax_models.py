"""A decoder as a flax user writes it: `flax.linen`'s own layers, applied to the tokens of ONE example."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen

from benchmarks.clipping.layers import cross_entropy

Batch = tuple[np.ndarray, np.ndarray]


@dataclasses.dataclass(frozen=True)
class FlaxTransformer:
    """The sizes of a decoder, layer norm first, with separate queries, keys and values and a head of its own."""

    depth: int = 4
    width: int = 256
    heads: int = 4
    length: int = 64
    vocabulary: int = 5000
    dtype: str = "float32"

    def module(self) -> "Decoder":
        """Return the flax module of these sizes."""
        return Decoder(self.depth, self.width, self.heads, self.vocabulary, self.length, jnp.dtype(self.dtype))

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        """Return flax's own initial parameters, and no frozen arguments."""
        key = jax.random.key(int(rng.integers(2**31)))
        variables = self.module().init(key, jnp.zeros(self.length, jnp.int32))
        return jax.tree.map(np.asarray, variables["params"]), ()

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        """Return the mean cross entropy of one example's next tokens."""
        logits = self.module().apply({"params": params}, x)
        return cross_entropy(jnp.asarray(logits), y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        """Return random texts, and each of their tokens' successors."""
        text = rng.integers(self.vocabulary, size=(size, self.length + 1), dtype=np.int32)
        return text[:, :-1], text[:, 1:]


class DecoderBlock(linen.Module):
    """Causal attention and a gelu network of four times the width, each after a norm and around a residual."""

    width: int
    heads: int
    dtype: Any

    @linen.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        h = linen.LayerNorm(dtype=self.dtype, name="norm0")(x)
        x = x + linen.MultiHeadDotProductAttention(self.heads, dtype=self.dtype, name="attention")(h, mask=mask)
        h = linen.LayerNorm(dtype=self.dtype, name="norm1")(x)
        h = linen.gelu(linen.Dense(4 * self.width, dtype=self.dtype, name="up")(h))
        return x + linen.Dense(self.width, dtype=self.dtype, name="down")(h)


class Decoder(linen.Module):
    """Embeddings of tokens and places, blocks, a norm, and a dense head over the vocabulary."""

    depth: int
    width: int
    heads: int
    vocabulary: int
    length: int
    dtype: Any

    @linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        x = linen.Embed(self.vocabulary, self.width, dtype=self.dtype, name="tokens")(tokens)
        places = jnp.arange(self.length)
        x = x + linen.Embed(self.length, self.width, dtype=self.dtype, name="positions")(places)
        mask = linen.make_causal_mask(tokens)
        for i in range(self.depth):
            x = DecoderBlock(self.width, self.heads, self.dtype, name=f"block_{i}")(x, mask)
        x = linen.LayerNorm(dtype=self.dtype, name="norm")(x)
        return linen.Dense(self.vocabulary, dtype=self.dtype, name="head")(x)
