"""A decoder-only transformer, and the loss of a sequence of tokens.

    config = PRESETS["tiny"]
    params = init_params(config, key)
    logits(config, params, tokens)                          # float32 [length, vocabulary]
    sequence_loss(config, params, tokens)                   # of one example, for `gdpjax.clipped_grad`

Parameters are nested dictionaries of arrays, and the model is functions of them. The weights of all layers are stacked
along a leading axis, and a `lax.scan` goes through the layers: the program has the same length whatever the number of
layers, and gdpjax reads each layer's gradient off the one body of the loop. The values inside of a layer are computed
again in the backward pass, instead of being kept.

Matrix products are in `ModelConfig.compute_dtype`. Norms, softmax, logits and the loss are in float32.

References: Vaswani et al., arXiv:1706.03762; RMSNorm, arXiv:1910.07467; rotary positions, arXiv:2104.09864; gated
feed-forward layers, arXiv:2002.05202; grouped-query attention, arXiv:2305.13245.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from experiments.language.config import ModelConfig
from experiments.language.lora import LoraConfig, Params, nested
from experiments.language.targets import next_tokens, unit_loss
from gdpjax.sweeps import UserError

_INITIAL_STDDEV = 0.02
"""The standard deviation of initial weights, as in GPT-2."""
_INTO_THE_STREAM = ("attention/output", "feed_forward/down")
"""The weights that add to the residual stream."""


def param_shapes(config: ModelConfig) -> dict[str, Any]:
    """Return the shapes of the parameters, as nested dictionaries of `jax.ShapeDtypeStruct`.

    >>> from experiments.language.config import PRESETS
    >>> param_shapes(PRESETS["tiny"])["layers"]["attention"]["query"]["kernel"].shape
    (4, 128, 128)
    """
    return jax.eval_shape(functools.partial(init_params, config), jax.random.key(0))


@functools.partial(jax.jit, static_argnums=0)
def init_params(config: ModelConfig, key: PRNGKeyArray) -> dict[str, Any]:
    """Return initial parameters in float32, without adapters.

    Weights and embeddings are normal with a standard deviation of 0.02, or 0.02 / sqrt(2 num_layers) where they add to
    the residual stream, as in GPT-2.
    """
    table = (config.vocab_size, config.model_width)
    shapes: dict[str, tuple[int, ...]] = {"embedding/table": table}
    if not config.tied_head:
        shapes["head/kernel"] = table[::-1]
    for path, shape in config.weight_shapes.items():
        shapes[f"layers/{path}/kernel"] = (config.num_layers, *shape)
    params = {}
    keys = jax.random.split(key, len(shapes))
    for number, (path, shape) in enumerate(shapes.items()):
        stddev = _INITIAL_STDDEV
        if any(name in path for name in _INTO_THE_STREAM):
            stddev = stddev / math.sqrt(2 * config.num_layers)
        params[path] = stddev * jax.random.normal(keys[number], shape)

    # The scales of norms, of which Gemma keeps the distance from 1.
    initial = jnp.zeros if config.is_gemma else jnp.ones
    params["final_norm/scale"] = initial(config.model_width)
    for name in ("attention_norm", "feed_forward_norm"):
        params[f"layers/{name}/scale"] = initial((config.num_layers, config.model_width))
    return nested(params)


def logits(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "*batch length"],
    segment_ids: Int[Array, "*batch length"] | None = None,
    *,
    lora: LoraConfig | None = None,
) -> Float[Array, "*batch length vocabulary"]:
    """Return the logits of the token that follows each token, in float32.

    Args:
      config: the shape of the model.
      params: its parameters; with ``lora``, what `experiments.language.lora.joined` returns.
      tokens: the tokens, of one sequence or of several ones. A token out of range gives NaN.
      segment_ids: which of the texts of a sequence each token belongs to. Attention stays within a text. None: a
        sequence is one text.
      lora: the adapters that the parameters have.

    Raises:
      UserError: a sequence that is too long.
    """
    *batch, length = tokens.shape
    if length > config.max_length:
        raise UserError(f"expected sequences of at most max_length = {config.max_length} tokens, got {length}")
    tokens = tokens.reshape(-1, length)
    dtype = jnp.dtype(config.compute_dtype)
    table = params["embedding"]["table"]
    x = jnp.take(table, tokens, axis=0, mode="fill").astype(dtype)
    if config.is_gemma:
        x = x * jnp.asarray(math.sqrt(config.model_width), dtype)

    # A position looks at earlier ones of its segment, and at itself. Rotary positions need not begin again in each
    # segment, as only distances matter.
    positions = jnp.arange(length)
    mask = (positions <= positions[:, None])[None, None]
    if segment_ids is not None:
        segment_ids = segment_ids.reshape(-1, length)
        mask = mask & (segment_ids[:, :, None] == segment_ids[:, None, :])[:, None]
    angles = positions[:, None].astype(jnp.float32) * rotary_frequencies(config)
    scale = 0.0 if lora is None else lora.scale

    def through_layer(x: Array, layer: Params) -> tuple[Array, None]:
        normed = _norm(config, layer["attention_norm"], x)
        x = x + _attention(config, layer["attention"], normed, angles, mask, scale)
        normed = _norm(config, layer["feed_forward_norm"], x)
        return x + _feed_forward(config, layer["feed_forward"], normed, scale), None

    # A loop keeps the compiler from undoing this, so nothing more is needed to prevent it.
    recomputed = jax.checkpoint(through_layer, prevent_cse=False)
    x, _ = jax.lax.scan(recomputed, x, params["layers"])
    x = _norm(config, params["final_norm"], x)
    if config.tied_head:
        values = jnp.einsum("...d,vd->...v", x, table.astype(dtype), preferred_element_type=jnp.float32)
    else:
        values = _product(params["head"], x, scale, jnp.float32)
    return values.reshape(*batch, length, config.vocab_size)


def sequence_loss(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "*batch length"],
    segment_ids: Int[Array, "*batch length"] | None = None,
    *,
    divisor: float | None = None,
    lora: LoraConfig | None = None,
) -> Float[Array, ""]:
    """Return the mean cross entropy of the next token, in nats per token.

    The mean is over all tokens that are predicted: of one sequence, or of all sequences of a unit together. The first
    token of a text is not predicted, and neither is padding. A unit with nothing to predict has a loss, and a gradient,
    of zero.

    Args:
      config: the shape of the model.
      params: its parameters.
      tokens: the tokens of one example: a sequence [length], or sequences [num_sequences, length].
      segment_ids: which of the texts of a sequence each token belongs to, 0 for padding; None: a sequence is one text.
      divisor: a public constant to divide the sum by, instead of the number of predicted tokens.
      lora: the adapters that the parameters have.
    """
    # The last position predicts nothing. It is computed all the same, as round lengths are faster.
    values = logits(config, params, tokens, segment_ids, lora=lora)
    if segment_ids is None:
        segment_ids = jnp.ones_like(tokens)
    targets, is_target = next_tokens(tokens, segment_ids)

    # -log softmax at the target, without an array of probabilities.
    at_target = jnp.take_along_axis(values, targets[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(values, axis=-1) - at_target
    return unit_loss(losses, is_target, divisor)


def _norm(
    config: ModelConfig,
    norm: Params,
    x: Float[Array, "*batch width"],
) -> Float[Array, "*batch width"]:
    """Return x / sqrt(mean(x^2) + epsilon) times a weight for each channel, computed in float32."""
    wide = x.astype(jnp.float32)
    mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    normalized = wide * jax.lax.rsqrt(mean_square + config.norm_epsilon)
    scale = norm["scale"].astype(jnp.float32)
    if config.is_gemma:
        scale = 1 + scale
    return (normalized * scale).astype(x.dtype)


def _product(
    weight: Params,
    x: Float[Array, "*batch inputs"],
    scale: float,
    dtype: Any = None,
) -> Float[Array, "*batch outputs"]:
    """Return x W, and scale (x A) B of an adapter, in the type of x or in a wider one."""
    kernel = weight["kernel"].astype(x.dtype)
    y = jnp.matmul(x, kernel, preferred_element_type=dtype)
    if "lora_a" not in weight:
        return y

    # The adapter's part.
    a = weight["lora_a"].astype(x.dtype)
    b = weight["lora_b"].astype(x.dtype)
    low_rank = scale * jnp.matmul(x, a)
    return y + jnp.matmul(low_rank, b, preferred_element_type=dtype)


def _attention(
    config: ModelConfig,
    weights: Params,
    x: Float[Array, "batch length width"],
    angles: Float[Array, "length half"],
    mask: Array,
    scale: float,
) -> Float[Array, "batch length width"]:
    """Return causal attention, in which several heads of queries share a head of keys and values."""

    def in_heads(name: str) -> Float[Array, "batch length heads head_width"]:
        channels = _product(weights[name], x, scale)
        return channels.reshape(*x.shape[:-1], -1, config.head_width)

    # Queries and keys know their positions by their angles; values do not. Softmax of the products is in float32.
    queries = _rotated(in_heads("query"), angles)
    keys = _rotated(in_heads("key"), angles)
    mixed = jax.nn.dot_product_attention(queries, keys, in_heads("value"), mask=mask)
    joined_heads = mixed.reshape(*x.shape[:-1], -1)
    return _product(weights["output"], joined_heads, scale)


def _feed_forward(
    config: ModelConfig,
    weights: Params,
    x: Float[Array, "*batch width"],
    scale: float,
) -> Float[Array, "*batch width"]:
    """Return down(activation(gate(x)) * up(x))."""
    gate = _product(weights["gate"], x, scale)
    up = _product(weights["up"], x, scale)
    activated = jax.nn.gelu(gate, approximate=True) if config.is_gemma else jax.nn.silu(gate)
    return _product(weights["down"], activated * up, scale)


def rotary_frequencies(config: ModelConfig) -> Float[Array, " half"]:
    """Return the angles by which one position turns each pair of channels, in radians; see `RotaryScaling`."""
    half = config.head_width // 2
    exponents = jnp.arange(half, dtype=jnp.float32) / half
    frequencies = config.rope_theta**-exponents
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies

    # How much of a frequency stays: all where it turns often within the original length, nothing where it turns rarely.
    turns = scaling.original_max_length * frequencies / (2 * math.pi)
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    kept = jnp.clip((turns - low) / (high - low), 0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def _rotated(
    x: Float[Array, "batch length heads width"],
    angles: Float[Array, "length half"],
) -> Float[Array, "batch length heads width"]:
    """Turn pairs of channels by the angles of their positions, in float32, all heads alike.

    Channel i of the first half of a head is paired with channel i of the second half, as in published Llama weights of
    the format of Hugging Face. Products of a query and a key then depend on the distance of their positions alone.
    """
    cos = jnp.cos(angles)[:, None, :]
    sin = jnp.sin(angles)[:, None, :]

    # The rotation of each pair (first, second).
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    turned = jnp.concatenate([turned_first, turned_second], axis=-1)
    return turned.astype(x.dtype)
