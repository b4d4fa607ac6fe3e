"""A decoder-only transformer, and the loss of a sequence of tokens.

    config = PRESETS["tiny"]
    params = init_params(config, key)
    logits(config, params, tokens)                          # float32 [length, vocabulary]
    sequence_loss(config, params, tokens)                   # of one example, for `gdpjax.clipped_grad`

The modules are flax's (nnx), and parameters are ordinary nested dictionaries of arrays, so that gdpjax and optax take
them. The weights of all layers are stacked along a leading axis, and a `lax.scan` goes through the layers: the program
has the same length whatever the number of layers, and gdpjax reads each layer's gradient off the one body of the loop.

Matrix products are in `ModelConfig.compute_dtype`. Norms, softmax, logits and the loss are in float32.

References: Vaswani et al., arXiv:1706.03762; RMSNorm, arXiv:1910.07467; rotary positions, arXiv:2104.09864; gated
feed-forward layers, arXiv:2002.05202; grouped-query attention, arXiv:2305.13245.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from experiments.errors import UserError
from experiments.language.config import ModelConfig, RotaryScaling
from experiments.language.lora import LoraConfig, Params, adapted_paths
from experiments.language.targets import next_tokens, unit_loss

_INITIAL_STDDEV = 0.02
"""The standard deviation of initial weights, as in GPT-2."""


class Cache(NamedTuple):
    """The keys and values of the positions that were seen, for all layers or for one.

    Attributes:
      keys, values: [layers, batch, max_length, kv_heads, head_width]; without the axis of layers for one layer.
    """

    keys: Array
    values: Array


class Rotation(NamedTuple):
    """The angles by which queries and keys are turned.

    Attributes:
      cos, sin: float32 [length, head_width / 2].
    """

    cos: Float[Array, "length half"]
    sin: Float[Array, "length half"]


class RMSNorm(nnx.Module):
    """x / sqrt(mean(x^2) + epsilon) times a weight for each channel, in float32."""

    def __init__(self, config: ModelConfig) -> None:
        self.epsilon = config.norm_epsilon
        self.adds_one = config.norm_adds_one
        initial = jnp.zeros if config.norm_adds_one else jnp.ones
        self.scale = nnx.Param(initial(config.model_width))

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        wide = x.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normalized = wide * jax.lax.rsqrt(mean_square + self.epsilon)
        scale = self.scale[...].astype(jnp.float32)
        if self.adds_one:
            scale = 1 + scale
        return (normalized * scale).astype(x.dtype)


class Projection(nnx.Module):
    """A product x W, to which an adapter may add (alpha / rank) (x A) B."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        path: str,
        lora: LoraConfig | None,
        stddev: float,
        rngs: nnx.Rngs,
    ) -> None:
        self.kernel = nnx.Param(stddev * jax.random.normal(rngs.params(), (inputs, outputs)))
        self.lora_scale = None
        if lora is not None and lora.adapts(path):
            self.lora_scale = lora.scale
            self.lora_a = nnx.Param(jnp.zeros((inputs, lora.rank)))
            self.lora_b = nnx.Param(jnp.zeros((lora.rank, outputs)))

    def __call__(self, x: Float[Array, "*batch inputs"], dtype: Any = None) -> Float[Array, "*batch outputs"]:
        """Return the product, in the type of x or in a wider one."""
        kernel = self.kernel[...].astype(x.dtype)
        y = jnp.matmul(x, kernel, preferred_element_type=dtype)
        if self.lora_scale is None:
            return y

        # The adapter's part.
        a = self.lora_a[...].astype(x.dtype)
        b = self.lora_b[...].astype(x.dtype)
        low_rank = self.lora_scale * jnp.matmul(x, a)
        return y + jnp.matmul(low_rank, b, preferred_element_type=dtype)


