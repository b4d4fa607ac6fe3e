"""The language model has the shapes, the causality and the loss of its definition, and gradients that gdpjax clips."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import gdpjax
from experiments.language import model
from experiments.language.config import PRESETS, ModelConfig
from experiments.language.model import param_shapes
from tests.clipping.definition import norms_of, sum_of_clipped

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
    "gemma": dataclasses.replace(SMALL, is_gemma=True),
}
LENGTH = 12
"""The length of nearly all sequences here, so that tests share their programs."""


# These are compiled, as evaluating the model operation by operation takes long.
logits = jax.jit(model.logits, static_argnums=0, static_argnames="lora")
sequence_loss = jax.jit(model.sequence_loss, static_argnums=0, static_argnames=("lora", "divisor"))
gradient = jax.jit(jax.grad(model.sequence_loss, argnums=1), static_argnums=0)


# Tokens and parameters are drawn by NumPy, for which nothing is compiled.


def tokens_of(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, SMALL.vocab_size, shape, dtype=np.int32)


def larger(params, seed=5):
    """Move parameters so far that layers matter: with initial weights the residual stream is nearly the embedding."""
    generator = np.random.default_rng(seed)

    def moved(leaf):
        noise = 0.2 * generator.normal(size=leaf.shape)
        return jnp.asarray(np.asarray(leaf) + noise, jnp.float32)

    return jax.tree.map(moved, params)


def random_params(config):
    """Return parameters of a model whose layers matter, without the program that makes initial ones."""

    def initial(path, shape):
        is_scale = "norm" in jax.tree_util.keystr(path) and not config.is_gemma
        return np.full(shape.shape, float(is_scale))

    initial_params = jax.tree_util.tree_map_with_path(initial, param_shapes(config))
    return larger(initial_params)


@pytest.fixture(scope="module")
def params():
    return random_params(SMALL)


def test_shapes_and_dtypes(params):
    """Logits have an axis for the vocabulary, and are float32 also where the model computes in bfloat16."""
    half = dataclasses.replace(SMALL, compute_dtype="bfloat16")
    for shape in [(9,), (2, 9)]:
        values = jax.eval_shape(functools.partial(logits, half), params, tokens_of(*shape))
        assert values.shape == (*shape, SMALL.vocab_size)
        assert values.dtype == jnp.float32
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, param_shapes(SMALL))


def assert_leaves_close(tree, expected, atol):
    """Check that two trees of arrays are equal, up to rounding."""
    for leaf, expected_leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(leaf, expected_leaf, atol=atol)


def test_a_token_changes_no_earlier_logits(params):
    """Another token changes the logits at its place and after it, and none before it."""
    tokens = tokens_of(LENGTH)
    before = logits(SMALL, params, tokens)
    tokens[7] = (tokens[7] + 1) % SMALL.vocab_size
    after = logits(SMALL, params, tokens)
    np.testing.assert_array_equal(after[:7], before[:7])
    has_changed = np.any(np.asarray(after[7:] != before[7:]), axis=-1)
    assert np.all(has_changed)


def logits_alone(params, tokens):
    """Return the logits of a text by the program for all lengths, as padding after it changes no earlier logits."""
    length = len(tokens)
    padded = np.zeros(LENGTH, np.int32)
    padded[:length] = tokens
    return np.asarray(logits(SMALL, params, padded))[:length]


def test_a_packed_text_has_the_logits_that_it_has_alone(params):
    """Two texts in one sequence do not see each other, if their segments differ."""
    first = tokens_of(5, seed=2)
    second = tokens_of(7, seed=3)
    packed = np.concatenate([first, second])
    segment_ids = np.array([4] * 5 + [9] * 7)
    values = np.asarray(logits(SMALL, params, packed, segment_ids))
    np.testing.assert_allclose(values[:5], logits_alone(params, first), atol=1e-5)
    np.testing.assert_allclose(values[5:], logits_alone(params, second), atol=1e-5)

    # Without segments the second text sees the first.
    without_segments = logits(SMALL, params, packed)
    assert np.max(np.abs(values[5:] - without_segments[5:])) > 1e-3


def cross_entropies(params, tokens):
    """Return -log softmax at each next token, from the logits."""
    values = logits_alone(params, tokens).astype(np.float64)
    log_normalizers = np.log(np.exp(values).sum(axis=-1, keepdims=True))
    log_probs = values - log_normalizers
    places = np.arange(len(tokens) - 1)
    return -log_probs[places, tokens[1:]]


def test_the_loss_is_the_mean_over_tokens_that_count(params):
    """The loss is the mean cross-entropy of the tokens that are predicted, or their sum over a public divisor."""
    tokens = tokens_of(LENGTH)
    losses = cross_entropies(params, tokens)
    mean = sequence_loss(SMALL, params, tokens)
    np.testing.assert_allclose(mean, losses.mean(), rtol=1e-5)

    # Padding is not predicted.
    is_token = np.array([1] * 6 + [0] * 6)
    mean = sequence_loss(SMALL, params, tokens, is_token)
    np.testing.assert_allclose(mean, losses[:5].mean(), rtol=1e-5)

    # The first token of a text is not predicted from the text before it.
    segment_ids = np.array([1] * 4 + [2] * 8)
    losses_of_first = cross_entropies(params, tokens[:4])
    losses_of_second = cross_entropies(params, tokens[4:])
    losses = np.concatenate([losses_of_first, losses_of_second])
    mean = sequence_loss(SMALL, params, tokens, segment_ids)
    np.testing.assert_allclose(mean, losses.mean(), rtol=1e-5)

    # A public divisor in place of the number of targets.
    total = sequence_loss(SMALL, params, tokens, segment_ids, divisor=20.0)
    np.testing.assert_allclose(total, losses.sum() / 20, rtol=1e-5)


def test_the_loss_of_a_unit_is_the_mean_over_all_of_its_tokens(params):
    """The sequences of a unit count by their tokens, and not each as one."""
    tokens = tokens_of(2, LENGTH)
    segment_ids = np.array([[1] * 12, [1] * 3 + [0] * 9])
    losses_of_first = cross_entropies(params, tokens[0])
    losses_of_second = cross_entropies(params, tokens[1])[:2]
    losses = np.concatenate([losses_of_first, losses_of_second])
    mean = sequence_loss(SMALL, params, tokens, segment_ids)
    np.testing.assert_allclose(mean, losses.mean(), rtol=1e-5)


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
    """The clipped sum is sum_i min(1, C / |g_i|) g_i, of the gradients of sequences or of units of several."""
    config = VARIANTS[name]
    params = random_params(config)
    tokens = tokens_of(*shape)
    loss = functools.partial(model.sequence_loss, config)
    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0)))(params, tokens)
    # Some are clipped, and some are not.
    l2_clip_norm = float(np.median(norms_of(gradients)))
    expected = sum_of_clipped(gradients, l2_clip_norm)
    total = jax.jit(gdpjax.clipped_grad(loss, l2_clip_norm))(params, tokens)

    # Clipping leaves a little room for rounding.
    assert_leaves_close(total, expected, atol=2e-3 * l2_clip_norm)


def test_padding_of_a_unit_reaches_no_gradient(params):
    """Sequences of a unit that hold no text, whatever tokens they have, leave its gradient as it is."""
    tokens = tokens_of(2, LENGTH)
    segment_ids = np.array([[1] * LENGTH, [0] * LENGTH])
    padded = gradient(SMALL, params, tokens, segment_ids)

    # Other tokens in the place of padding, and no padding at all.
    tokens_otherwise = np.stack([tokens[0], np.full_like(tokens[1], 7)])
    padded_otherwise = gradient(SMALL, params, tokens_otherwise, segment_ids)
    alone = gradient(SMALL, params, tokens[0], segment_ids[0])
    assert_leaves_close(padded, padded_otherwise, atol=1e-6)
    assert_leaves_close(padded, alone, atol=1e-6)


@pytest.mark.parametrize("shape", [pytest.param((4, 32), marks=pytest.mark.slow), (2, 2, 32)])
def test_every_weight_is_read_off_where_it_meets_data(shape):
    """A weight's gradient comes from its product with activations; that of a scale is formed where it is spread."""
    config = PRESETS["tiny"]
    loss = functools.partial(model.sequence_loss, config)
    explanation = gdpjax.explain(loss, param_shapes(config), jax.ShapeDtypeStruct(shape, jnp.int32))
    for leaf in explanation.leaves:
        expected = ("mul", "broadcast_in_dim") if "norm" in leaf.name else ("dot_general",)
        assert any(name in leaf.why for name in expected), leaf
