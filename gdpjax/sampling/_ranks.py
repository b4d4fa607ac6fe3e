"""Ranks of random words, without a sort: the rows with the smallest words.

A row's words [words] are its random bits, 32 a word, the highest first. The word of a rank is found by bisection, bit
by bit: 32 counts, which cost a fraction of a sort. Rows whose words are all equal are in the order of their numbers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array


def lowest_rows(words: Array, among: Array, num: Array) -> Array:
    """Mark the ``num`` rows, of those marked, with the smallest words [words, rows]; all of them if there are fewer."""
    before = jnp.zeros_like(among)
    for word in words:
        at_rank, num_before = order_statistic(word, among, num - 1)
        before |= among & (word < at_rank)
        among &= word == at_rank
        num = num - num_before
    return before | (among & (jnp.cumsum(among) <= num))


def lowest_rows_of(word: Array, more: Callable[[], Array], num: Array) -> Array:
    """`lowest_rows` of all rows, whose words but for the first are only made where two rows tie in that one."""
    at_rank, num_before = order_statistic(word, jnp.ones(word.shape, bool), num - 1)
    before, tied = word < at_rank, word == at_rank
    left = num - num_before
    among = jax.lax.cond(tied.sum(dtype=jnp.int32) == left, lambda: tied, lambda: lowest_rows(more(), tied, left))
    return before | among


def order_statistic(words: Array, among: Array, rank: Array) -> tuple[Array, Array]:
    """The word of this rank (from 0) among the marked ones, and how many of those are smaller.

    It is the largest w with at most ``rank`` words below it, found from the highest bit down.
    """

    def try_bit(number: Array, found: tuple[Array, Array]) -> tuple[Array, Array]:
        word, below = found
        larger = word | (jnp.uint32(1) << (31 - number).astype(jnp.uint32))
        count = jnp.sum(among & (words < larger), dtype=jnp.int32)
        fits = count <= rank
        return jnp.where(fits, larger, word), jnp.where(fits, count, below)

    return jax.lax.fori_loop(0, 32, try_bit, (jnp.uint32(0), jnp.int32(0)))
