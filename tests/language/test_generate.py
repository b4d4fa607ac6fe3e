"""Sampling with a cache is sampling without one."""

import dataclasses

import jax
import numpy as np
import pytest

from experiments.errors import UserError
from experiments.language.generate import generate
from experiments.language.lora import LoraConfig, init_adapters, joined
from tests.language.test_model import SMALL, larger, logits, random_params, tokens_of

LENGTH = 10


@pytest.fixture(scope="module")
def params():
    return random_params(SMALL)


def last_logits(params, tokens, lora=None):
    """The logits after the last token, by one program for all lengths: what follows changes no earlier logits."""
    padded = np.zeros((len(tokens), LENGTH), np.int32)
    padded[:, : tokens.shape[1]] = tokens
    return np.asarray(logits(SMALL, params, padded, lora=lora))[:, tokens.shape[1] - 1]


def without_cache(params, prompt, num_tokens, key, temperature, top_k, lora=None):
    """The same tokens, from all logits anew for each token."""
    tokens = np.asarray(prompt)
    for number in range(num_tokens):
        values = last_logits(params, tokens, lora)
        if temperature == 0:
            new = values.argmax(axis=-1)
        else:
            if top_k is not None:
                smallest = np.sort(values, axis=-1)[:, -top_k][:, None]
                values = np.where(values >= smallest, values, -np.inf)
            new = jax.random.categorical(jax.random.fold_in(key, number), values / temperature)
        tokens = np.concatenate([tokens, np.asarray(new)[:, None]], axis=1)
    return tokens[:, prompt.shape[1] :]


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, None), (1.3, None), (0.7, 3)])
def test_the_cache_changes_no_token(params, temperature, top_k):
    prompt, key = tokens_of(2, 4), jax.random.key(3)
    found = generate(SMALL, params, prompt, 6, key, temperature=temperature, top_k=top_k)
    np.testing.assert_array_equal(found, without_cache(params, prompt, 6, key, temperature, top_k))


def test_adapters_are_used(params):
    lora = LoraConfig(rank=2, targets="query|down")
    adapted = joined(larger(init_adapters(params, lora, jax.random.key(1))), params)
    prompt, key = tokens_of(2, 4), jax.random.key(3)
    found = generate(SMALL, adapted, prompt, 6, key, temperature=0.0, lora=lora)
    np.testing.assert_array_equal(found, without_cache(adapted, prompt, 6, key, 0.0, None, lora))
    assert np.any(found != generate(SMALL, params, prompt, 6, key, temperature=0.0))


def test_frequencies_follow_the_logits(params):
    prompt = np.tile(tokens_of(1, 4), (4000, 1))
    found = np.asarray(generate(SMALL, params, prompt, 1, jax.random.key(7), temperature=2.0))[:, 0]
    weights = np.exp(last_logits(params, prompt[:2])[0] / 2.0)
    expected = weights / weights.sum()
    frequencies = np.bincount(found, minlength=SMALL.vocab_size) / 4000
    assert np.max(np.abs(frequencies - expected)) < 5 * np.sqrt(0.25 / 4000)


def test_nothing_follows_a_stop_token(params):
    prompt, key = tokens_of(2, 4), jax.random.key(3)
    plain = np.asarray(generate(SMALL, params, prompt, 6, key))
    stop_token = int(plain[0, 2])
    found = np.asarray(generate(SMALL, params, prompt, 6, key, stop_token=stop_token))
    first = list(plain[0]).index(stop_token)
    np.testing.assert_array_equal(found[0, : first + 1], plain[0, : first + 1])
    assert np.all(found[0, first:] == stop_token)


def test_what_is_refused(params):
    prompt, key = tokens_of(1, 4), jax.random.key(0)
    short = dataclasses.replace(SMALL, max_length=8)
    with pytest.raises(UserError, match="at most max_length = 8"):
        generate(short, params, prompt, 5, key)
    with pytest.raises(UserError, match="prompt of integers"):
        generate(SMALL, params, prompt[0], 5, key)
    with pytest.raises(UserError, match="temperature"):
        generate(SMALL, params, prompt, 5, key, temperature=-1.0)
    with pytest.raises(UserError, match="top_k"):
        generate(SMALL, params, prompt, 5, key, top_k=0)
    with pytest.raises(UserError, match="num_tokens"):
        generate(SMALL, params, prompt, 0, key)
