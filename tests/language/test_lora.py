"""Low-rank adapters begin at the base, merge into it, and are all that is trained."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import gdpjax
from experiments.errors import UserError
from experiments.language.lora import (
    LoraConfig,
    adapted_paths,
    frozen,
    init_adapters,
    joined,
    merge,
    split_adapters,
    trainable_mask,
    weight_paths,
)
from experiments.language.model import logits, param_shapes, sequence_loss
from gdpjax.training import private_training
from tests.language.test_model import (
    SMALL,
    assert_leaves_close,
    larger,
    norms_of,
    random_params,
    sum_of_clipped,
    tokens_of,
)

UNTIED = dataclasses.replace(SMALL, tied_head=False)
LORA = LoraConfig(rank=3, alpha=6.0, targets="query|value|down|head")


@pytest.fixture(scope="module")
def base():
    return random_params(UNTIED)


@pytest.fixture(scope="module")
def adapters(base):
    return jax.jit(init_adapters, static_argnums=1)(base, LORA, jax.random.key(1))


@functools.partial(jax.jit, static_argnames="lora")
def all_logits(params, tokens, lora=None):
    return logits(UNTIED, params, tokens, lora=lora)


def test_an_adapted_model_begins_equal_to_its_base(base, adapters):
    """Initial adapters change no logits."""
    tokens = tokens_of(2, 7)
    adapted_logits = all_logits(joined(adapters, base), tokens, LORA)
    np.testing.assert_array_equal(adapted_logits, all_logits(base, tokens))


def test_shapes_are_those_of_the_model(base, adapters):
    """Adapters and base together have the shapes that the model states."""
    expected_shapes = jax.tree.map(jnp.shape, param_shapes(UNTIED, LORA))
    shapes = jax.tree.map(jnp.shape, joined(adapters, base))
    assert shapes == expected_shapes
    assert adapters["layers"]["feed_forward"]["down"]["lora_a"].shape == (3, 24, 3)
    assert adapters["head"]["lora_b"].shape == (3, 61)


def test_merged_weights_compute_the_same(base, adapters):
    """A model whose weights have the adapters merged into them gives the logits of base and adapters."""
    tokens = tokens_of(2, 7)
    trained = larger(adapters)
    expected = np.asarray(all_logits(joined(trained, base), tokens, LORA))
    merged = jax.jit(merge, static_argnums=2)(trained, base, LORA)
    np.testing.assert_allclose(all_logits(merged, tokens), expected, atol=2e-4)
    of_base = all_logits(base, tokens)
    assert np.max(np.abs(expected - of_base)) > 1e-2


def assert_same_objects(tree, expected):
    """Check that two trees hold the very same arrays."""
    assert jax.tree.structure(tree) == jax.tree.structure(expected)
    for leaf, expected_leaf in zip(jax.tree.leaves(tree), jax.tree.leaves(expected), strict=True):
        assert leaf is expected_leaf


def test_adapters_and_base_come_apart_again(base, adapters):
    """Splitting undoes joining."""
    split_off, remaining = split_adapters(joined(adapters, base))
    assert_same_objects(split_off, adapters)
    assert_same_objects(remaining, base)


def test_the_mask_marks_the_adapters(base, adapters):
    """The mask is True for adapters and False for the base."""
    mask = trainable_mask(joined(adapters, base))
    mask_of_adapters, mask_of_base = split_adapters(mask)
    assert all(jax.tree.leaves(mask_of_adapters))
    assert not any(jax.tree.leaves(mask_of_base))
    assert jax.tree.structure(mask_of_adapters) == jax.tree.structure(adapters)


def test_the_base_is_kept_in_half_precision(base):
    """Every weight of a frozen base is bfloat16."""
    dtypes = {leaf.dtype for leaf in jax.tree.leaves(frozen(base))}
    assert dtypes == {jnp.dtype("bfloat16")}


def test_clipped_gradients_of_adapters_are_those_of_the_definition(base, adapters):
    """The base is an argument that all examples share; its gradient is not asked for."""
    trained = larger(adapters)
    narrow = frozen(base)
    tokens = tokens_of(3, 8)

    def loss(adapters, tokens, base):
        return sequence_loss(UNTIED, joined(adapters, base), tokens, lora=LORA)

    # The sum by the definition, with a clip norm that half of the gradients exceed.
    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0, None)))(trained, tokens, narrow)
    norms = norms_of(gradients)
    l2_clip_norm = float(np.median(norms))
    expected = sum_of_clipped(gradients, norms, l2_clip_norm)

    clipped_sum = jax.jit(gdpjax.clipped_grad(loss, l2_clip_norm, shared_argnums=2))
    total = clipped_sum(trained, tokens, narrow)
    assert_leaves_close(total, expected, atol=2e-3 * l2_clip_norm)


@pytest.mark.slow
def test_private_training_leaves_the_base_as_it_is(base):
    """A base that is among the parameters and not trainable stays as it is, to the bit."""
    lora = LoraConfig(rank=2, targets="query|head")
    adapters = jax.jit(init_adapters, static_argnums=1)(base, lora, jax.random.key(1))
    params = joined(adapters, base)
    plan = gdpjax.make_plan(
        clip=1.0,
        max_examples=8,
        expected_batch_size=4,
        num_steps=2,
        delta=1e-5,
        noise_multiplier=1.0,
    )
    loss = functools.partial(sequence_loss, UNTIED, lora=lora)
    training = private_training(plan, loss, optax.sgd(0.1), num_arrays=1, trainable=trainable_mask(params))
    state = training.init(params, gdpjax.fresh_key())
    state, _ = training.run_steps(state, training.place(tokens_of(8, 6)), 2)
    new_adapters, new_base = split_adapters(state.params)
    for old, new in zip(jax.tree.leaves(base), jax.tree.leaves(new_base), strict=True):
        np.testing.assert_array_equal(old, new)

    # Every entry of an adapter got noise.
    for old, new in zip(jax.tree.leaves(adapters), jax.tree.leaves(new_adapters), strict=True):
        assert np.all(np.asarray(old) != np.asarray(new))


@pytest.mark.parametrize(
    ("change", "expected"),
    [(dict(rank=0), "rank"), (dict(alpha=0.0), "alpha"), (dict(targets="("), "regular expression")],
)
def test_settings_that_are_refused(change, expected):
    """A wrong rank, alpha or pattern is refused by name."""
    with pytest.raises(UserError, match=expected):
        dataclasses.replace(LORA, **change)


def test_weights_that_are_refused(base, adapters):
    """Targets that match no weight, ranks above a weight's, and bases without a weight are refused."""
    assert "embedding" not in " ".join(weight_paths(base))
    assert adapted_paths(base, LoraConfig(targets="/key$")) == ["layers/attention/key"]
    with pytest.raises(UserError, match="matches none of: head, layers/attention/key"):
        init_adapters(base, LoraConfig(targets="embedding"), jax.random.key(0))
    with pytest.raises(UserError, match="at most 16 for layers/attention/key"):
        init_adapters(base, LoraConfig(rank=20, targets="key"), jax.random.key(0))

    without_head = dict(base)
    del without_head["head"]
    with pytest.raises(UserError, match="no 'head'"):
        merge(adapters, without_head, LORA)
