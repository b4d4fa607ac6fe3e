"""Ranks of random words, without a sort: the rows with the smallest words.

A row's words [words] are its random bits, 32 a word, the highest first. The word of a rank is found by bisection, bit
by bit: 32 counts, which cost a fraction of a sort. Rows whose words are all equal are in the order of their numbers.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array


def lowest_rows(words: Array, among: Array, num: Array) -> Array:
    """Mark the ``num`` rows, of those marked, with the smallest words; all of them if there are fewer.

    Args:
        words: uint32[words, rows], the highest word of each row first.
        among: bool[rows].
        num: int32[].

    Returns:
        bool[rows].
    """
    is_lower = jnp.zeros_like(among)
    for word in words:
        # Keep the rows below the boundary, and go on with the next word of those that tie at it.
        boundary, num_lower = order_statistic(word, among, num - 1)
        is_lower |= among & (word < boundary)
        among &= word == boundary
        num = num - num_lower

    # Rows whose words are all equal are in the order of their numbers.
    is_first_of_equals = among & (jnp.cumsum(among) <= num)
    return is_lower | is_first_of_equals


def lowest_rows_of(word: Array, more: Callable[[], Array], num: Array) -> Array:
    """Mark the ``num`` rows with the smallest words, as `lowest_rows` of all rows.

    Args:
        word: uint32[rows], the highest word of each row.
        more: draws the other words, uint32[words, rows]; only called where two rows tie in the first one.
        num: int32[].

    Returns:
        bool[rows].
    """
    everywhere = jnp.ones(word.shape, bool)
    boundary, num_lower = order_statistic(word, everywhere, num - 1)
    is_lower = word < boundary
    is_tied = word == boundary
    num_left = num - num_lower

    def take_all() -> Array:
        return is_tied

    def compare_other_words() -> Array:
        return lowest_rows(more(), is_tied, num_left)

    all_fit = is_tied.sum(dtype=jnp.int32) == num_left
    return is_lower | jax.lax.cond(all_fit, take_all, compare_other_words)


def order_statistic(words: Array, among: Array, rank: Array) -> tuple[Array, Array]:
    """Return the word of this rank (from 0) among the marked ones, and how many of those are smaller.

    It is the largest w with at most ``rank`` words below it, found from the highest bit down.

    Args:
        words: uint32[rows].
        among: bool[rows].
        rank: int32[].

    Returns:
        uint32[] and int32[].
    """

    def try_bit(number: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        word, num_below = state
        bit = jnp.uint32(1) << (31 - number).astype(jnp.uint32)
        larger_word = word | bit
        num_below_larger = jnp.sum(among & (words < larger_word), dtype=jnp.int32)

        # Keep the bit if the word is not too large with it.
        fits = num_below_larger <= rank
        word = jnp.where(fits, larger_word, word)
        num_below = jnp.where(fits, num_below_larger, num_below)
        return word, num_below

    return jax.lax.fori_loop(0, 32, try_bit, (jnp.uint32(0), jnp.int32(0)))
