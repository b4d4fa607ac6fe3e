"""Sample text from a language model, one token after the other.

    tokens = generate(config, params, prompt, 100, key, temperature=0.8, top_k=40)      # int32 [batch, 100]

The prompt is evaluated at once. Then a compiled loop takes one token at a time, with the keys and values of all earlier
positions in a cache of a fixed size. Whoever sees the samples sees the parameters through them: samples of a privately
trained model are post-processing, and cost no further privacy.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from experiments.errors import UserError
from experiments.language.config import ModelConfig
from experiments.language.lora import LoraConfig, Params
from experiments.language.model import empty_cache, logits_with_cache


def generate(
    config: ModelConfig,
    params: Params,
    prompt: Int[Array, "batch prompt_length"],
    num_tokens: int,
    key: PRNGKeyArray,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    stop_token: int | None = None,
    lora: LoraConfig | None = None,
) -> Int[Array, "batch num_tokens"]:
    """Return tokens that continue each prompt.

    Args:
      config: the shape of the model.
      params: its parameters.
      prompt: the first tokens, of one length for the whole batch.
      num_tokens: how many tokens to add.
      key: a key. The i-th token of all prompts is drawn with ``fold_in(key, i)``.
      temperature: what logits are divided by; 0 takes the most likely token each time.
      top_k: draw among the so many most likely tokens only. None: among all of them.
      stop_token: a token after which a text has only further stop tokens. None: no token ends a text.
      lora: the adapters that the parameters have.

    Raises:
      UserError: more positions than ``config.max_length``, or a number out of range.

    >>> from experiments.language.config import PRESETS
    >>> from experiments.language.model import init_params
    >>> config = PRESETS["tiny"]
    >>> params = init_params(config, jax.random.key(0))
    >>> generate(config, params, jnp.array([[1, 2, 3]]), 5, jax.random.key(1), temperature=0.8, top_k=10).shape
    (1, 5)
    """
    prompt = jnp.asarray(prompt)
    if prompt.ndim != 2 or prompt.shape[1] < 1 or not jnp.issubdtype(prompt.dtype, jnp.integer):
        raise UserError(
            "expected a prompt of integers [batch, length] of at least one token, got "
            f"{prompt.dtype}{list(prompt.shape)}"
        )
    if not isinstance(num_tokens, int) or num_tokens < 1:
        raise UserError(f"expected num_tokens to be a whole number of at least 1, got {num_tokens!r}")
    length = prompt.shape[1] + num_tokens
    if length > config.max_length:
        raise UserError(
            f"expected a prompt and its continuation of at most max_length = {config.max_length} tokens, got "
            f"{prompt.shape[1]} and {num_tokens}"
        )
    if not (math.isfinite(temperature) and temperature >= 0):
        raise UserError(f"expected a temperature of at least 0, got {temperature!r}")
    if top_k is not None and not 1 <= top_k <= config.vocab_size:
        raise UserError(f"expected top_k from 1 to the vocabulary's {config.vocab_size}, got {top_k!r}")
    is_greedy = temperature == 0
    return _generate(
        config, num_tokens, is_greedy, top_k, stop_token, lora, dict(params), prompt.astype(jnp.int32), temperature, key
    )


@functools.partial(jax.jit, static_argnums=(0, 1, 2, 3, 4, 5))
def _generate(
    config: ModelConfig,
    num_tokens: int,
    is_greedy: bool,
    top_k: int | None,
    stop_token: int | None,
    lora: LoraConfig | None,
    params: dict[str, Any],
    prompt: Int[Array, "batch prompt_length"],
    temperature: Float[Array, ""],
    key: PRNGKeyArray,
) -> Int[Array, "batch num_tokens"]:
    batch_size, prompt_length = prompt.shape
    cache = empty_cache(config, batch_size, prompt_length + num_tokens)

    def next_token(values: Float[Array, "batch vocabulary"], number: Any) -> Int[Array, " batch"]:
        if is_greedy:
            return jnp.argmax(values, axis=-1).astype(jnp.int32)
        values = most_likely(values, top_k) / temperature
        return jax.random.categorical(jax.random.fold_in(key, number), values).astype(jnp.int32)

    # Evaluate the prompt, whose last logits are those of the first new token.
    values, cache = logits_with_cache(config, params, prompt, cache, 0, lora=lora)
    first = next_token(values[:, -1], 0)

    def step(carried: tuple, number: Array) -> tuple[tuple, Array]:
        token, cache = carried
        values, cache = logits_with_cache(config, params, token[:, None], cache, prompt_length + number - 1, lora=lora)
        following = next_token(values[:, 0], number)
        if stop_token is not None:
            following = jnp.where(token == stop_token, stop_token, following)
        return (following, cache), following

    _, others = jax.lax.scan(step, (first, cache), jnp.arange(1, num_tokens))
    return jnp.concatenate([first[:, None], others.T], axis=1)


def most_likely(values: Float[Array, "batch vocabulary"], top_k: int | None) -> Float[Array, "batch vocabulary"]:
    """Return logits in which all but the ``top_k`` largest, and those equal to them, are minus infinity.

    >>> most_likely(jnp.array([[1.0, 3.0, 2.0]]), 2)
    Array([[-inf,   3.,   2.]], dtype=float32)
    """
    if top_k is None:
        return values
    largest, _ = jax.lax.top_k(values, top_k)
    smallest_kept = largest[..., -1:]
    return jnp.where(values >= smallest_kept, values, -jnp.inf)
