"""The model: shapes, causality, segments, the loss, and what gdpjax makes of its gradients."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from experiments.errors import UserError
from experiments.language import model
from experiments.language.config import PRESETS, ModelConfig, RotaryScaling
from experiments.language.lora import LoraConfig
from experiments.language.model import init_params, param_shapes, rotary_frequencies

SMALL = ModelConfig(
    vocab_size=61,
    num_layers=3,
    model_width=16,
    num_heads=4,
    num_kv_heads=2,
    head_width=8,
    hidden_width=24,
    max_length=32,
    compute_dtype="float32",
)
VARIANTS = {
    "tied": SMALL,
    "untied": dataclasses.replace(SMALL, tied_head=False),
    "no remat": dataclasses.replace(SMALL, remat=False),
    "unrolled": dataclasses.replace(SMALL, unrolled=True),
    "gemma": dataclasses.replace(SMALL, activation="gelu_tanh", scaled_embedding=True, norm_adds_one=True),
}
LENGTH = 12
"""Of nearly all sequences here, so that tests share their programs."""


# Compiled, as evaluating the model operation by operation takes long.
logits = jax.jit(model.logits, static_argnums=0, static_argnames="lora")
sequence_loss = jax.jit(model.sequence_loss, static_argnums=0, static_argnames=("lora", "divisor"))
gradient = jax.jit(jax.grad(model.sequence_loss, argnums=1), static_argnums=0)


# Tokens and parameters are drawn by NumPy, for which nothing is compiled.


def tokens_of(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SMALL.vocab_size, shape, dtype=np.int32)


def larger(params, seed=5):
    """Parameters whose layers matter: with initial weights the residual stream is nearly the embedding."""
    draw = np.random.default_rng(seed)

    def moved(leaf):
        return jnp.asarray(np.asarray(leaf) + 0.2 * draw.normal(size=leaf.shape), jnp.float32)

    return jax.tree.map(moved, params)


def random_params(config):
    """Parameters of a model whose layers matter, without the program that makes initial ones."""

    def initial(path, shape):
        is_scale = "norm" in jax.tree_util.keystr(path) and not config.norm_adds_one
        return np.full(shape.shape, float(is_scale))

    return larger(jax.tree_util.tree_map_with_path(initial, param_shapes(config)))


def norms_of(gradients):
    """The norms of examples' gradients."""
    squares = []
    for x in jax.tree.leaves(gradients):
        squares.append(np.sum(np.square(np.asarray(x, np.float64)).reshape(len(x), -1), axis=1))
    return np.sqrt(sum(squares))


@pytest.fixture(scope="module")
def params():
    return random_params(SMALL)


def test_shapes_and_dtypes(params):
    half = dataclasses.replace(SMALL, compute_dtype="bfloat16")
    for shape in [(9,), (2, 9)]:
        values = jax.eval_shape(functools.partial(logits, half), params, tokens_of(*shape))
        assert values.shape == (*shape, SMALL.vocab_size)
        assert values.dtype == jnp.float32
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, param_shapes(SMALL))


def test_sizes_of_presets():
    for config in PRESETS.values():
        shapes = param_shapes(config)
        assert sum(x.size for x in jax.tree.leaves(shapes)) == config.num_params


def test_initial_loss_is_that_of_guessing():
    params = init_params(SMALL, jax.random.key(0))
    assert abs(sequence_loss(SMALL, params, tokens_of(LENGTH)) - np.log(SMALL.vocab_size)) < 0.1


@pytest.mark.parametrize("name", ["no remat", "unrolled"])
def test_how_it_is_compiled_changes_no_result(name, params):
    sequence = tokens_of(LENGTH), np.ones(LENGTH, int)
    expected = gradient(SMALL, params, *sequence)
    found = gradient(VARIANTS[name], params, *sequence)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_a_token_changes_no_earlier_logits(params):
    tokens = tokens_of(LENGTH)
    before = logits(SMALL, params, tokens)
    tokens[7] = (tokens[7] + 1) % SMALL.vocab_size
    after = logits(SMALL, params, tokens)
    np.testing.assert_array_equal(after[:7], before[:7])
    assert np.all(np.any(np.asarray(after[7:] != before[7:]), axis=-1))


