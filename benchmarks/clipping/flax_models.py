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

    def module(self) -> "Decoder":
        """Return the flax module of these sizes."""
        return Decoder(**dataclasses.asdict(self))

    def init(self, rng: np.random.Generator) -> tuple[Any, tuple]:
        """Return flax's own initial parameters, and no frozen arguments."""
        seed = int(rng.integers(2**31))
        tokens = jnp.zeros(self.length, jnp.int32)
        variables = self.module().init(jax.random.key(seed), tokens)
        params = jax.tree.map(np.asarray, variables["params"])
        return params, ()

    def loss(self, params: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        """Return the mean cross entropy of one example's next tokens."""
        logits = self.module().apply({"params": params}, x)
        return cross_entropy(jnp.asarray(logits), y)

    def batch(self, rng: np.random.Generator, size: int) -> Batch:
        """Return random texts, and each of their tokens' successors."""
        shape = (size, self.length + 1)
        text = rng.integers(self.vocabulary, size=shape, dtype=np.int32)
        return text[:, :-1], text[:, 1:]


class DecoderBlock(linen.Module):
    """Causal attention and a gelu network of four times the width, each after a norm and around a residual."""

    width: int
    heads: int

    @linen.compact
    def __call__(self, x: jax.Array, mask: jax.Array) -> jax.Array:
        # Attention.
        normed = linen.LayerNorm(name="norm0")(x)
        attention = linen.MultiHeadDotProductAttention(self.heads, name="attention")
        x = x + attention(normed, mask=mask)

        # The gelu network.
        normed = linen.LayerNorm(name="norm1")(x)
        hidden = linen.Dense(4 * self.width, name="up")(normed)
        hidden = linen.gelu(hidden)
        return x + linen.Dense(self.width, name="down")(hidden)


class Decoder(linen.Module):
    """Embeddings of tokens and places, blocks, a norm, and a dense head over the vocabulary."""

    depth: int
    width: int
    heads: int
    vocabulary: int
    length: int

    @linen.compact
    def __call__(self, tokens: jax.Array) -> jax.Array:
        # Tokens and places.
        of_tokens = linen.Embed(self.vocabulary, self.width, name="tokens")
        of_places = linen.Embed(self.length, self.width, name="positions")
        x = of_tokens(tokens)
        x = x + of_places(jnp.arange(self.length))

        mask = linen.make_causal_mask(tokens)
        for number in range(self.depth):
            block = DecoderBlock(self.width, self.heads, name=f"block_{number}")
            x = block(x, mask)

        x = linen.LayerNorm(name="norm")(x)
        head = linen.Dense(self.vocabulary, name="head")
        return head(x)
