"""Low-rank adapters: they begin at the base, merge into it, and are all that is trained."""

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
from tests.language.test_model import SMALL, larger, norms_of, random_params, tokens_of

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
    tokens = tokens_of(2, 7)
    np.testing.assert_array_equal(all_logits(joined(adapters, base), tokens, LORA), all_logits(base, tokens))


def test_shapes_are_those_of_the_model(base, adapters):
    shapes = param_shapes(UNTIED, LORA)
    assert jax.tree.map(jnp.shape, joined(adapters, base)) == jax.tree.map(jnp.shape, shapes)
    assert adapters["layers"]["feed_forward"]["down"]["lora_a"].shape == (3, 24, 3)
    assert adapters["head"]["lora_b"].shape == (3, 61)


def test_merged_weights_compute_the_same(base, adapters):
    tokens = tokens_of(2, 7)
    trained = larger(adapters)
    expected = np.asarray(all_logits(joined(trained, base), tokens, LORA))
    merged = jax.jit(merge, static_argnums=2)(trained, base, LORA)
    np.testing.assert_allclose(all_logits(merged, tokens), expected, atol=2e-4)
    assert np.max(np.abs(expected - all_logits(base, tokens))) > 1e-2


def test_adapters_and_base_come_apart_again(base, adapters):
    again = split_adapters(joined(adapters, base))
    for a, b in zip(again, (adapters, base), strict=True):
        assert jax.tree.structure(a) == jax.tree.structure(b)
        assert all(x is y for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_the_mask_marks_the_adapters(base, adapters):
    mask = trainable_mask(joined(adapters, base))
    marked, others = split_adapters(mask)
    assert all(jax.tree.leaves(marked))
    assert not any(jax.tree.leaves(others))
    assert jax.tree.structure(marked) == jax.tree.structure(adapters)


def test_the_base_is_kept_in_half_precision(base):
    assert {x.dtype for x in jax.tree.leaves(frozen(base))} == {jnp.dtype("bfloat16")}


def test_clipped_gradients_of_adapters_are_those_of_the_definition(base, adapters):
    """The base is an argument that all examples share; its gradient is not asked for."""
    trained = larger(adapters)
    narrow = frozen(base)
    tokens = tokens_of(3, 8)

    def loss(adapters, tokens, base):
        return sequence_loss(UNTIED, joined(adapters, base), tokens, lora=LORA)

    each = jax.jit(jax.vmap(jax.grad(loss), (None, 0, None)))(trained, tokens, narrow)
    norms = norms_of(each)
    bound = float(np.median(norms))
    weights = np.minimum(1, bound / norms)
    found = jax.jit(gdpjax.clipped_grad(loss, bound, shared_argnums=2))(trained, tokens, narrow)
    for a, x in zip(jax.tree.leaves(found), jax.tree.leaves(each), strict=True):
        np.testing.assert_allclose(a, np.tensordot(weights, np.asarray(x), 1), atol=2e-3 * bound)


@pytest.mark.slow
def test_private_training_leaves_the_base_as_it_is(base):
    """With the base among the parameters, and marked as not trainable."""
    lora = LoraConfig(rank=2, targets="query|head")
    adapters = jax.jit(init_adapters, static_argnums=1)(base, lora, jax.random.key(1))
    params = joined(adapters, base)
    plan = gdpjax.make_plan(
        clip=1.0, max_examples=8, expected_batch_size=4, num_steps=2, delta=1e-5, noise_multiplier=1.0
    )
    loss = functools.partial(sequence_loss, UNTIED, lora=lora)
    training = private_training(plan, loss, optax.sgd(0.1), num_arrays=1, trainable=trainable_mask(params))
    state = training.init(params, gdpjax.fresh_key())
    state, _ = training.run_steps(state, training.place(tokens_of(8, 6)), 2)
    new_adapters, new_base = split_adapters(state.params)
    for old, new in zip(jax.tree.leaves(base), jax.tree.leaves(new_base), strict=True):
        np.testing.assert_array_equal(old, new)
    for old, new in zip(jax.tree.leaves(adapters), jax.tree.leaves(new_adapters), strict=True):
        assert np.all(np.asarray(old) != np.asarray(new))  # there is noise on every entry


@pytest.mark.parametrize(
    ("change", "expected"),
    [(dict(rank=0), "rank"), (dict(alpha=0.0), "alpha"), (dict(targets="("), "regular expression")],
)
def test_settings_that_are_refused(change, expected):
    with pytest.raises(UserError, match=expected):
        dataclasses.replace(LORA, **change)


def test_weights_that_are_refused(base, adapters):
    assert "embedding" not in " ".join(weight_paths(base))
    assert adapted_paths(base, LoraConfig(targets="/key$")) == ["layers/attention/key"]
    with pytest.raises(UserError, match="matches none of: head, layers/attention/key"):
        init_adapters(base, LoraConfig(targets="embedding"), jax.random.key(0))
    with pytest.raises(UserError, match="at most 16 for layers/attention/key"):
        init_adapters(base, LoraConfig(rank=20, targets="key"), jax.random.key(0))
    with pytest.raises(UserError, match="no 'head'"):
        merge(adapters, {name: x for name, x in base.items() if name != "head"}, LORA)
