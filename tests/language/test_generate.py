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
    """Return the logits after the last token.

    One program serves all lengths, as the padding that follows changes no earlier logits.
    """
    num_sequences, length = tokens.shape
    padded = np.zeros((num_sequences, LENGTH), np.int32)
    padded[:, :length] = tokens
    all_logits = np.asarray(logits(SMALL, params, padded, lora=lora))
    return all_logits[:, length - 1]


def keep_largest(values, top_k):
    """Set all but the largest logits of each row to minus infinity."""
    smallest_kept = np.sort(values, axis=-1)[:, -top_k]
    return np.where(values >= smallest_kept[:, None], values, -np.inf)


def without_cache(params, prompt, num_tokens, key, temperature, top_k, lora=None):
    """Return the tokens that follow the prompt, where all logits are computed anew for each token."""
    tokens = np.asarray(prompt)
    for number in range(num_tokens):
        values = last_logits(params, tokens, lora)
        if temperature == 0:
            new = values.argmax(axis=-1)
        else:
            if top_k is not None:
                values = keep_largest(values, top_k)
            token_key = jax.random.fold_in(key, number)
            new = jax.random.categorical(token_key, values / temperature)
        column = np.asarray(new)[:, None]
        tokens = np.concatenate([tokens, column], axis=1)
    prompt_length = prompt.shape[1]
    return tokens[:, prompt_length:]


@pytest.mark.parametrize(("temperature", "top_k"), [(0.0, None), (1.3, None), (0.7, 3)])
def test_the_cache_changes_no_token(params, temperature, top_k):
    """The generated tokens are those of a loop that computes all logits anew."""
    prompt = tokens_of(2, 4)
    key = jax.random.key(3)
    generated = generate(SMALL, params, prompt, 6, key, temperature=temperature, top_k=top_k)
    expected = without_cache(params, prompt, 6, key, temperature, top_k)
    np.testing.assert_array_equal(generated, expected)


def test_adapters_are_used(params):
    """Adapters take part in generation, and the tokens differ from those of the base model."""
    lora = LoraConfig(rank=2, targets="query|down")
    adapters = larger(init_adapters(params, lora, jax.random.key(1)))
    adapted = joined(adapters, params)
    prompt = tokens_of(2, 4)
    key = jax.random.key(3)

    generated = generate(SMALL, adapted, prompt, 6, key, temperature=0.0, lora=lora)
    expected = without_cache(adapted, prompt, 6, key, 0.0, None, lora)
    np.testing.assert_array_equal(generated, expected)

    of_base = generate(SMALL, params, prompt, 6, key, temperature=0.0)
    assert np.any(generated != of_base)


def test_frequencies_follow_the_logits(params):
    """Tokens are drawn with the probabilities of the softmax at the temperature."""
    num_draws = 4000
    temperature = 2.0
    prompt = np.tile(tokens_of(1, 4), (num_draws, 1))
    generated = generate(SMALL, params, prompt, 1, jax.random.key(7), temperature=temperature)
    drawn = np.asarray(generated)[:, 0]

    weights = np.exp(last_logits(params, prompt[:2])[0] / temperature)
    expected = weights / weights.sum()
    frequencies = np.bincount(drawn, minlength=SMALL.vocab_size) / num_draws

    # No frequency has a larger standard deviation than that of a probability of 1/2.
    largest_stddev = np.sqrt(0.25 / num_draws)
    assert np.max(np.abs(frequencies - expected)) < 5 * largest_stddev


def test_nothing_follows_a_stop_token(params):
    """The tokens up to the stop token stay as they are, and only stop tokens follow."""
    prompt = tokens_of(2, 4)
    key = jax.random.key(3)
    plain = np.asarray(generate(SMALL, params, prompt, 6, key))
    stop_token = int(plain[0, 2])
    stopped = np.asarray(generate(SMALL, params, prompt, 6, key, stop_token=stop_token))

    first = list(plain[0]).index(stop_token)
    np.testing.assert_array_equal(stopped[0, : first + 1], plain[0, : first + 1])
    assert np.all(stopped[0, first:] == stop_token)


def test_what_is_refused(params):
    """Wrong arguments are refused by name, and so is a text that is too long for the model."""
    prompt = tokens_of(1, 4)
    key = jax.random.key(0)
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
