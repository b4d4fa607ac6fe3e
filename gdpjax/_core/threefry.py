"""Random words of threefry keys: the words of `jax.random.bits`, in a program that is compiled and run faster.

Threefry is a block cipher without S-boxes (Salmon, Moraes, Dror and Shaw, SC 2011). With a key of two words it turns
the 64-bit number of an entry, also two words, into two words in 20 rounds; after each fourth round words of the key
are added. JAX takes the exclusive or of the two as the entry's random word, and numbers the entries in row-major order
(``jax_threefry_partitionable``, its default). So a word is a function of the key and of its place alone: an array that
is spread over devices is drawn in parts, and arrays of other lengths begin with the same words.

On processors JAX writes the rounds as a loop, which nothing is fused with. Here they are written out, so that the words
stay in registers until they are used: noise for millions of parameters takes a third of the time. Writing them out
takes Python a little longer, which pays for large arrays only. The words are the same.
"""

import math

import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array

FEWEST_ENTRIES = 2**14
"""Smaller arrays are left to `jax.random.bits`."""
MOST_ENTRIES = 2**32
"""The number of an entry is taken as one word, of which there are so many."""

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
"""By how many bits the words are rotated, in the four rounds between two additions of the key."""
_PARITY = 0x1BD11BDA
_WORD_BITS = 32


WordPair = tuple[Array, Array]
"""Two words, uint32 of one shape: a key, or what it makes of the number of an entry."""


def threefry_words(key_data: Array, shape: tuple[int, ...]) -> Array:
    """Return the random words of a key.

    Args:
      key_data: uint32[2].
      shape: of at most `MOST_ENTRIES` entries.

    Returns:
      uint32 of this shape, equal to ``jax.random.bits`` of the key with partitionable threefry.
    """
    first, second = encrypted((key_data[0], key_data[1]), entry_numbers(shape))
    return lax.bitwise_xor(first, second)


def encrypted(keys: WordPair, numbers: Array) -> WordPair:
    """Return the two words that keys make of numbers of entries.

    The exclusive or of the two is the random word of the entry. As a key, the two are what `jax.random.fold_in` makes
    of the key and the number, and what `jax.random.split` has at that place.

    Args:
      keys: two words, of a shape that broadcasts to that of ``numbers``.
      numbers: uint32[...], the numbers of the entries.

    Returns:
      Two arrays uint32[...].
    """
    shape = numbers.shape
    wide_keys = [jnp.broadcast_to(word, shape) for word in keys]
    return _encrypted(wide_keys, jnp.zeros(shape, jnp.uint32), numbers)


def entry_numbers(shape: tuple[int, ...]) -> Array:
    """Return the number of each entry in row-major order, uint32 of this shape."""
    numbers = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :])
        along_axis = lax.broadcasted_iota(jnp.uint32, shape, axis)
        numbers = lax.add(numbers, lax.mul(along_axis, _word(stride, along_axis)))
    return numbers


def _encrypted(keys: list[Array], first: Array, second: Array) -> WordPair:
    """Return the two words that Threefry-2x32-20 makes of the words ``first`` and ``second``."""
    parity = lax.bitwise_xor(lax.bitwise_xor(keys[0], keys[1]), _word(_PARITY, first))
    schedule = [*keys, parity]
    first = lax.add(first, schedule[0])
    second = lax.add(second, schedule[1])
    for group in range(5):
        for num_bits in _ROTATIONS[group % 2]:
            first = lax.add(first, second)
            second = lax.bitwise_xor(_rotated(second, num_bits), first)

        # The key is added, beginning with its next word, and the number of the group.
        first = lax.add(first, schedule[(group + 1) % 3])
        second = lax.add(second, lax.add(schedule[(group + 2) % 3], _word(group + 1, second)))
    return first, second


def _rotated(words: Array, num_bits: int) -> Array:
    """Return the words with their bits rotated to the left."""
    left = lax.shift_left(words, _word(num_bits, words))
    right = lax.shift_right_logical(words, _word(_WORD_BITS - num_bits, words))
    return lax.bitwise_or(left, right)


def _word(value: int, like: Array) -> Array:
    """Return an array of one word, of the shape of another."""
    return lax.full_like(like, value)
