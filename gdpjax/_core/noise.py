"""Standard normal noise whose tail is right.

A float32 uniform has 2^23 or 2^24 values, so noise made from it ends near 5.4 standard deviations: every output beyond
is impossible under one data set and possible under its neighbour, which puts a floor under delta at *every* epsilon.
Here each coordinate is the inverse of the normal tail at a probability with 63 random bits, so the largest value is
9.1 standard deviations (P(|Z| > 9.1) = 2^-63) and P(|Z| > z) is right to a relative 2^-19 for every z below that.

Method. A 32-bit word gives a sign and a 31-bit k; t = (k + 1/2) / 2^31 is uniform and |z| is the solution of
P(|Z| > z) = t. With x = 1 - t = erf(z / sqrt 2) and w = -log(1 - x^2) = -log(t (2 - t)), z / x is smooth in w for
w <= 7.75 and in sqrt(w) above; two polynomials (Chebyshev fits to 40-digit values, relative errors 1.3e-7 and 3.5e-7)
evaluate it. Words with k < 2^19 (t < 2^-12) are extended: t = (k 2^32 + k' + 1/2) / 2^63 with a second word k'.
Coordinates lie in rows of 64, and each row draws its second words from a key of its own, made of the row's number. The
words are those of `jax.random.bits` of the two keys that `jax.random.split` makes. On a CPU drawing a second word for
all would double the cost, so in large arrays only rows that hold an extreme word (one in 64) draw theirs: a loop treats
a static number of such rows at a time until none is left, nearly always once. Small arrays draw both words for all. A
model has many of them, and a program that draws each by itself takes seconds to compile; so the rows of all small
arrays are drawn by one loop. On accelerators words cost little and copies much: each entry draws both of its words in
its place, in one fused loop without rows, of which each device takes its part. Keys of other implementations than
threefry draw two words for all. The
result is a function of (key, shape, dtype) alone, under vmap too.

float64 draws two words for every coordinate and inverts in float64: coarse noise under a fine sum would leave the
sum's low bits uncovered. Both are approximations of a real normal variable: finite precision itself leaks through the
low bits of the released value (Mironov, CCS 2012), which no float noise avoids.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import ndtri

from gdpjax._core.keys import bits, is_threefry, refuse_key_of_a_loop, split
from gdpjax._core.threefry import MOST_ENTRIES, WordPair, encrypted, entry_numbers
from gdpjax._core.types import Array, PyTree

SCALE_MARGIN = 1 + 2.0**-21
"""By how much scales of noise are enlarged, for all the roundings from the number that is stated to the noise."""
_ROW = 64
_EXTREME = 1 << 19
_LARGEST_SMALL = 64 * 256
"""Arrays of more entries are drawn by themselves, and second words only where they are needed."""
_ROWS_AT_A_TIME = 16
"""How many rows of small arrays one turn of the loop draws."""
_MANY_SMALL = 16
"""More small arrays than these are drawn in rows on accelerators too: a program by entry grows with each array."""
# z / x as a polynomial in (w - 3.875) / 3.875 for 0 <= w <= 7.75, constant term first.
_CENTRE = (
    2.58818382, 1.26123504, -0.151471175, -0.0218393723, 0.0410099868, -0.0197639353,
    0.0015638574, 0.00447531738, -0.00259132814, -0.000244675825, 0.000481290464,
)  # fmt: skip
# z / x as a polynomial in (sqrt(w) - 4.7) / 2 for 2.7 <= sqrt(w) <= 6.7.
_TAIL = (
    6.43016207, 2.85759652, 0.000507253532, -0.00353288008, 0.00309330133,
    -0.00211724473, -0.000785640484, 0.00110141652, 0.0016799027, -0.00142224796,
)  # fmt: skip


def _polynomial(coefficients: tuple[float, ...], y: Array) -> Array:
    value = jnp.full_like(y, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * y + np.float32(coefficient)
    return value


def _sign_and_k(words: Array) -> tuple[Array, Array]:
    return jnp.where(words >> 31, jnp.float32(-1), jnp.float32(1)), words & jnp.uint32(0x7FFFFFFF)


def _from_one_word(words: Array) -> Array:
    """Normal values from 31-bit tails; right for t >= 2^-12, to be replaced below."""
    sign, k = _sign_and_k(words)
    tail = (k.astype(jnp.float32) + 0.5) * np.float32(2.0**-31)
    x = ((jnp.uint32(0x7FFFFFFF) - k).astype(jnp.float32) + 0.5) * np.float32(2.0**-31)
    w = -jnp.log(tail * (1 + x))
    return sign * x * _polynomial(_CENTRE, (w - 3.875) * np.float32(1 / 3.875))


def _from_two_words(words: Array, more: Array) -> Array:
    """Normal values from 63-bit tails, for t < 2^-12."""
    sign, k = _sign_and_k(words)
    low = (more.astype(jnp.float32) + 0.5) * np.float32(2.0**-32)
    tail = (k.astype(jnp.float32) + low) * np.float32(2.0**-31)
    s = jnp.sqrt(-jnp.log(tail * (2 - tail)))
    return sign * (1 - tail) * _polynomial(_TAIL, (s - 4.7) * np.float32(0.5))


def _refined(words: Array, more: Array, values: Array) -> Array:
    """``values``, with those of extreme words replaced by what a second word makes of them."""
    extreme = (words & jnp.uint32(0x7FFFFFFF)) < _EXTREME
    return jnp.where(extreme, _from_two_words(words, more), values)


def _exclusive_or(words: WordPair) -> Array:
    return words[0] ^ words[1]


def _words_of_rows(keys: WordPair, first_entries: Array) -> Array:
    """Return a row of words of each key, those of the 64 entries from ``first_entries`` on.

    Args:
      keys: two words, uint32[num_rows] or scalars.
      first_entries: uint32[num_rows].

    Returns:
      uint32[num_rows, 64].
    """
    lanes = lax.broadcasted_iota(jnp.uint32, (first_entries.shape[0], _ROW), 1)
    return _exclusive_or(encrypted((keys[0][..., None], keys[1][..., None]), first_entries[:, None] + lanes))


def _second_words(second: WordPair, numbers: Array) -> Array:
    """Return the second words of rows with these numbers, uint32[num_rows, 64], from keys as in `_words_of_rows`."""
    return _words_of_rows(encrypted(second, numbers), jnp.zeros_like(numbers))


def _first_and_second(key_data: Array) -> tuple[WordPair, WordPair]:
    """Return the keys of first and of second words, which are `jax.random.split` of each key of uint32[..., 2]."""
    places = lax.broadcasted_iota(jnp.uint32, (2, *key_data.shape[:-1]), 0)
    high, low = encrypted((key_data[..., 0], key_data[..., 1]), places)
    return (high[0], low[0]), (high[1], low[1])


def _small_normals(key_data: Array, sizes: tuple[int, ...]) -> list[Array]:
    """Return normal values of threefry keys, all drawn by one small program that does not grow with their number.

    The rows of all arrays are drawn in a loop, some at a time. The loop also keeps the compiler from writing the whole
    draw once more for each array that is cut out of the rows.

    Args:
      key_data: uint32[num_keys, 2].
      sizes: how many values are drawn from each key, >= 1.

    Returns:
      For each key float32[size], a function of that key and its size alone.
    """
    # Number the rows of each key, and fill the last turn of the loop with rows that nobody takes.
    rows_of_key = [-(-size // _ROW) for size in sizes]
    num_rows = sum(rows_of_key)
    at_a_time = min(_ROWS_AT_A_TIME, -(-num_rows // 2))
    num_turns = -(-num_rows // at_a_time)
    owners = np.zeros(num_turns * at_a_time, np.int32)
    numbers = np.zeros(num_turns * at_a_time, np.uint32)
    owners[:num_rows] = np.repeat(np.arange(len(sizes)), rows_of_key)
    numbers[:num_rows] = np.concatenate([np.arange(count) for count in rows_of_key])

    def draw(keys: tuple[WordPair, WordPair], rows: tuple[Array, Array]) -> tuple[Any, Array]:
        owners, numbers = rows
        first, second = jax.tree.map(lambda words: words[owners], keys)
        words = _words_of_rows(first, numbers * jnp.uint32(_ROW))
        return keys, _refined(words, _second_words(second, numbers), _from_one_word(words))

    turns = (owners.reshape(num_turns, at_a_time), numbers.reshape(num_turns, at_a_time))
    _, values = lax.scan(draw, _first_and_second(key_data), turns)
    values = values.reshape(-1)

    # Take the values of each key, by their places. Slices would let the compiler spread the draw over the devices of a
    # mesh, where parameters are, and then send noise between them; so each device draws all of it.
    drawn = []
    begin = 0
    for size, count in zip(sizes, rows_of_key, strict=True):
        places = begin + lax.iota(jnp.int32, size)
        taken = values.at[places].get(mode="promise_in_bounds", indices_are_sorted=True, unique_indices=True)
        drawn.append(taken)
        begin += count * _ROW
    return drawn


def _large_normal(key_data: Array, size: int) -> Array:
    """Return float32[size] normal values of a threefry key; only rows that hold an extreme word draw second words.

    Args:
      key_data: uint32[2].
      size: how many values, >= 1 and below 2^32.
    """
    num_rows = -(-size // _ROW)
    first, second = _first_and_second(key_data)
    words = _words_of_rows(first, lax.iota(jnp.uint32, num_rows) * jnp.uint32(_ROW))
    values = _from_one_word(words)
    flagged = jnp.any((words & jnp.uint32(0x7FFFFFFF)) < _EXTREME, axis=1)
    at_a_time = num_rows // 64 + 8 * math.isqrt(num_rows // 64) + 8

    def refine_some(state: tuple[Array, Array]) -> tuple[Array, Array]:
        values, flagged = state
        (rows,) = jnp.nonzero(flagged, size=at_a_time, fill_value=num_rows)
        picked_words = words.at[rows].get(mode="clip")
        picked_values = values.at[rows].get(mode="clip")
        refined = _refined(picked_words, _second_words(second, rows.astype(jnp.uint32)), picked_values)
        return values.at[rows].set(refined, mode="drop"), flagged.at[rows].set(False, mode="drop")

    values, _ = lax.while_loop(lambda state: jnp.any(state[1]), refine_some, (values, flagged))
    return values.reshape(-1)[:size]


def _normal_float64(key: Array, shape: tuple[int, ...]) -> Array:
    first, second = split(key)
    words, more = bits(first, shape), bits(second, shape)
    k = (words & jnp.uint32(0x7FFFFFFF)).astype(jnp.float64)
    tail = (k + (more.astype(jnp.float64) + 0.5) * 2.0**-32) * 2.0**-31
    return jnp.where(words >> 31, 1.0, -1.0) * ndtri(tail / 2)


def _normal_of_other_generators(key: Array, size: int) -> Array:
    """Return float32[size] normal values of a key that is not threefry's, or more than one word can number.

    Second words are drawn for all entries: row by row keys are only cheap where vmap draws them together, and these
    generators are made for long draws.
    """
    first, second = split(key)
    shape = (-(-size // _ROW), _ROW)
    words = bits(first, shape)
    values = _refined(words, bits(second, shape), _from_one_word(words))
    return values.reshape(-1)[:size]


def _normal_by_entry(key_data: Array, shape: tuple[int, ...]) -> Array:
    """Return float32 normal values of a threefry key, each from two words of its own; the values of rows of 64.

    No array but the result is made, and each device of a mesh draws what it holds of it.

    Args:
      key_data: uint32[2].
      shape: of at least one entry and fewer than 2^32.
    """
    first, second = _first_and_second(key_data)
    numbers = entry_numbers(shape)
    words = _exclusive_or(encrypted(first, numbers))
    key_of_row = encrypted(second, numbers // _ROW)
    more = _exclusive_or(encrypted(key_of_row, numbers % _ROW))
    return _refined(words, more, _from_one_word(words))


@functools.partial(jax.jit, static_argnums=(1, 2))
def standard_normal(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """N(0, 1) of the given shape, float32 or float64, a function of (key, shape, dtype) alone."""
    size = math.prod(shape)
    if dtype == jnp.float64:
        return _normal_float64(key, shape)
    if not is_threefry(key) or not 0 < size < MOST_ENTRIES:
        return _normal_of_other_generators(key, size).reshape(shape)
    (values,) = _threefry_normals(jax.random.key_data(key)[None], (shape,))
    return values


def standard_normals(keys: Sequence[Array], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[Any]) -> list[Array]:
    """Return `standard_normal` of each key, shape and dtype; small arrays are drawn together.

    A model has many small arrays (biases, scales), and a program that draws each by itself takes long to compile.
    """
    drawn: dict[int, Array] = {}
    small = []
    for i, (key, shape, dtype) in enumerate(zip(keys, shapes, dtypes, strict=True)):
        refuse_key_of_a_loop(key)
        if dtype == jnp.float32 and is_threefry(key) and 0 < math.prod(shape) <= _LARGEST_SMALL:
            small.append(i)
        else:
            drawn[i] = standard_normal(key, shape, dtype)

    if small:
        key_data = jnp.stack([jax.random.key_data(keys[i]) for i in small])
        values = _jitted_threefry_normals(key_data, tuple(shapes[i] for i in small))
        drawn.update(zip(small, values, strict=True))
    return [drawn[i] for i in range(len(drawn))]


def apart(sums: PyTree) -> PyTree:
    """Return the sums, to which noise is added next, computed before it.

    The compiler for TPUs draws the noise within the matrix product that makes a sum otherwise, and writes and reads
    each constant of the draw as an array: the step of an MLP moved twice the bytes.
    """

    def each(sums: PyTree) -> PyTree:
        return jax.tree.map(lax.optimization_barrier, sums)

    return lax.platform_dependent(sums, tpu=each, default=lambda sums: sums)


def _threefry_normals(key_data: Array, shapes: tuple[tuple[int, ...], ...]) -> list[Array]:
    """Return float32 normal values of threefry keys, uint32[num_keys, 2]: of one array, or of small ones together."""

    def in_rows(key_data: Array) -> list[Array]:
        sizes = tuple(math.prod(shape) for shape in shapes)
        small = max(sizes) <= _LARGEST_SMALL
        values = _small_normals(key_data, sizes) if small else [_large_normal(key_data[0], sizes[0])]
        return [value.reshape(shape) for value, shape in zip(values, shapes, strict=True)]

    def by_entry(key_data: Array) -> list[Array]:
        return [_normal_by_entry(key_data[i], shape) for i, shape in enumerate(shapes)]

    if len(shapes) > _MANY_SMALL:
        return in_rows(key_data)
    return lax.platform_dependent(key_data, cpu=in_rows, default=by_entry)


_jitted_threefry_normals = jax.jit(_threefry_normals, static_argnums=1)
