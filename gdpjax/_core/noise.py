"""Standard normal noise whose tail is right.

A float32 uniform has 2^23 or 2^24 values, so noise made from it ends near 5.4 standard deviations: every output beyond
is impossible under one data set and possible under its neighbour, which puts a floor under delta at *every* epsilon.
Here each coordinate is the inverse of the normal tail at a probability with 63 random bits, so the largest value is
9.1 standard deviations (P(|Z| > 9.1) = 2^-63) and P(|Z| > z) is right to a relative 2^-19 for every z below that.

Method. A 32-bit word gives a sign and a 31-bit k; t = (k + 1/2) / 2^31 is uniform and |z| is the solution of
P(|Z| > z) = t. With x = 1 - t = erf(z / sqrt 2) and w = -log(1 - x^2) = -log(t (2 - t)), z / x is smooth in w for
w <= 7.75 and in sqrt(w) above; two polynomials (Chebyshev fits to 40-digit values, relative errors 1.3e-7 and 3.5e-7)
evaluate it. Words with k < 2^19 (t < 2^-12) are extended: t = (k 2^32 + k' + 1/2) / 2^63 with a second word k'.
Drawing a second word for all would double the cost, so coordinates lie in rows of 64 and only rows that hold an
extreme word (one in 64) draw theirs, keyed by the row's number. A loop treats a static number of such rows at a
time until none is left; nearly always once. Keys of other implementations than threefry draw two words for all. The
result is a function of (key, shape, dtype) alone, under vmap too.

float64 draws two words for every coordinate and inverts in float64: coarse noise under a fine sum would leave the
sum's low bits uncovered. Both are approximations of a real normal variable: finite precision itself leaks through the
low bits of the released value (Mironov, CCS 2012), which no float noise avoids.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri

from gdpjax._core.keys import bits, fold_in, is_threefry, split
from gdpjax._core.types import Array

_ROW = 64
_EXTREME = 1 << 19
_REFINE_ALL_ROWS = 256  # below this many rows the loop costs more than the words it saves
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


def _normal_rows(key: Array, num_rows: int) -> Array:
    first, second = split(key)
    words = bits(first, (num_rows, _ROW))
    values = _from_one_word(words)
    if not is_threefry(key):
        # Row by row keys are only cheap where vmap draws them together; these generators are made for long draws.
        return _refined(words, bits(second, (num_rows, _ROW)), values)

    def refined(rows: Array, words: Array, values: Array) -> Array:
        draw = jax.vmap(lambda row: bits(fold_in(second, row), (_ROW,)))
        return _refined(words, draw(rows), values)

    if num_rows <= _REFINE_ALL_ROWS:
        return refined(jnp.arange(num_rows, dtype=jnp.uint32), words, values)
    flagged = jnp.any((words & jnp.uint32(0x7FFFFFFF)) < _EXTREME, axis=1)
    at_a_time = num_rows // 64 + 8 * math.isqrt(num_rows // 64) + 8

    def refine_some(state: tuple[Array, Array]) -> tuple[Array, Array]:
        values, flagged = state
        (rows,) = jnp.nonzero(flagged, size=at_a_time, fill_value=num_rows)
        picked = refined(rows.astype(jnp.uint32), words.at[rows].get(mode="clip"), values.at[rows].get(mode="clip"))
        return values.at[rows].set(picked, mode="drop"), flagged.at[rows].set(False, mode="drop")

    values, _ = jax.lax.while_loop(lambda state: jnp.any(state[1]), refine_some, (values, flagged))
    return values


def _normal_float64(key: Array, shape: tuple[int, ...]) -> Array:
    first, second = split(key)
    words, more = bits(first, shape), bits(second, shape)
    k = (words & jnp.uint32(0x7FFFFFFF)).astype(jnp.float64)
    tail = (k + (more.astype(jnp.float64) + 0.5) * 2.0**-32) * 2.0**-31
    return jnp.where(words >> 31, 1.0, -1.0) * ndtri(tail / 2)


@functools.partial(jax.jit, static_argnums=(1, 2))
def standard_normal(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """N(0, 1) of the given shape, float32 or float64, a function of (key, shape, dtype) alone."""
    if dtype == jnp.float64:
        return _normal_float64(key, shape)
    size = math.prod(shape)
    return _normal_rows(key, -(-size // _ROW)).reshape(-1)[:size].reshape(shape)
