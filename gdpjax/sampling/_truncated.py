"""Truncated Poisson batches: of more drawn examples than fit, a uniformly random part is kept.

Each example is drawn independently with probability p, by the same bits as in `poisson_sample`. Where more than
``capacity`` were drawn, every drawn row gets a word of 128 random bits, from another key, and the rows with the
smallest words are kept. As in `_uniform` every subset of the drawn rows is equally likely unless two words at the
boundary are equal, which has probability at most N 2^-128 a step. The accountant pays for that
(`gdpjax.accounting._truncated`), so that nothing has to be added to the event by hand.

Nothing is announced and no batch is refused: what is accounted for is that one example can push out another.
"""

import dataclasses

import jax
import jax.numpy as jnp

from gdpjax._core.arguments import check_count
from gdpjax._core.checks import UNIT, check_scalar, is_traced
from gdpjax._core.keys import bits, fold_in
from gdpjax._core.types import Array
from gdpjax.sampling._batch import Batch
from gdpjax.sampling._padding import checked_rows, padded, real_rows
from gdpjax.sampling._poisson import dyadic_probability, included_rows
from gdpjax.sampling._ranks import lowest_rows

_NUM_WORDS = 4
_SUBSETS = 0xFFFF_FF54
"""A number that keeps the key of the subsets apart from others: larger than any number of rows or steps."""


def truncated_poisson_sample(
    key: Array, num_examples: int, sampling_prob: Array, capacity: int, *, num_valid: Array | None = None
) -> Batch:
    """Draw one Poisson batch on the device and keep a random ``capacity`` of its examples if it has more.

    The event of T such batches is ``TruncatedPoissonEvent(noise_multiplier, sampling_prob, T, num_examples,
    capacity)``, under ADD_OR_REMOVE_ONE.

    Args:
      key: one PRNG key, used once.
      num_examples: N >= 1, static; the public maximum where the true number is private.
      sampling_prob: number or traced scalar in [0, 1], as in `poisson_sample`: a number is rounded down to its
        `dyadic_probability`, which is to be used in the accounting.
      capacity: static number of slots >= 1.
      num_valid: how many of the rows are real, from 0 to num_examples, a number or a traced one; None: all of them.

    Returns:
      A `Batch` with ascending indices. Its ``count`` is how many examples were drawn, which may be more than
      were kept; it is private. The batch of `poisson_sample` with the same key, where that fits.

    Raises:
      ValueError: values out of range. Traced ones give a batch of padding and the largest ``count``.

    Reference: arXiv:2508.15089.

    >>> draw = jax.jit(lambda key: truncated_poisson_sample(key, 1000, 0.1, 80))
    >>> sample = draw(jax.random.key(0))
    >>> int((~sample.is_padding).sum()), int(sample.count) > 80
    (80, True)
    """
    num_examples = check_count("num_examples", num_examples)
    capacity = check_count("capacity", capacity)
    check_scalar("sampling_prob", sampling_prob, UNIT)
    rows = checked_rows(num_examples, num_valid)
    if not is_traced(sampling_prob):
        sampling_prob = dyadic_probability(sampling_prob)

    # Draw as `poisson_sample` does; nothing is drawn where a traced argument is out of range.
    drawn = included_rows(key, num_examples, sampling_prob)
    drawn, is_valid_count = real_rows(drawn, num_valid, rows)
    is_valid = is_valid_count & UNIT.contains(sampling_prob)
    drawn &= is_valid
    num_drawn = drawn.sum(dtype=jnp.int32)

    # Keys are checked outside of the branches, where a loop's constant key still shows as one.
    subset_key = fold_in(key, _SUBSETS)

    def keep_random_subset() -> Array:
        words = bits(subset_key, (_NUM_WORDS, num_examples))
        return lowest_rows(words, drawn, jnp.int32(capacity))

    def keep_all() -> Array:
        return drawn

    kept = jax.lax.cond(num_drawn > capacity, keep_random_subset, keep_all)
    batch = padded(kept, capacity, True)
    return dataclasses.replace(batch, count=jnp.where(is_valid, num_drawn, jnp.iinfo(jnp.int32).max))
