"""Published layouts: a checkpoint that is written here, and the published formulas in plain numpy."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from experiments.language.config import RotaryScaling
from experiments.language.model import logits
from experiments.language.weights import load_published
from gdpjax.sweeps import UserError

VOCABULARY, WIDTH, HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD = 31, 12, 20, 2, 4, 2, 6

COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": HIDDEN,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
}
LLAMA = {**COMMON, "model_type": "llama", "hidden_act": "silu", "tie_word_embeddings": False, "attention_bias": False}
TIED_LLAMA = {**LLAMA, "tie_word_embeddings": True}
GEMMA = {**COMMON, "model_type": "gemma", "hidden_act": "gelu", "hidden_activation": "gelu_pytorch_tanh"}
SCALING = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


def tensors_of(document, seed=0):
    """Random tensors under their published names, in their published shapes [outputs, inputs]."""
    table = (document["vocab_size"], WIDTH)
    shapes = {"model.embed_tokens.weight": table, "model.norm.weight": (WIDTH,)}
    if document["model_type"] == "llama" and not document["tie_word_embeddings"]:
        shapes["lm_head.weight"] = table
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        shapes[prefix + "self_attn.q_proj.weight"] = (HEADS * HEAD, WIDTH)
        shapes[prefix + "self_attn.k_proj.weight"] = (KV_HEADS * HEAD, WIDTH)
        shapes[prefix + "self_attn.v_proj.weight"] = (KV_HEADS * HEAD, WIDTH)
        shapes[prefix + "self_attn.o_proj.weight"] = (WIDTH, HEADS * HEAD)
        shapes[prefix + "mlp.gate_proj.weight"] = (HIDDEN, WIDTH)
        shapes[prefix + "mlp.up_proj.weight"] = (HIDDEN, WIDTH)
        shapes[prefix + "mlp.down_proj.weight"] = (WIDTH, HIDDEN)
        shapes[prefix + "input_layernorm.weight"] = (WIDTH,)
        shapes[prefix + "post_attention_layernorm.weight"] = (WIDTH,)
    rng = np.random.default_rng(seed)
    return {name: (0.5 * rng.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}


def write(folder, document, tensors):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(document))
    save_file(tensors, folder / "model.safetensors")
    return folder


# The published formulas, one sequence and one head at a time, in float64.


def rms_norm(x, weight, adds_one):
    normalized = x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-5)
    return normalized * (1 + weight if adds_one else weight)


def frequencies_of(document):
    frequencies = 1 / document["rope_theta"] ** (np.arange(0, HEAD, 2) / HEAD)
    if "rope_scaling" not in document:
        return frequencies
    scaled = []
    for frequency in frequencies:
        wave_length = 2 * np.pi / frequency
        smooth = (32 / wave_length - 1) / 3
        if wave_length < 32 / 4:
            scaled.append(frequency)
        elif wave_length > 32:
            scaled.append(frequency / 4)
        else:
            scaled.append((1 - smooth) * frequency / 4 + smooth * frequency)
    return np.array(scaled)


def rotate(x, frequencies):
    """x cos + rotate_half(x) sin, as published."""
    angles = np.outer(np.arange(len(x)), np.concatenate([frequencies, frequencies]))
    half = HEAD // 2
    rotated_half = np.concatenate([-x[:, half:], x[:, :half]], axis=1)
    return x * np.cos(angles) + rotated_half * np.sin(angles)


def plain_logits(document, tensors, tokens):
    is_gemma = document["model_type"] == "gemma"
    weights = {name: np.asarray(x, np.float64) for name, x in tensors.items()}
    table = weights["model.embed_tokens.weight"]
    frequencies = frequencies_of(document)
    x = table[tokens] * (np.sqrt(WIDTH) if is_gemma else 1)
    length = len(tokens)

    for layer in range(LAYERS):

        def weight(name, layer=layer):
            return weights[f"model.layers.{layer}.{name}.weight"]

        h = rms_norm(x, weight("input_layernorm"), is_gemma)
        q, k, v = (h @ weight(f"self_attn.{name}_proj").T for name in "qkv")
        outputs = []
        for head in range(HEADS):
            shared = head // (HEADS // KV_HEADS)
            own = slice(head * HEAD, (head + 1) * HEAD)
            of_keys = slice(shared * HEAD, (shared + 1) * HEAD)
            scores = rotate(q[:, own], frequencies) @ rotate(k[:, of_keys], frequencies).T / np.sqrt(HEAD)
            scores[np.triu_indices(length, 1)] = -np.inf
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            outputs.append(scores / scores.sum(axis=1, keepdims=True) @ v[:, of_keys])
        x = x + np.concatenate(outputs, axis=1) @ weight("self_attn.o_proj").T

        h = rms_norm(x, weight("post_attention_layernorm"), is_gemma)
        gate = h @ weight("mlp.gate_proj").T
        if is_gemma:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        else:
            gate = gate / (1 + np.exp(-gate))
        x = x + (gate * (h @ weight("mlp.up_proj").T)) @ weight("mlp.down_proj").T

    x = rms_norm(x, weights["model.norm.weight"], is_gemma)
    return x @ weights.get("lm_head.weight", table).T


CASES = {
    "llama": LLAMA,
    "tied llama": TIED_LLAMA,
    "llama 3.1": {**LLAMA, "rope_scaling": SCALING, "rope_theta": 500.0},
    "gemma": GEMMA,
}


@pytest.mark.parametrize("name", list(CASES))
def test_logits_are_those_of_the_published_formulas(name, tmp_path):
    document = CASES[name]
    tensors = tensors_of(document)
    config, params = load_published(write(tmp_path, document, tensors), dtype=jnp.float32)
    config = dataclasses.replace(config, compute_dtype="float32")
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, 11)
    with jax.default_matmul_precision("highest"):
        found = jax.jit(lambda params, tokens: logits(config, params, tokens))(params, jnp.asarray(tokens))
    np.testing.assert_allclose(found, plain_logits(document, tensors, tokens), atol=2e-4)


def test_several_files(tmp_path):
    tensors = tensors_of(LLAMA)
    _, whole = load_published(write(tmp_path / "whole", LLAMA, tensors))

    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    names = sorted(tensors)
    for number, part in enumerate((names[:7], names[7:])):
        file_name = f"model-0000{number + 1}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, folder / file_name)
    _, parts = load_published(folder)
    assert jax.tree.structure(whole) == jax.tree.structure(parts)
    assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(whole), jax.tree.leaves(parts), strict=True))


def config_of(folder, document):
    config, _ = load_published(write(folder, document, tensors_of(document)))
    return config


def test_shapes_from_config(tmp_path):
    config = config_of(tmp_path, {**LLAMA, "rope_scaling": SCALING})
    assert config.rope_scaling == RotaryScaling(4.0, 1.0, 4.0, 32)

    # Newer files have theta and the scaling in one place, and older ones lack what later models added.
    newer = {name: x for name, x in LLAMA.items() if name != "rope_theta"}
    found = config_of(tmp_path, {**newer, "rope_parameters": {**SCALING, "rope_theta": 77.0}})
    assert found == dataclasses.replace(config, rope_theta=77.0)
    older = {name: x for name, x in LLAMA.items() if name not in ("head_dim", "num_key_value_heads")}
    found = config_of(tmp_path, older)
    assert (found.num_kv_heads, found.head_width, found.rope_scaling) == (HEADS, WIDTH // HEADS, None)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"model_type": "gemma2"}, "of the type llama or gemma"),
        ({"attention_bias": True}, "without biases"),
        ({"vocab_size": None}, "vocab_size"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "type llama3"),
    ],
)
def test_models_that_are_refused(change, expected, tmp_path):
    folder = write(tmp_path, {**LLAMA, **change}, {})
    with pytest.raises(UserError, match=expected):
        load_published(folder)


def test_tensors_that_are_missing_or_unknown_are_refused(tmp_path):
    tensors = tensors_of(LLAMA)
    name = "model.layers.1.mlp.up_proj.weight"
    tensors["extra"] = tensors.pop(name)
    write(tmp_path, LLAMA, tensors)
    with pytest.raises(UserError, match="2, such as extra"):
        load_published(tmp_path)
