"""Fixed-size batches without replacement, every subset equally likely up to a stated error.

Each row gets a word of 64 random bits and the batch is the batch_size rows with the smallest words. The words are
independent and identically distributed, so *given that the largest word taken differs from the smallest word left*, the
batch is a function of the words that treats all rows alike, and every subset of that size is exactly equally likely.
Otherwise the first batch_size rows with words up to the boundary are taken, which favours them. The words are
floor(2^64 U_i) of independent uniform U_i; two that are neighbours in order are equal only if their U are closer than
2^-64, and a spacing of N uniforms is Beta(1, N), so

    P(tie at the boundary) <= 1 - (1 - 2^-64)^N <= N 2^-64,

a bound, too, on the total variation distance to the uniform subset. The tie does not depend on the data, so a run of T
such batches is, with the same probability 1 - eta for either of two neighbours, the run that is accounted for, and

    delta <= eta + (1 - eta) delta_ideal,  eta = T N 2^-64,

as for the overflow of a padded batch; it is added to delta in the same place. (32 bits would give T N 2^-32: 5% for
60,000 examples and 3,516 steps.) Bits are taken as ideal, as everywhere.

The boundary is found by bisection, bit by bit, first of the high and then of the low words: 64 counts, which cost a
fraction of a sort.
"""

import functools

import jax
import jax.numpy as jnp

from gdpjax._core.arguments import check_count
from gdpjax._core.keys import as_key, bits, refuse_key_of_a_loop
from gdpjax._core.types import Array
from gdpjax.sampling._ranks import order_statistic


def uniform_sample(key: Array, num_examples: int, batch_size: int) -> Array:
    """Draw one batch of exactly ``batch_size`` different rows on the device, inside or outside jit.

    The event of T such batches is ``Event(noise_multiplier, batch_size / num_examples, T, sampling="uniform",
    overflow=uniform_sampling_error(num_examples, T))``, under REPLACE_ONE: the number of examples is public.

    Args:
      key: one PRNG key, used once.
      num_examples: N >= 1, static.
      batch_size: from 1 to num_examples, static.

    Returns:
      int32[batch_size], ascending: any subset with the same probability, up to `uniform_sampling_error`.

    Raises:
      ValueError: values out of range.

    >>> uniform_sample(jax.random.key(0), 1000, 4).shape
    (4,)
    """
    num_examples = check_count("num_examples", num_examples)
    batch_size = check_count("batch_size", batch_size, most=num_examples)
    key = as_key(key)
    # A loop's constant key must be refused here: in the compiled function below every key is an argument.
    refuse_key_of_a_loop(key)
    return _smallest(key, num_examples, batch_size)


def uniform_sampling_error(num_examples: int, num_steps: int) -> float:
    """Return eta = num_steps num_examples 2^-64, at most 1, which `uniform_sample` adds to delta; upper bound.

    >>> uniform_sampling_error(60_000, 3516) < 1.2e-11
    True
    """
    num_examples = check_count("num_examples", num_examples, most=2**53 - 1)
    num_steps = check_count("num_steps", num_steps, most=2**53 - 1)
    # The last factor makes up for the rounding of the product.
    bound = float(num_examples) * float(num_steps) * 2.0**-64 * (1 + 1e-15)
    return min(1.0, bound)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _smallest(key: Array, num_examples: int, batch_size: int) -> Array:
    """Return the rows with the ``batch_size`` smallest words, int32[batch_size], ascending."""
    high_words, low_words = bits(key, (2, num_examples))

    # The boundary in the high words, and in the low words of the rows that tie there.
    everywhere = jnp.ones(num_examples, bool)
    high_boundary, num_below = order_statistic(high_words, everywhere, jnp.int32(batch_size - 1))
    is_tied = high_words == high_boundary
    low_boundary, _ = order_statistic(low_words, is_tied, batch_size - 1 - num_below)

    included = (high_words < high_boundary) | (is_tied & (low_words <= low_boundary))
    (indices,) = jnp.nonzero(included, size=batch_size)
    return indices.astype(jnp.int32)
