"""Perplexity on texts that were not trained on, and a sample of what a model writes."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.errors import UserError
from experiments.language.config import ModelConfig
from experiments.language.generate import generate
from experiments.language.lora import LoraConfig
from experiments.language.model import sequence_loss
from experiments.language.packing import Units
from experiments.language.tokenizer import Tokenizer

ROWS_AT_ONCE = 16


def perplexity(
    config: ModelConfig,
    params: Any,
    units: Units,
    *,
    lora: LoraConfig | None = None,
) -> float:
    """Return exp(mean cross entropy of the next token), over all targets of these units.

    If the units are private then so is this figure, and epsilon does not cover it. Measure on units that were split off
    before the training.

    Args:
      config: the shape of the model.
      params: its parameters.
      units: the texts, of which each target counts alike.
      lora: the adapters that the parameters have.
    """
    if not units.num_targets.sum():
        raise UserError("expected units with something to predict, got none to measure the perplexity on")

    # Sequences that hold no text are left out; the last chunk is padded with them, so that one program does.
    length = units.tokens.shape[-1]
    tokens = units.tokens.reshape(-1, length)
    segment_ids = units.segment_ids.reshape(-1, length)
    holds_text = np.any(segment_ids > 0, axis=-1)
    tokens, segment_ids = tokens[holds_text], segment_ids[holds_text]
    missing = -len(tokens) % ROWS_AT_ONCE
    tokens = np.pad(tokens, [(0, missing), (0, 0)])
    segment_ids = np.pad(segment_ids, [(0, missing), (0, 0)])

    total = 0.0
    for start in range(0, len(tokens), ROWS_AT_ONCE):
        chunk = slice(start, start + ROWS_AT_ONCE)
        total += float(_total_loss(config, lora, params, tokens[chunk], segment_ids[chunk]))
    try:
        return math.exp(total / int(units.num_targets.sum()))
    except OverflowError:  # a training that diverged
        return math.inf


@functools.partial(jax.jit, static_argnums=(0, 1))
def _total_loss(
    config: ModelConfig, lora: LoraConfig | None, params: Any, tokens: jax.Array, segment_ids: jax.Array
) -> jax.Array:
    """Return the sum of the losses of all targets of some sequences."""
    return sequence_loss(config, params, tokens, segment_ids, divisor=1.0, lora=lora)


def sample_of(
    config: ModelConfig,
    params: Any,
    tokenizer: Tokenizer,
    key: jax.Array,
    *,
    prompt: str = "",
    num_tokens: int = 40,
    lora: LoraConfig | None = None,
) -> str:
    """Return a text that the model makes of a public prompt. It is post-processing of the parameters."""
    tokens = np.concatenate([[tokenizer.begin], tokenizer.encode(prompt)]).astype(np.int32)
    made = generate(
        config,
        params,
        jnp.asarray(tokens)[None],
        min(num_tokens, config.max_length - len(tokens)),
        key,
        temperature=0.8,
        top_k=50,
        stop_token=tokenizer.end,
        lora=lora,
    )
    return prompt + tokenizer.decode(np.asarray(made[0]))
