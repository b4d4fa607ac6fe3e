"""Padded batches: rows in a random number, as indices and padding in a static number of slots.

Every sampler marks the rows of its batch, bool[num_examples], and `padded` makes a `Batch` of them.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.arguments import MOST_INDEX
from gdpjax._core.checks import Domain, check_scalar, is_traced, number_kind
from gdpjax._core.types import Array
from gdpjax.sampling._batch import Batch

_WORD_BITS = 32


def _most_told_apart(value: Any) -> int:
    """Return the largest index that cannot be another one, rounded to the type of ``value``.

    Steps and rows are counted in int32. From 2^24 on float32 does not tell a whole number from the next one, so that
    two steps could have one batch.
    """
    dtype = getattr(value, "dtype", None)
    if number_kind(dtype) != "f":
        return MOST_INDEX
    num_digits = jnp.finfo(dtype).nmant + 1
    return min(MOST_INDEX, 2**num_digits - 1)


def _whole_numbers(text: str, largest: int, most: int) -> Domain:
    """Return the whole numbers from 0 to ``largest``, of which those above ``most`` may have been rounded."""

    def is_index(number: Array) -> Array:
        return (number >= 0) & (number <= min(largest, most)) & (number == number // 1)

    return Domain(text, is_index, most)


def checked_rows(num_examples: int, num_valid: Array | None) -> Domain:
    """Return the range of ``num_valid``; ValueError if it is a number out of that range."""
    text = f"a whole number from 0 to num_examples={num_examples}"
    rows = _whole_numbers(text, num_examples, _most_told_apart(num_valid))
    if num_valid is not None:
        check_scalar("num_valid", num_valid, rows)
    return rows


def checked_step(step: Array) -> tuple[Array, Array]:
    """Return a step of a run as int32, and whether it is a whole number >= 0; ValueError if it is known not to be."""
    steps = _whole_numbers("a whole number >= 0", MOST_INDEX, _most_told_apart(step))
    check_scalar("step", step, steps)
    # A number of Python can be larger than float32 tells apart, where JAX would round it.
    if not is_traced(step):
        step = jnp.asarray(int(step), jnp.int32)
    is_valid = jnp.asarray(steps.contains(step))
    valid_step = jnp.where(is_valid, jnp.asarray(step), 0)
    return valid_step.astype(jnp.int32), is_valid


def real_rows(included: Array, num_valid: Array | None, rows: Domain) -> tuple[Array, Array]:
    """Return the marked rows that are real, those before ``num_valid``, and whether that number is in ``rows``."""
    if num_valid is None:
        return included, jnp.asarray(True)

    # Compared with a float, the numbers of the rows would be rounded.
    num_real = num_valid
    if not is_traced(num_valid):
        num_real = int(num_valid)
    elif number_kind(num_valid.dtype) == "f":
        num_real = num_valid.astype(jnp.int32)
    num_rows = included.shape[0]
    is_real = jnp.arange(num_rows) < num_real
    return included & is_real, jnp.asarray(rows.contains(num_valid))


def padded(included: Array, capacity: int, valid: Array | bool = True) -> Batch:
    """Return the batch of the marked rows, bool[num_examples], ascending; it is all padding where they do not fit.

    Where ``valid`` is false, as of a traced number out of range, it is one that never fits.
    """
    count = included.sum(dtype=jnp.int32)

    # A batch that does not fit is padding throughout: the part that would fit is not the batch that is accounted for.
    is_padding = (jnp.arange(capacity) >= count) | (count > capacity)
    batch = Batch(first_positions(included, capacity), is_padding, count, included.shape[0])
    return where_valid(batch, valid)


def where_valid(batch: Batch, valid: Array) -> Batch:
    """Return a batch where ``valid`` is true, and one of padding, whose count never fits, where it is not."""
    is_padding = batch.is_padding | ~jnp.asarray(valid)
    return Batch(
        indices=jnp.where(is_padding, 0, batch.indices),
        is_padding=is_padding,
        count=jnp.where(valid, batch.count, jnp.iinfo(jnp.int32).max),
        num_examples=batch.num_examples,
    )


def first_positions(included: Array, size: int) -> Array:
    """Return int32[size]: where ``included``, bool[rows], is true, ascending; zeros where no more is.

    As ``jnp.nonzero(included, size=size, fill_value=0)``, which on a CPU takes fifteen times as long, more than all the
    rest of a small model's step: it counts and scatters row by row. Here only words of 32 rows are, and the place
    within a word is found by halving.
    """
    num_rows = included.shape[0]

    # Pack 32 rows into each word, the first in its lowest bit.
    num_words = -(-num_rows // _WORD_BITS)
    padded_rows = jnp.pad(included, (0, num_words * _WORD_BITS - num_rows))
    bits = padded_rows.reshape(num_words, _WORD_BITS).astype(jnp.uint32)
    words = (bits << jnp.arange(_WORD_BITS, dtype=jnp.uint32)).sum(axis=1, dtype=jnp.uint32)

    # The marked rows of word w fill the slots from starts[w] to ends[w] - 1.
    counts = jax.lax.population_count(words).astype(jnp.int32)
    ends = jnp.cumsum(counts)
    starts = ends - counts

    # The word of a slot is the last that starts at or before it; of those that start together only one is not empty.
    # The others have a slot of their own, the last: a GPU that is to be deterministic does not drop what is outside.
    slot_of_word = jnp.where(counts > 0, jnp.minimum(starts, size), size)
    numbers = jnp.arange(num_words, dtype=jnp.int32)
    word_of_slot = jnp.zeros(size + 1, jnp.int32).at[slot_of_word].set(numbers, mode="promise_in_bounds")
    word_of_slot = jax.lax.cummax(word_of_slot[:size])

    # Find the row within the word.
    slots = jnp.arange(size, dtype=jnp.int32)
    rank_in_word = slots - starts[word_of_slot]
    rows = word_of_slot * _WORD_BITS + _bit_of_rank(words[word_of_slot], rank_in_word)
    return jnp.where(slots < ends[-1], rows, 0)


def _bit_of_rank(words: Array, rank: Array) -> Array:
    """Return for each word which bit, from the lowest, is the one with ``rank`` set bits below it."""
    position = jnp.zeros_like(rank)
    for half in (16, 8, 4, 2, 1):
        # Count the set bits of the lower half, and go on in the half that has the bit.
        lower_half = words & jnp.uint32((1 << half) - 1)
        num_below = jax.lax.population_count(lower_half).astype(rank.dtype)
        is_above = rank >= num_below
        rank = jnp.where(is_above, rank - num_below, rank)
        position = jnp.where(is_above, position + half, position)
        words = jnp.where(is_above, words >> half, words)
    return position