def logits_alone(params, tokens):
    """The logits of a text by the program for all lengths: what follows changes no earlier logits."""
    padded = np.zeros(LENGTH, np.int32)
    padded[: len(tokens)] = tokens
    return np.asarray(logits(SMALL, params, padded))[: len(tokens)]


def test_a_packed_text_has_the_logits_that_it_has_alone(params):
    first, second = tokens_of(5, seed=2), tokens_of(7, seed=3)
    packed = np.concatenate([first, second])
    segment_ids = np.array([4] * 5 + [9] * 7)
    values = np.asarray(logits(SMALL, params, packed, segment_ids))
    np.testing.assert_allclose(values[:5], logits_alone(params, first), atol=1e-5)
    np.testing.assert_allclose(values[5:], logits_alone(params, second), atol=1e-5)

    # Without segments the second text sees the first.
    assert np.max(np.abs(values[5:] - logits(SMALL, params, packed)[5:])) > 1e-3


def cross_entropies(params, tokens):
    """-log softmax at each next token, from the logits."""
    values = logits_alone(params, tokens).astype(np.float64)
    log_probs = values - np.log(np.exp(values).sum(axis=-1, keepdims=True))
    return -log_probs[np.arange(len(tokens) - 1), tokens[1:]]


def test_the_loss_is_the_mean_over_tokens_that_count(params):
    tokens = tokens_of(LENGTH)
    each = cross_entropies(params, tokens)
    np.testing.assert_allclose(sequence_loss(SMALL, params, tokens), each.mean(), rtol=1e-5)

    # Padding is not predicted.
    padded = np.array([1] * 6 + [0] * 6)
    np.testing.assert_allclose(sequence_loss(SMALL, params, tokens, padded), each[:5].mean(), rtol=1e-5)

    # The first token of a text is not predicted from the text before it.
    segment_ids = np.array([1] * 4 + [2] * 8)
    expected = np.concatenate([cross_entropies(params, tokens[:4]), cross_entropies(params, tokens[4:])])
    np.testing.assert_allclose(sequence_loss(SMALL, params, tokens, segment_ids), expected.mean(), rtol=1e-5)

    # A public divisor in place of the number of targets.
    total = sequence_loss(SMALL, params, tokens, segment_ids, divisor=20.0)
    np.testing.assert_allclose(total, expected.sum() / 20, rtol=1e-5)


def test_the_loss_of_a_unit_is_the_mean_over_all_of_its_tokens(params):
    tokens = tokens_of(2, LENGTH)
    segment_ids = np.array([[1] * 12, [1] * 3 + [0] * 9])
    each = np.concatenate([cross_entropies(params, tokens[0]), cross_entropies(params, tokens[1])[:2]])
    np.testing.assert_allclose(sequence_loss(SMALL, params, tokens, segment_ids), each.mean(), rtol=1e-5)


def test_a_unit_without_tokens_adds_nothing(params):
    tokens, nothing = tokens_of(LENGTH), np.zeros(LENGTH, int)
    assert sequence_loss(SMALL, params, tokens, nothing) == 0
    for leaf in jax.tree.leaves(gradient(SMALL, params, tokens, nothing)):
        np.testing.assert_array_equal(leaf, 0)


def test_a_token_out_of_range_gives_nan_and_not_another_token(params):
    tokens = tokens_of(LENGTH)
    tokens[3] = SMALL.vocab_size
    assert np.isnan(logits(SMALL, params, tokens)).any()


def test_half_precision_is_near(params):
    half = dataclasses.replace(SMALL, compute_dtype="bfloat16")
    tokens = tokens_of(LENGTH)
    difference = sequence_loss(half, params, tokens) - sequence_loss(SMALL, params, tokens)
    assert 0 < abs(difference) < 0.05