class Attention(nnx.Module):
    """Causal attention, in which several heads of queries share a head of keys and values."""

    def __init__(self, config: ModelConfig, lora: LoraConfig | None, rngs: nnx.Rngs) -> None:
        self.head_width = config.head_width
        self.query = _projection(config, "attention/query", lora, rngs)
        self.key = _projection(config, "attention/key", lora, rngs)
        self.value = _projection(config, "attention/value", lora, rngs)
        self.output = _projection(config, "attention/output", lora, rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        rotation: Rotation,
        mask: Bool[Array, "batch 1 length keys"],
        cache: Cache | None,
        offset: Int[Array, ""] | int,
    ) -> tuple[Float[Array, "batch length width"], Cache | None]:
        """Return the output of the layer, and the cache with the new keys and values.

        Args:
          x: the inputs.
          rotation: the angles of the positions of x.
          mask: which positions may look at which.
          cache: the keys and values of earlier positions, or None.
          offset: the position of the first input.
        """
        # Queries and keys know their positions by their angles; values do not.
        queries = rotated(self._in_heads(self.query(x)), rotation)
        keys = rotated(self._in_heads(self.key(x)), rotation)
        values = self._in_heads(self.value(x))

        # New keys and values stand in the cache behind those of earlier positions.
        if cache is not None:
            start = (0, offset, 0, 0)
            keys = jax.lax.dynamic_update_slice(cache.keys, keys, start)
            values = jax.lax.dynamic_update_slice(cache.values, values, start)
            cache = Cache(keys, values)

        # Softmax of the products is in float32.
        mixed = jax.nn.dot_product_attention(queries, keys, values, mask=mask)
        joined_heads = mixed.reshape(*mixed.shape[:-2], -1)
        return self.output(joined_heads), cache

    def _in_heads(self, x: Float[Array, "*batch channels"]) -> Float[Array, "*batch heads head_width"]:
        return x.reshape(*x.shape[:-1], -1, self.head_width)


