"""Load published weights: folders of the Llama and Gemma families in the format of Hugging Face.

    config, params = load_published("Llama-3.2-1B")             # a folder with config.json and *.safetensors
    config, params = load_published("gemma-2b", dtype=jnp.float32)

Every tensor of the files must be known. Published weights are [outputs, inputs], and here they are [inputs, outputs].
The rotary layout is the same: channel i of the first half of a head is turned with channel i of the second half.

Nothing is downloaded.
"""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import msgspec
from jaxtyping import Array
from safetensors.flax import load_file

from experiments.language.config import ModelConfig, RotaryScaling
from experiments.language.lora import Params, nested
from gdpjax.sweeps import UserError

_OUTER = {
    "model.embed_tokens.weight": "embedding/table",
    "model.norm.weight": "final_norm/scale",
    "lm_head.weight": "head/kernel",
}
_OF_A_LAYER = {
    "self_attn.q_proj": "attention/query/kernel",
    "self_attn.k_proj": "attention/key/kernel",
    "self_attn.v_proj": "attention/value/kernel",
    "self_attn.o_proj": "attention/output/kernel",
    "mlp.gate_proj": "feed_forward/gate/kernel",
    "mlp.up_proj": "feed_forward/up/kernel",
    "mlp.down_proj": "feed_forward/down/kernel",
    "input_layernorm": "attention_norm/scale",
    "post_attention_layernorm": "feed_forward_norm/scale",
}
"""The names of tensors: theirs, and ours."""

_IGNORED = "rotary_emb.inv_freq"
"""Old files hold the rotary frequencies too, which follow from the configuration."""


class _Rotary(msgspec.Struct):
    """The entry rope_scaling of config.json, or, in newer files, rope_parameters."""

    type: str = "default"
    rope_type: str | None = None
    rope_theta: float | None = None
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192


class _Document(msgspec.Struct):
    """What is read of config.json. Options that would change what the model computes have one value each."""

    model_type: str
    vocab_size: int
    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    intermediate_size: int
    max_position_embeddings: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool | None = None
    rope_theta: float = 10_000.0
    rope_scaling: _Rotary | None = None
    rope_parameters: _Rotary | None = None
    attention_bias: bool = False
    mlp_bias: bool = False


def load_published(folder: str | Path, dtype: Any = jnp.bfloat16) -> tuple[ModelConfig, Params]:
    """Load a model of the Llama family (Llama 1 to 3.2, TinyLlama) or of the first Gemma family.

    Gemma 2 and 3 have further norms, and other attention, and are refused.

    Args:
      folder: a folder with config.json and weights.
      dtype: the type of the parameters that are returned.

    Returns:
      The shape of the model and its parameters.

    Raises:
      UserError: another kind of model, an option that this model does not have (biases, other rotary scalings), or a
        tensor that is missing or unknown.
    """
    folder = Path(folder)
    try:
        document = msgspec.json.decode((folder / "config.json").read_bytes(), type=_Document)
    except msgspec.MsgspecError as error:
        raise UserError(f"{folder / 'config.json'} describes no model of a known family: {error}") from None
    config = _config_of(document)
    tensors: dict[str, Array] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)

    # A tied head may be stored all the same, as a copy of the embeddings.
    expected = set(_OUTER)
    if config.tied_head:
        expected.remove("lm_head.weight")
        tensors.pop("lm_head.weight", None)
    for layer in range(config.num_layers):
        expected.update(_in_layer(layer, name) for name in _OF_A_LAYER)
    found = {name for name in tensors if not name.endswith(_IGNORED)}
    if found != expected:
        wrong = sorted(found ^ expected)
        raise UserError(f"{folder} lacks tensors of the model or has others: {len(wrong)}, such as {wrong[0]}")

    # Bring the axes into our order, and the tensors of all layers into one array.
    def ours(name: str, place: str) -> Array:
        tensor = tensors.pop(name).astype(dtype)
        return tensor.T if place.endswith("kernel") else tensor

    params = {place: ours(name, place) for name, place in _OUTER.items() if name in expected}
    for name, place in _OF_A_LAYER.items():
        layers = [ours(_in_layer(layer, name), place) for layer in range(config.num_layers)]
        params[f"layers/{place}"] = jnp.stack(layers)
    return config, nested(params)


def _in_layer(layer: int, name: str) -> str:
    """Return the full name of a tensor of a layer."""
    return f"model.layers.{layer}.{name}.weight"


def _config_of(document: _Document) -> ModelConfig:
    """Return the shape of the model that a config.json describes."""
    is_gemma = document.model_type == "gemma"
    if not (is_gemma or document.model_type == "llama") or document.attention_bias or document.mlp_bias:
        raise UserError(f"expected a model of the type llama or gemma without biases, got {document.model_type!r}")
    rotary = document.rope_scaling or document.rope_parameters or _Rotary()
    kind = rotary.rope_type or rotary.type
    scaling = None
    if kind == "llama3":
        scaling = RotaryScaling(
            rotary.factor,
            rotary.low_freq_factor,
            rotary.high_freq_factor,
            rotary.original_max_position_embeddings,
        )
    elif kind != "default":
        raise UserError(f"expected a rotary scaling of the type llama3 in config.json, got {kind!r}")
    tied = is_gemma if document.tie_word_embeddings is None else document.tie_word_embeddings
    return ModelConfig(
        vocab_size=document.vocab_size,
        num_layers=document.num_hidden_layers,
        model_width=document.hidden_size,
        num_heads=document.num_attention_heads,
        num_kv_heads=document.num_key_value_heads or document.num_attention_heads,
        head_width=document.head_dim or document.hidden_size // document.num_attention_heads,
        hidden_width=document.intermediate_size,
        max_length=document.max_position_embeddings,
        tied_head=tied,
        rope_theta=rotary.rope_theta or document.rope_theta,
        rope_scaling=scaling,
        norm_epsilon=document.rms_norm_eps,
        is_gemma=is_gemma,
    )
