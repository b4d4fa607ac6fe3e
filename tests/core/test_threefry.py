"""Random words of our own threefry are those of jax.random.bits, wherever and however they are drawn."""

import jax
import numpy as np
import pytest

from gdpjax._core import keys, threefry

KEY = jax.random.key(5)


@pytest.mark.parametrize("shape", [(0,), (), (1,), (7,), (3, 5, 7), (130, 127), (threefry.FEWEST_ENTRIES + 1,)])
def test_the_words_are_those_of_jax(shape):
    """Our own words and those of `keys.bits` are JAX's, for arrays of any size."""

    @jax.jit
    def draw(key):
        own = threefry.threefry_words(jax.random.key_data(key), shape)
        return own, keys.bits(key, shape), jax.random.bits(key, shape)

    own, bits, expected = draw(KEY)
    np.testing.assert_array_equal(own, expected)
    np.testing.assert_array_equal(bits, expected)


def test_known_answers():
    """The words are those of the reference: Random123's kat_vectors for Threefry-2x32 with 20 rounds."""
    answers = [
        ((0x00000000, 0x00000000), (0x00000000, 0x00000000), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ]
    encrypted = jax.jit(lambda key, counter: threefry._encrypted(list(key), *counter))
    for key, counter, expected in answers:
        found = encrypted(np.uint32(key), np.uint32(counter))
        assert [int(word) for word in found] == list(expected)


def test_longer_arrays_begin_with_the_same_words():
    """On both sides of the size from which the words are our own, and whatever JAX's layout is."""

    @jax.jit
    def draw(key):
        return keys.bits(key, (threefry.FEWEST_ENTRIES - 1,)), keys.bits(key, (threefry.FEWEST_ENTRIES + 5,))

    short, long = draw(KEY)
    np.testing.assert_array_equal(long[: threefry.FEWEST_ENTRIES - 1], short)
