"""Perplexity on texts that were not trained on, and a sample of what a model writes."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from experiments.language.config import ModelConfig
from experiments.language.lora import Params
from experiments.language.model import logits, sequence_loss
from experiments.language.packing import Units
from experiments.language.targets import next_tokens
from experiments.language.tokenizer import Tokenizer

ROWS_AT_ONCE = 16
TEMPERATURE, TOP_K = 0.8, 50
"""Samples are drawn among the 50 likeliest tokens, with logits over 0.8."""


def perplexity(config: ModelConfig, params: Params, units: Units) -> float:
    """Return exp(mean cross entropy of the next token), over all targets of these units, each of which counts alike.

    If the units are private then so is this figure, and epsilon does not cover it. Measure on units that were split off
    before the training. It is infinite where a training diverged, and NaN where there is nothing to predict.
    """
    # The last chunk is padded with sequences that hold no text, so that one program does.
    length = units.tokens.shape[-1]
    missing = -units.tokens[..., 0].size % ROWS_AT_ONCE
    chunks = []
    for array in units.arrays:
        rows = np.pad(array.reshape(-1, length), [(0, missing), (0, 0)])
        chunks.append(rows.reshape(-1, ROWS_AT_ONCE, length))
    total = sum(float(_total_loss(config, params, *chunk)) for chunk in zip(*chunks, strict=True))
    num_targets = int(next_tokens(*map(jnp.asarray, units.arrays))[1].sum())
    return float(np.exp(total / num_targets)) if num_targets else math.nan


@functools.partial(jax.jit, static_argnums=0)
def _total_loss(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "rows length"],
    segment_ids: Int[Array, "rows length"],
) -> Float[Array, ""]:
    """Return the sum of the losses of all targets of some sequences."""
    return sequence_loss(config, params, tokens, segment_ids, divisor=1.0)


def sample_of(
    config: ModelConfig,
    params: Params,
    tokenizer: Tokenizer,
    key: PRNGKeyArray,
    *,
    prompt: str = "",
    num_tokens: int = 40,
) -> str:
    """Return a text that the model makes of a public prompt. It is post-processing of the parameters."""
    begun = np.concatenate([[tokenizer.begin], tokenizer.encode(prompt)])
    length = min(len(begun) + num_tokens, config.max_length)
    text = np.zeros(length, np.int32)
    text[: len(begun)] = begun
    text = np.asarray(continued(config, params, jnp.asarray(text), len(begun), key))

    # A text is over where its end is drawn.
    made = text[len(begun) :]
    ends = np.flatnonzero(made == tokenizer.end)
    if len(ends):
        made = made[: ends[0]]
    return prompt + tokenizer.decode(made)


@functools.partial(jax.jit, static_argnums=0)
def continued(
    config: ModelConfig,
    params: Params,
    text: Int[Array, " length"],
    begun: int,
    key: PRNGKeyArray,
) -> Int[Array, " length"]:
    """Return a text whose tokens from the position ``begun`` on are drawn, each given those before it.

    The i-th token is drawn with ``fold_in(key, i)``. All logits are computed anew for each: what stands behind a token
    changes none of them.
    """

    def add_token(number: Array, text: Array) -> Array:
        values = logits(config, params, text)[number - 1]
        largest, _ = jax.lax.top_k(values, min(TOP_K, config.vocab_size))
        kept = jnp.where(values >= largest[-1], values, -jnp.inf)
        own_key = jax.random.fold_in(key, number)
        token = jax.random.categorical(own_key, kept / TEMPERATURE)
        return text.at[number].set(token)

    return jax.lax.fori_loop(begun, text.shape[0], add_token, text)
