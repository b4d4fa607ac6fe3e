"""Load published weights: folders of the Llama and Gemma families in the format of Hugging Face.

    config, params = load_llama("Llama-3.2-1B")             # a folder with config.json and *.safetensors
    config, params = load_gemma("gemma-2b", dtype=jnp.float32)

A folder holds ``config.json`` and either ``model.safetensors`` or several files with ``model.safetensors.index.json``.
A single ``.safetensors`` file needs the shape of the model as ``config``. Every tensor of the file must be known and
have its shape. Published weights are [outputs, inputs], and here they are [inputs, outputs]. The rotary layout is the
same: channel i of the first half of a head is turned with channel i of the second half.

Nothing is downloaded.
"""

import dataclasses
import json
import pathlib
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError, safe_open

from experiments.errors import UserError
from experiments.language.config import ModelConfig, RotaryScaling

_ONE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"

_LAYER_WEIGHTS = {
    "self_attn.q_proj": "attention/query",
    "self_attn.k_proj": "attention/key",
    "self_attn.v_proj": "attention/value",
    "self_attn.o_proj": "attention/output",
    "mlp.gate_proj": "feed_forward/gate",
    "mlp.up_proj": "feed_forward/up",
    "mlp.down_proj": "feed_forward/down",
}
"""The names of the weights of a layer: theirs, and ours."""

_LAYER_NORMS = {"input_layernorm": "attention_norm", "post_attention_layernorm": "feed_forward_norm"}

_IGNORED = "rotary_emb.inv_freq"
"""Old files hold the rotary frequencies too, which follow from the configuration."""


def load_llama(
    path: str | pathlib.Path, config: ModelConfig | None = None, dtype: Any = jnp.bfloat16
) -> tuple[ModelConfig, dict[str, Any]]:
    """Load a model of the Llama family (Llama 1 to 3.2, TinyLlama, and others of ``model_type`` "llama").

    Args:
      path: a folder with config.json and weights, or a .safetensors file.
      config: the shape of the model; by default that of config.json. Give it to change ``max_length``,
        ``compute_dtype`` or ``remat``, by `dataclasses.replace` of what `llama_config` returns.
      dtype: the type of the parameters that are returned.

    Returns:
      The shape of the model and its parameters.

    Raises:
      UserError: a missing or damaged file, another kind of model, an option that this model does not have (biases,
        other rotary scalings), or a tensor that is missing, unknown or of another shape.
    """
    return _load(path, config, dtype, llama_config)


def load_gemma(
    path: str | pathlib.Path, config: ModelConfig | None = None, dtype: Any = jnp.bfloat16
) -> tuple[ModelConfig, dict[str, Any]]:
    """Load a model of the first Gemma family (``model_type`` "gemma"); arguments and errors as in `load_llama`.

    Gemma 2 and 3 have further norms, and other attention, and are refused.
    """
    return _load(path, config, dtype, gemma_config)


def load_published(path: str | pathlib.Path, dtype: Any = jnp.bfloat16) -> tuple[ModelConfig, dict[str, Any]]:
    """Load a folder of either family, by the ``model_type`` in its config.json; errors as in `load_llama`."""
    folder = pathlib.Path(path)
    model_type = _read_json(folder / "config.json").get("model_type")
    loaders = {"llama": load_llama, "gemma": load_gemma}
    if model_type not in loaders:
        raise UserError(
            f"expected model_type {' or '.join(loaders)} in {folder / 'config.json'}, got {model_type!r}: other "
            "families have other layers"
        )
    return loaders[model_type](folder, dtype=dtype)


# The shape of a model, from config.json.


def llama_config(folder: str | pathlib.Path) -> ModelConfig:
    """Return the shape of the Llama model in a folder."""
    document = _config_document(pathlib.Path(folder), "llama")
    _refuse_options(document, {"attention_bias": False, "mlp_bias": False, "hidden_act": "silu"})
    num_heads = _entry(document, "num_attention_heads")
    return ModelConfig(
        **_common_entries(document),
        num_kv_heads=document.get("num_key_value_heads") or num_heads,
        head_width=document.get("head_dim") or _entry(document, "hidden_size") // num_heads,
        rope_scaling=_rotary_scaling(document),
        tied_head=document.get("tie_word_embeddings", False),
    )


