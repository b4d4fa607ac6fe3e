"""Low-rank adapters begin at the base, merge into it, and are all that is trained."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

import gdpjax
from experiments.language.lora import LoraConfig, flat, frozen, init_adapters, joined, merge
from experiments.language.model import logits, sequence_loss
from gdpjax.sweeps import UserError
from tests.clipping.definition import norms_of, sum_of_clipped
from tests.language.test_model import SMALL, assert_leaves_close, larger, random_params, tokens_of

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


def test_targets_that_match_nothing_are_refused(base):
    adapters = init_adapters(base, LoraConfig(targets="/key$"), jax.random.key(0))
    assert set(flat(adapters)) == {"layers/attention/key/lora_a", "layers/attention/key/lora_b"}
    with pytest.raises(UserError, match="match none of the weights: head, layers/attention/key"):
        init_adapters(base, LoraConfig(targets="embedding"), jax.random.key(0))


def test_merged_weights_compute_the_same(base, adapters):
    """A model whose weights have the adapters merged into them gives the logits of base and adapters."""
    tokens = tokens_of(2, 7)
    trained = larger(adapters)
    expected = np.asarray(all_logits(joined(trained, base), tokens, LORA))
    merged = jax.jit(merge, static_argnums=2)(trained, base, LORA)
    np.testing.assert_allclose(all_logits(merged, tokens), expected, atol=2e-4)
    of_base = all_logits(base, tokens)
    assert np.max(np.abs(expected - of_base)) > 1e-2


def test_clipped_gradients_of_adapters_are_those_of_the_definition(base, adapters):
    """The base is an argument that all examples share; its gradient is not asked for."""
    trained = larger(adapters)
    narrow = frozen(base)
    tokens = tokens_of(3, 8)

    def loss(adapters, tokens, base):
        return sequence_loss(UNTIED, joined(adapters, base), tokens, lora=LORA)

    # The sum by the definition, with a clip norm that half of the gradients exceed.
    gradients = jax.jit(jax.vmap(jax.grad(loss), (None, 0, None)))(trained, tokens, narrow)
    l2_clip_norm = float(np.median(norms_of(gradients)))
    expected = sum_of_clipped(gradients, l2_clip_norm)

    clipped_sum = jax.jit(gdpjax.clipped_grad(loss, l2_clip_norm, shared_argnums=2))
    total = clipped_sum(trained, tokens, narrow)
    assert_leaves_close(total, expected, atol=2e-3 * l2_clip_norm)