class FeedForward(nnx.Module):
    """down(activation(gate(x)) * up(x))."""

    def __init__(self, config: ModelConfig, lora: LoraConfig | None, rngs: nnx.Rngs) -> None:
        self.activation = config.activation
        self.gate = _projection(config, "feed_forward/gate", lora, rngs)
        self.up = _projection(config, "feed_forward/up", lora, rngs)
        self.down = _projection(config, "feed_forward/down", lora, rngs)

    def __call__(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch width"]:
        return self.down(self._activate(self.gate(x)) * self.up(x))

    def _activate(self, x: Float[Array, "*batch hidden"]) -> Float[Array, "*batch hidden"]:
        if self.activation == "silu":
            return jax.nn.silu(x)
        return jax.nn.gelu(x, approximate=True)


class Layer(nnx.Module):
    """Attention and a feed-forward layer, each behind a norm and with a residual connection around it."""

    def __init__(self, config: ModelConfig, lora: LoraConfig | None, rngs: nnx.Rngs) -> None:
        self.attention_norm = RMSNorm(config)
        self.attention = Attention(config, lora, rngs)
        self.feed_forward_norm = RMSNorm(config)
        self.feed_forward = FeedForward(config, lora, rngs)

    def __call__(
        self,
        x: Float[Array, "batch length width"],
        rotation: Rotation,
        mask: Bool[Array, "batch 1 length keys"],
        cache: Cache | None,
        offset: Int[Array, ""] | int,
    ) -> tuple[Float[Array, "batch length width"], Cache | None]:
        normed = self.attention_norm(x)
        mixed, cache = self.attention(normed, rotation, mask, cache, offset)
        x = x + mixed

        normed = self.feed_forward_norm(x)
        return x + self.feed_forward(normed), cache


class Embedding(nnx.Module):
    """A vector for each token."""

    def __init__(self, config: ModelConfig, rngs: nnx.Rngs) -> None:
        shape = (config.vocab_size, config.model_width)
        vectors = _INITIAL_STDDEV * jax.random.normal(rngs.params(), shape)
        self.table = nnx.Param(vectors)

    def __call__(self, tokens: Int[Array, "*batch"], dtype: Any) -> Float[Array, "*batch width"]:
        """Return the vectors of tokens; NaN for a token that is out of range."""
        vectors = jnp.take(self.table[...], tokens, axis=0, mode="fill")
        return vectors.astype(dtype)

    def logits(self, x: Float[Array, "*batch width"]) -> Float[Array, "*batch vocabulary"]:
        """Return the products with all vectors, in float32."""
        table = self.table[...].astype(x.dtype)
        return jnp.einsum("...d,vd->...v", x, table, preferred_element_type=jnp.float32)


class Decoder(nnx.Module):
    """The whole model, from tokens to logits."""

    def __init__(self, config: ModelConfig, lora: LoraConfig | None, rngs: nnx.Rngs) -> None:
        self.config = config
        self.embedding = Embedding(config, rngs)

        @nnx.split_rngs(splits=config.num_layers)
        @nnx.vmap(in_axes=0, out_axes=0)
        def stacked_layers(rngs: nnx.Rngs) -> Layer:
            return Layer(config, lora, rngs)

        self.layers = stacked_layers(rngs)
        self.final_norm = RMSNorm(config)
        if not config.tied_head:
            self.head = Projection(config.model_width, config.vocab_size, "head", lora, _INITIAL_STDDEV, rngs)

    def __call__(
        self,
        tokens: Int[Array, "batch length"],
        segment_ids: Int[Array, "batch length"] | None,
        cache: Cache | None,
        offset: Int[Array, ""] | int,
    ) -> tuple[Float[Array, "batch length vocabulary"], Cache | None]:
        """Return float32 logits, and the cache with the new keys and values."""
        config = self.config
        dtype = jnp.dtype(config.compute_dtype)
        x = self.embedding(tokens, dtype)
        if config.scaled_embedding:
            x = x * jnp.asarray(math.sqrt(config.model_width), dtype)

        # What is the same for all layers.
        positions = offset + jnp.arange(tokens.shape[-1])
        rotation = rotation_of(positions, config)
        num_keys = tokens.shape[-1] if cache is None else cache.keys.shape[2]
        mask = attention_mask(positions, num_keys, segment_ids)

        # Go through the layers. Each iteration has the weights, and the part of the cache, of one layer.
        definition, weights = nnx.split(self.layers)

        def through_layer(x: Array, of_layer: Any) -> tuple[Array, Cache | None]:
            weights, cache = of_layer
            layer = nnx.merge(definition, weights)
            return layer(x, rotation, mask, cache, offset)

        if config.remat:
            # A loop keeps the compiler from undoing this, so nothing more is needed to prevent it.
            through_layer = jax.checkpoint(through_layer, prevent_cse=config.unrolled)
        x, cache = jax.lax.scan(through_layer, x, (weights, cache), unroll=config.unrolled)

        x = self.final_norm(x)
        if config.tied_head:
            return self.embedding.logits(x), cache
        return self.head(x, jnp.float32), cache


def _projection(config: ModelConfig, name: str, lora: LoraConfig | None, rngs: nnx.Rngs) -> Projection:
    """Return a weight of a layer, with small initial values where it adds to the residual stream."""
    stddev = _INITIAL_STDDEV
    if name in ("attention/output", "feed_forward/down"):
        stddev = _INITIAL_STDDEV / math.sqrt(2 * config.num_layers)
    inputs, outputs = config.weight_shapes[name]
    return Projection(inputs, outputs, f"layers/{name}", lora, stddev, rngs)


# Positions.


def rotary_frequencies(config: ModelConfig) -> Float[Array, " half"]:
    """Return the angles by which one position turns each pair of channels, in radians."""
    half = config.head_width // 2
    exponents = jnp.arange(half, dtype=jnp.float32) / half
    frequencies = config.rope_theta**-exponents
    if config.rope_scaling is None:
        return frequencies
    return _slowed_down(frequencies, config.rope_scaling)


def _slowed_down(frequencies: Float[Array, " half"], scaling: RotaryScaling) -> Float[Array, " half"]:
    """Return scaled frequencies: see `RotaryScaling`."""
    # How much of a frequency stays: all where it turns often within the original length, nothing where it turns rarely.
    turns = scaling.original_max_length * frequencies / (2 * math.pi)
    low = scaling.low_freq_factor
    high = scaling.high_freq_factor
    kept = jnp.clip((turns - low) / (high - low), 0, 1)
    return kept * frequencies + (1 - kept) * frequencies / scaling.factor


def rotation_of(positions: Int[Array, " length"], config: ModelConfig) -> Rotation:
    """Return the angles of positions."""
    angles = positions[:, None].astype(jnp.float32) * rotary_frequencies(config)
    return Rotation(jnp.cos(angles), jnp.sin(angles))


def rotated(
    x: Float[Array, "batch length heads width"],
    rotation: Rotation,
) -> Float[Array, "batch length heads width"]:
    """Turn pairs of channels by the angles of their positions, in float32.

    Channel i of the first half of a head is paired with channel i of the second half, as in published Llama weights of
    the format of Hugging Face. Products of a query and a key then depend on the distance of their positions alone.
    """
    # All heads are turned alike.
    cos = rotation.cos[:, None, :]
    sin = rotation.sin[:, None, :]

    # The rotation of each pair (first, second).
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned_first = first * cos - second * sin
    turned_second = second * cos + first * sin
    turned = jnp.concatenate([turned_first, turned_second], axis=-1)
    return turned.astype(x.dtype)


def attention_mask(
    positions: Int[Array, " length"],
    num_keys: int,
    segment_ids: Int[Array, "batch length"] | None,
) -> Bool[Array, "batch 1 length keys"]:
    """Return which positions may look at which: at earlier ones of the same segment, and at themselves.

    Rotary positions need not begin again in each segment, as only distances matter.
    """
    is_earlier = jnp.arange(num_keys) <= positions[:, None]
    mask = is_earlier[None, None]
    if segment_ids is not None:
        same_segment = segment_ids[:, :, None] == segment_ids[:, None, :]
        mask = mask & same_segment[:, None]
    return mask


# Functions of parameters.


@functools.lru_cache(maxsize=64)
def _definition(config: ModelConfig, lora: LoraConfig | None) -> tuple[Any, Any]:
    """Return the static part of a model, and the shapes of its parameters."""

    def new_model() -> Decoder:
        return Decoder(config, lora, nnx.Rngs(0))

    definition, state = nnx.split(nnx.eval_shape(new_model))
    shapes = nnx.to_pure_dict(state)
    if lora is not None:
        adapted_paths(shapes, lora)  # refuses an expression that matches nothing
    return definition, shapes


def param_shapes(config: ModelConfig, lora: LoraConfig | None = None) -> dict[str, Any]:
    """Return the shapes of the parameters, as nested dictionaries of `jax.ShapeDtypeStruct`.

    >>> from experiments.language.config import PRESETS
    >>> param_shapes(PRESETS["tiny"])["layers"]["attention"]["query"]["kernel"].shape
    (4, 128, 128)
    """
    _, shapes = _definition(config, lora)
    return jax.tree.map(lambda x: x, shapes)


def init_params(config: ModelConfig, key: PRNGKeyArray) -> dict[str, Any]:
    """Return initial parameters in float32, without adapters.

    Weights and embeddings are normal with a standard deviation of 0.02, or 0.02 / sqrt(2 num_layers) where they add to
    the residual stream, as in GPT-2.

    >>> from experiments.language.config import PRESETS
    >>> params = init_params(PRESETS["tiny"], jax.random.key(0))
    >>> sum(x.size for x in jax.tree.leaves(params)) == PRESETS["tiny"].num_params
    True
    """

    @jax.jit
    def new_params(key: PRNGKeyArray) -> dict[str, Any]:
        model = Decoder(config, None, nnx.Rngs(key))
        return nnx.to_pure_dict(nnx.state(model))

    return new_params(key)


def logits(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "*batch length"],
    segment_ids: Int[Array, "*batch length"] | None = None,
    *,
    lora: LoraConfig | None = None,
) -> Float[Array, "*batch length vocabulary"]:
    """Return the logits of the token that follows each token.

    Args:
      config: the shape of the model.
      params: its parameters; with ``lora``, what `experiments.language.lora.joined` returns.
      tokens: the tokens, of one sequence or of several ones. A token out of range gives NaN.
      segment_ids: which of the texts of a sequence each token belongs to. Attention stays within a text. None: a
        sequence is one text.
      lora: the adapters that the parameters have.

    Returns:
      Float32.

    Raises:
      UserError: a sequence that is too long, or arrays of other shapes.
    """
    values, _ = _forward(config, params, tokens, segment_ids, lora)
    return values


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

    Returns:
      Float32.

    Raises:
      UserError: as `logits`, or a sequence of fewer than two tokens.
    """
    if tokens.shape[-1] < 2:
        raise UserError(f"expected sequences of at least 2 tokens, got {list(tokens.shape)}")

    # The last position predicts nothing. It is computed all the same, as round lengths are faster.
    values = logits(config, params, tokens, segment_ids, lora=lora)
    if segment_ids is None:
        segment_ids = jnp.ones_like(tokens)
    targets, is_target = next_tokens(tokens, segment_ids)

    # -log softmax at the target, without an array of probabilities.
    at_target = jnp.take_along_axis(values, targets[..., None], axis=-1)[..., 0]
    losses = jax.nn.logsumexp(values, axis=-1) - at_target
    return unit_loss(losses, is_target, divisor)


def logits_with_cache(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "batch length"],
    cache: Cache,
    offset: Int[Array, ""] | int,
    *,
    lora: LoraConfig | None = None,
) -> tuple[Float[Array, "batch length vocabulary"], Cache]:
    """Return the logits of tokens that begin at a position, and the cache with their keys and values.

    Args:
      config: the shape of the model.
      params: its parameters.
      tokens: the tokens.
      cache: the keys and values of all positions before ``offset``.
      offset: the position of the first token.
      lora: the adapters that the parameters have.
    """
    definition, _ = _definition(config, lora)
    model = nnx.merge(definition, dict(params))
    values, new_cache = model(tokens, None, cache, offset)
    assert new_cache is not None
    return values, new_cache


def empty_cache(config: ModelConfig, batch_size: int, max_length: int) -> Cache:
    """Return a cache for so many positions, of which none has been seen."""
    shape = (
        config.num_layers,
        batch_size,
        max_length,
        config.num_kv_heads,
        config.head_width,
    )
    zeros = jnp.zeros(shape, config.compute_dtype)
    return Cache(zeros, zeros)


def _forward(
    config: ModelConfig,
    params: Params,
    tokens: Int[Array, "*batch length"],
    segment_ids: Int[Array, "*batch length"] | None,
    lora: LoraConfig | None,
) -> tuple[Float[Array, "*batch length vocabulary"], Cache | None]:
    """Check the shapes, and evaluate the model."""
    shape = jnp.shape(tokens)
    if len(shape) not in (1, 2) or not jnp.issubdtype(tokens.dtype, jnp.integer):
        raise UserError(
            f"expected tokens to be integers [length] or [sequences, length], got {tokens.dtype}{list(shape)}"
        )
    if shape[-1] > config.max_length:
        raise UserError(f"expected sequences of at most max_length = {config.max_length} tokens, got {shape[-1]}")
    if segment_ids is not None and jnp.shape(segment_ids) != shape:
        raise UserError(f"expected segment_ids like the tokens {list(shape)}, got {list(jnp.shape(segment_ids))}")

    # The modules take a batch of sequences.
    by_sequence = (-1, shape[-1])
    if segment_ids is not None:
        segment_ids = segment_ids.reshape(by_sequence)
    definition, _ = _definition(config, lora)
    model = nnx.merge(definition, dict(params))
    values, cache = model(tokens.reshape(by_sequence), segment_ids, None, 0)
    return values.reshape(*shape, config.vocab_size), cache