def gemma_config(folder: str | pathlib.Path) -> ModelConfig:
    """Return the shape of the Gemma model in a folder."""
    document = _config_document(pathlib.Path(folder), "gemma")
    _refuse_options(document, {"attention_bias": False, "tie_word_embeddings": True})

    # Some files say "gelu", though the models were trained with the approximation by a tanh.
    activation = document.get("hidden_activation") or "gelu_pytorch_tanh"
    if activation != "gelu_pytorch_tanh":
        raise UserError(f"expected hidden_activation gelu_pytorch_tanh in config.json, got {activation!r}")
    if _rotary_scaling(document) is not None:
        raise UserError("expected no rotary scaling in the config.json of a Gemma model")
    return ModelConfig(
        **_common_entries(document),
        num_kv_heads=document.get("num_key_value_heads") or _entry(document, "num_attention_heads"),
        head_width=_entry(document, "head_dim"),
        tied_head=True,
        activation="gelu_tanh",
        scaled_embedding=True,
        norm_adds_one=True,
    )


def _common_entries(document: dict[str, Any]) -> dict[str, Any]:
    """Return what both families call by the same names."""
    parameters = document.get("rope_parameters") or {}
    theta = parameters.get("rope_theta") or document.get("rope_theta") or 10_000.0
    return dict(
        vocab_size=_entry(document, "vocab_size"),
        num_layers=_entry(document, "num_hidden_layers"),
        model_width=_entry(document, "hidden_size"),
        num_heads=_entry(document, "num_attention_heads"),
        hidden_width=_entry(document, "intermediate_size"),
        max_length=_entry(document, "max_position_embeddings"),
        rope_theta=float(theta),
        norm_epsilon=float(_entry(document, "rms_norm_eps")),
    )


def _rotary_scaling(document: dict[str, Any]) -> RotaryScaling | None:
    """Return the scaling of rotary frequencies. Newer files have it under another name, beside theta."""
    scaling = document.get("rope_scaling") or document.get("rope_parameters")
    if scaling is None:
        return None
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return None
    if kind != "llama3":
        raise UserError(f"expected a rotary scaling of the type llama3 in config.json, got {kind!r}")
    return RotaryScaling(
        factor=float(_entry(scaling, "factor")),
        low_freq_factor=float(_entry(scaling, "low_freq_factor")),
        high_freq_factor=float(_entry(scaling, "high_freq_factor")),
        original_max_length=_entry(scaling, "original_max_position_embeddings"),
    )


def _config_document(folder: pathlib.Path, model_type: str) -> dict[str, Any]:
    """Read config.json, and refuse another kind of model."""
    document = _read_json(folder / "config.json")
    found = document.get("model_type")
    if found != model_type:
        raise UserError(f"expected model_type {model_type!r} in {folder / 'config.json'}, got {found!r}")
    return document


def _refuse_options(document: dict[str, Any], expected: dict[str, Any]) -> None:
    """Refuse a model with options that would change what it computes."""
    for name, value in expected.items():
        found = document.get(name, value)
        if found != value:
            raise UserError(f"expected {name} = {value!r} in config.json, as this model has no other, got {found!r}")


def _entry(document: dict[str, Any], name: str) -> Any:
    """Return an entry of config.json that must be there."""
    if document.get(name) is None:
        raise UserError(f"expected config.json to have {name!r}, but it has only: {', '.join(sorted(document))}")
    return document[name]


