"""Padded batches: which rows are real, and a set of rows as indices of a static number.

Every sampler marks the rows of its batch, bool[num_examples], and `padded` makes a `PoissonSample` of them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.checks import WHOLE, Domain, check_scalar
from gdpjax._core.types import Array

_WORD = 32


class PoissonSample(NamedTuple):
    """One batch: which rows, which of them are padding, and how many examples were drawn (private).

    ``count > indices.shape[0]`` means that the batch did not fit. Then every row is padding, so that a step on it adds
    noise to nothing; that is the failure whose probability `overflow_probability` bounds and a ledger must hold.
    """

    indices: Array  # int32[capacity], padding rows 0
    is_padding: Array  # bool[capacity]
    count: Array  # int32


def checked_rows(num_examples: int, num_valid: Array | None) -> Domain:
    """What ``num_valid`` may be; ValueError if it is a number and is not."""
    text = f"a whole number from 0 to num_examples={num_examples}"
    rows = Domain(text, lambda n: (n >= 0) & (n <= num_examples) & (n == n // 1))
    if num_valid is not None:
        check_scalar("num_valid", num_valid, rows)
    return rows


def checked_step(step: Array) -> tuple[Array, Array]:
    """A step of a run as int32 and whether it is a whole number >= 0; ValueError if it is a number and is not."""
    check_scalar("step", step, WHOLE)
    valid = jnp.asarray(WHOLE.contains(step))
    return jnp.where(valid, jnp.asarray(step), 0).astype(jnp.int32), valid


def real_rows(included: Array, num_valid: Array | None, rows: Domain) -> tuple[Array, Array]:
    """The marked rows that are real, those before ``num_valid``, and whether that number is in ``rows``."""
    if num_valid is None:
        return included, jnp.asarray(True)
    return included & (jnp.arange(included.shape[0]) < num_valid), jnp.asarray(rows.contains(num_valid))


def padded(included: Array, capacity: int, valid: Array) -> PoissonSample:
    """The batch of the marked rows, ascending; all of it is padding where they do not fit.

    A count has no NaN: where ``valid`` is false, as of a traced number out of range, it is one that never fits.
    """
    count = jnp.where(valid, included.sum(dtype=jnp.int32), jnp.iinfo(jnp.int32).max)
    # A batch that does not fit is padding throughout: the part that would fit is not the batch that is accounted for.
    is_padding = (jnp.arange(capacity) >= count) | (count > capacity)
    return PoissonSample(jnp.where(is_padding, 0, first_positions(included, capacity)), is_padding, count)


def first_positions(included: Array, size: int) -> Array:
    """int32[size]: where ``included`` is true, ascending; zeros where no more is.

    As ``jnp.nonzero(included, size=size, fill_value=0)``, which on a CPU takes fifteen times as long, more than all the
    rest of a small model's step: it counts and scatters row by row. Here only words of 32 rows are, and the place
    within a word is found by halving.
    """
    num_words = -(-included.shape[0] // _WORD)
    rows = jnp.pad(included, (0, num_words * _WORD - included.shape[0])).reshape(num_words, _WORD)
    words = (rows.astype(jnp.uint32) << jnp.arange(_WORD, dtype=jnp.uint32)).sum(axis=1, dtype=jnp.uint32)
    counts = jax.lax.population_count(words).astype(jnp.int32)
    ends = jnp.cumsum(counts)
    starts = ends - counts
    # The word of a slot is the last that starts at or before it; of those that start together only one is not empty.
    first = jnp.where(counts > 0, starts, size)
    word = jnp.zeros(size, jnp.int32).at[first].set(jnp.arange(num_words, dtype=jnp.int32), mode="drop")
    word = jax.lax.cummax(word)
    slots = jnp.arange(size, dtype=jnp.int32)
    return jnp.where(slots < ends[-1], word * _WORD + _bit_of_rank(words[word], slots - starts[word]), 0)


def _bit_of_rank(words: Array, rank: Array) -> Array:
    """Which bit, from the lowest, is the one with ``rank`` set bits below it."""
    place = jnp.zeros_like(rank)
    for half in (16, 8, 4, 2, 1):
        below = jax.lax.population_count(words & jnp.uint32((1 << half) - 1)).astype(rank.dtype)
        above = rank >= below
        rank = jnp.where(above, rank - below, rank)
        place = jnp.where(above, place + half, place)
        words = jnp.where(above, words >> half, words)
    return place
