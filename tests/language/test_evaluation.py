"""A sample is drawn from the softmax at each position, and perplexity counts every target alike."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.language import evaluation
from experiments.language.packing import pack_units
from experiments.language.tokenizer import TokenizedCorpus
from tests.language.test_model import SMALL, logits, random_params, sequence_loss, tokens_of


def test_tokens_are_drawn_from_the_likeliest_at_the_temperature():
    """Each token is that of a loop which computes the logits of what was there before."""
    params = random_params(SMALL)
    key = jax.random.key(3)
    text = np.concatenate([tokens_of(4), np.zeros(4, np.int32)])
    made = evaluation.continued(SMALL, params, jnp.asarray(text), 4, key)
    for number in range(4, 8):
        values = np.asarray(logits(SMALL, params, text))[number - 1]
        values = np.where(values >= np.sort(values)[-evaluation.TOP_K], values, -np.inf)
        text[number] = jax.random.categorical(jax.random.fold_in(key, number), values / evaluation.TEMPERATURE)
    np.testing.assert_array_equal(made, text)


def test_perplexity_counts_every_target_alike():
    """A long document weighs more than a short one, and padding nothing."""
    params = random_params(SMALL)
    documents = (tokens_of(12, seed=2), tokens_of(3, seed=3))
    units = pack_units(TokenizedCorpus("made up", documents, None, "evaluation"), unit="document", length=12)
    losses = [11 * sequence_loss(SMALL, params, documents[0])]
    padded = np.zeros(12, np.int32)
    padded[:3] = documents[1]
    losses.append(2 * sequence_loss(SMALL, params, padded, np.array([1] * 3 + [0] * 9)))
    found = evaluation.perplexity(SMALL, params, units)
    np.testing.assert_allclose(found, np.exp(sum(losses) / 13), rtol=1e-5)