def _read_json(path: pathlib.Path) -> dict[str, Any]:
    """Read a JSON object."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"expected a file {path}: {error.strerror or error}") from None
    except ValueError as error:
        raise UserError(f"expected JSON in {path}: {error}") from None
    if not isinstance(document, dict):
        raise UserError(f"expected a JSON object in {path}, got {type(document).__name__}")
    return document


# The tensors.


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """The place of a file's tensor among the parameters.

    Attributes:
      place: the path among the parameters.
      shape: its shape in the file.
      is_transposed: whether it is the transpose of the parameter.
    """

    place: str
    shape: tuple[int, ...]
    is_transposed: bool


def _load(
    path: str | pathlib.Path, config: ModelConfig | None, dtype: Any, read_config: Callable[[pathlib.Path], ModelConfig]
) -> tuple[ModelConfig, dict[str, Any]]:
    """Load a folder or a file."""
    path = pathlib.Path(path)
    if not path.exists():
        raise UserError(f"expected a folder or a .safetensors file at {path}, but there is nothing")
    if config is None:
        if path.is_file():
            raise UserError(f"expected config= with the single file {path}: a file of tensors does not say all of it")
        config = read_config(path)
    file_of = _files_of_tensors(path)
    _check_names(file_of, config)

    # Read one parameter at a time, the tensors of all layers into one array.
    params: dict[str, Any] = {}
    for name, tensor in _outer_tensors(config).items():
        _put(params, tensor.place, jnp.asarray(_read(file_of, name, tensor), dtype))
    for name, tensor in _layer_tensors(config).items():
        layers = []
        for layer in range(config.num_layers):
            full_name = f"model.layers.{layer}.{name}"
            layers.append(jnp.asarray(_read(file_of, full_name, tensor), dtype))
        _put(params, f"layers/{tensor.place}", jnp.stack(layers))
    return config, params


def _outer_tensors(config: ModelConfig) -> dict[str, _Tensor]:
    """Return the tensors outside of the layers, by their names."""
    table = (config.vocab_size, config.model_width)
    tensors = {
        "model.embed_tokens.weight": _Tensor("embedding/table", table, False),
        "model.norm.weight": _Tensor("final_norm/scale", (config.model_width,), False),
    }
    if not config.tied_head:
        tensors["lm_head.weight"] = _Tensor("head/kernel", table, True)
    return tensors


def _layer_tensors(config: ModelConfig) -> dict[str, _Tensor]:
    """Return the tensors of a layer, by their names in it."""
    tensors = {}
    for name, ours in _LAYER_WEIGHTS.items():
        inputs, outputs = config.weight_shapes[ours]
        tensors[f"{name}.weight"] = _Tensor(f"{ours}/kernel", (outputs, inputs), True)
    for name, ours in _LAYER_NORMS.items():
        tensors[f"{name}.weight"] = _Tensor(f"{ours}/scale", (config.model_width,), False)
    return tensors


def _check_names(file_of: dict[str, pathlib.Path], config: ModelConfig) -> None:
    """Refuse tensors that are missing or unknown."""
    expected = set(_outer_tensors(config))
    for layer in range(config.num_layers):
        expected.update(f"model.layers.{layer}.{name}" for name in _layer_tensors(config))

    missing = sorted(expected - set(file_of))
    if missing:
        raise UserError(f"expected {len(expected)} tensors, but {len(missing)} are missing, such as {missing[0]}")

    # A tied head may be stored all the same, as a copy of the embeddings.
    unknown = []
    for name in sorted(set(file_of) - expected):
        is_copy_of_table = config.tied_head and name == "lm_head.weight"
        if not is_copy_of_table and not name.endswith(_IGNORED):
            unknown.append(name)
    if unknown:
        raise UserError(f"expected {len(expected)} tensors, but there are {len(unknown)} others, such as {unknown[0]}")


def _files_of_tensors(path: pathlib.Path) -> dict[str, pathlib.Path]:
    """Return the file of each tensor."""
    if path.is_file():
        return dict.fromkeys(_names_in(path), path)
    if (path / _ONE_FILE).exists():
        return dict.fromkeys(_names_in(path / _ONE_FILE), path / _ONE_FILE)
    if not (path / _INDEX).exists():
        raise UserError(f"expected {_ONE_FILE} or {_INDEX} in {path}")

    weight_map = _entry(_read_json(path / _INDEX), "weight_map")
    file_of = {}
    for name, file_name in weight_map.items():
        if pathlib.PurePath(file_name).name != file_name:
            raise UserError(f"expected names of files beside {path / _INDEX} in it, got {file_name!r}")
        file_of[name] = path / file_name
    for file in sorted(set(file_of.values())):
        lacking = {name for name, place in file_of.items() if place == file} - set(_names_in(file))
        if lacking:
            raise UserError(f"expected {file} to have {min(lacking)}, as {_INDEX} says")
    return file_of


def _names_in(file: pathlib.Path) -> list[str]:
    """Return the names of the tensors in a file."""
    try:
        with safe_open(file, framework="flax") as tensors:
            return list(tensors.keys())
    except (OSError, SafetensorError) as error:
        raise UserError(f"expected a file of safetensors at {file}: {error}") from None


def _read(file_of: dict[str, pathlib.Path], name: str, tensor: _Tensor) -> np.ndarray:
    """Read one tensor, and bring its axes into our order."""
    with safe_open(file_of[name], framework="flax") as tensors:
        shape = tuple(tensors.get_slice(name).get_shape())
        if shape != tensor.shape:
            raise UserError(f"expected {name} to be {list(tensor.shape)}, got {list(shape)}")
        values = tensors.get_tensor(name)
    if not jnp.issubdtype(values.dtype, jnp.floating):
        raise UserError(f"expected {name} to hold floating-point numbers, got {values.dtype}")
    return values.T if tensor.is_transposed else values


def _put(params: dict[str, Any], place: str, values: Any) -> None:
    """Put an array at a path among the parameters."""
    *parents, name = place.split("/")
    for parent in parents:
        params = params.setdefault(parent, {})
    params[name] = values