def test_scaled_rotary_frequencies():
    scaling = RotaryScaling(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_length=8192)
    plain = dataclasses.replace(SMALL, head_width=64, rope_theta=500_000.0)
    frequencies = np.asarray(rotary_frequencies(plain), np.float64)
    scaled = np.asarray(rotary_frequencies(dataclasses.replace(plain, rope_scaling=scaling)))

    # The published definition, in wave lengths.
    expected = []
    for frequency in frequencies:
        wave_length = 2 * np.pi / frequency
        if wave_length < 8192 / 4:
            expected.append(frequency)
        elif wave_length > 8192:
            expected.append(frequency / 8)
        else:
            smooth = (8192 / wave_length - 1) / 3
            expected.append((1 - smooth) * frequency / 8 + smooth * frequency)
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (dict(num_layers=0), "num_layers to be a whole number"),
        (dict(vocab_size=True), "vocab_size"),
        (dict(num_kv_heads=3), "multiple of num_kv_heads"),
        (dict(head_width=7), "even head_width"),
        (dict(norm_epsilon=0.0), "norm_epsilon"),
        (dict(rope_theta=float("inf")), "rope_theta"),
        (dict(activation="relu"), "activation"),
        (dict(compute_dtype="float16"), "compute_dtype"),
    ],
)
def test_shapes_that_are_refused(change, expected):
    with pytest.raises(UserError, match=expected):
        dataclasses.replace(SMALL, **change)


def test_arrays_that_are_refused(params):
    with pytest.raises(UserError, match="at most max_length = 32"):
        logits(SMALL, params, tokens_of(33))
    with pytest.raises(UserError, match="integers"):
        logits(SMALL, params, jnp.zeros(4))
    with pytest.raises(UserError, match="segment_ids like the tokens"):
        logits(SMALL, params, tokens_of(4), tokens_of(3))
    with pytest.raises(UserError, match="at least 2 tokens"):
        sequence_loss(SMALL, params, tokens_of(1))
    with pytest.raises(UserError, match="matches none of"):
        logits(SMALL, params, tokens_of(4), lora=LoraConfig(targets="nothing"))


# Private gradients.


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        pytest.param("tied", (2, 2, 6), marks=pytest.mark.slow, id="tied"),
        pytest.param("untied", (3, 9), id="untied"),
        pytest.param("gemma", (2, 2, 6), id="gemma, which is tied"),
    ],
)
def test_clipped_gradients_are_those_of_the_definition(name, shape):
    config = VARIANTS[name]
    params = random_params(config)
    tokens = tokens_of(*shape)
    loss = functools.partial(model.sequence_loss, config)
    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, tokens)
    norms = norms_of(each)
    bound = float(np.median(norms))  # some are clipped, and some are not
    weights = np.minimum(1, bound / norms)
    found = jax.jit(gdpjax.clipped_grad(loss, bound))(params, tokens)
    for a, x in zip(jax.tree.leaves(found), jax.tree.leaves(each), strict=True):
        # Clipping leaves a little room for rounding.
        np.testing.assert_allclose(a, np.tensordot(weights, np.asarray(x), 1), atol=2e-3 * bound)


def test_padding_of_a_unit_reaches_no_gradient(params):
    """Sequences of a unit that hold no text, whatever tokens they have, leave its gradient as it is."""
    tokens = tokens_of(2, LENGTH)
    mask = np.array([[1] * LENGTH, [0] * LENGTH])
    first = gradient(SMALL, params, tokens, mask)
    other_tokens = np.stack([tokens[0], np.full_like(tokens[1], 7)])
    second = gradient(SMALL, params, other_tokens, mask)
    alone = gradient(SMALL, params, tokens[0], mask[0])
    for a, b, c in zip(*map(jax.tree.leaves, (first, second, alone)), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
        np.testing.assert_allclose(a, c, atol=1e-6)


def test_large_weights_of_few_positions_are_not_formed():
    """With 64 positions every large weight of the 7B model stays in factors, through scan and checkpoint."""
    config = PRESETS["7B"]
    loss = functools.partial(model.sequence_loss, config)
    explanation = gdpjax.explain(loss, param_shapes(config), jax.ShapeDtypeStruct((4, 64), jnp.int32))
    formed = {leaf.name for leaf in explanation.leaves if leaf.method == "formed"}
    assert all("norm" in name for name in formed)
    methods = {leaf.name: leaf.method for leaf in explanation.leaves}
    assert methods["['embedding']['table']"] == "table rows"


@pytest.mark.parametrize("shape", [pytest.param((4, 32), marks=pytest.mark.slow), (2, 2, 32)])
def test_every_weight_is_read_off_where_it_meets_data(shape):
    config = PRESETS["tiny"]
    loss = functools.partial(model.sequence_loss, config)
    explanation = gdpjax.explain(loss, param_shapes(config), jax.ShapeDtypeStruct(shape, jnp.int32))
    for leaf in explanation.leaves:
        expected = "mul" if "norm" in leaf.name else "dot_general"
        assert expected in leaf.why, leaf
