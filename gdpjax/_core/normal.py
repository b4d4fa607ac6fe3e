r"""Mills ratio of the normal law, and its differences without cancellation.

Every tail quantity of Gaussian differential privacy is the density phi(x) times a slowly varying factor. The factor is
the Mills ratio

    M(y) = Phi(-y) / phi(y) = int_0^inf exp(-y t - t^2/2) dt,

positive, decreasing and convex, with M(y) ~ 1/y. Subtracting two values of it loses all digits when they are close, so
the difference is computed from a *divided difference* of one polynomial instead.

Map y in [-1, inf] onto u in [-1, 1] by u = 1 - 2 (b - 1) / (y + b) with b = 4. The function G(u) = (y + b) M(y) is
smooth there and a Chebyshev sum of 31 terms gives it to a few units in the last place. Clenshaw's recurrence for
G(v) = sum_k c_k T_k(v) is b_k = c_k + 2 v b_{k+1} - b_{k+2}. Dividing the difference of the recurrences at u and v by
u - v gives one for the divided difference G[u, v] itself, with no subtraction of close numbers:

    d_k = 2 b_{k+1}(v) + 2 u d_{k+1} - d_{k+2},        G[u, v] = b_1(v) + u d_1 - d_2.

With y = x + gap and v - u = 2 (b - 1) gap / ((x + b)(y + b)) in closed form,

    M(x) - M(x + gap) = gap / ((x + b)(y + b)) * (G(v) - 2 (b - 1) G[u, v] / (x + b)),

where both terms of the last factor are positive, because G[u, v] < 0 near u = -1 and its weight vanishes as x grows.
The relative error is about 1e-15 for every x >= -1 and every gap >= 0, where quadrature of the integral needs 128
nodes for 1e-13.

The squares in phi(x) = exp(-x^2/2) / sqrt(2 pi) need care as well: at x = 37 a rounding of x^2/2 is an error of 1e-13
in phi. So x travels as an unevaluated sum hi + lo, and hi is cut to 24 bits, whose square is exact.

In float32, for TPUs, 13 terms and 12 bits do the same to about 5e-7.

Where it matters, the functions take ``xp``, jax.numpy or NumPy: certified brackets are computed on the host.
"""

from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array

LOG_SQRT_TWO_PI = 0.918938533204672741780329736406
_DENSITY_AT_ZERO = 0.398942280401432677939946059934

_SHIFT = 4.0
# Chebyshev coefficients of G, computed at 60 digits; tests/core/test_normal.py derives them again.
_COEFFICIENTS = (
    4.07078994088425963,
    -4.32483724996379527,
    1.59566889489882967,
    -0.393295878576028596,
    0.0510309236801586865,
    0.00247744432974482549,
    -0.00198419193377417309,
    0.0000834546787030829486,
    0.0000754884735592869902,
    -5.69616055046110998e-6,
    -3.52099238889356415e-6,
    2.08798281612466113e-7,
    1.9303880667669114e-7,
    2.72029530015633589e-10,
    -1.10408833335240756e-8,
    -1.06041191078336707e-9,
    5.6584551711985588e-10,
    1.37860738666202298e-10,
    -1.83637147517082063e-11,
    -1.2101329882470991e-11,
    -6.7722542591993819e-13,
    7.47810292175841076e-13,
    1.86951949384528381e-13,
    -1.97483478245568604e-14,
    -1.83262048045968888e-14,
    -2.36139377108843912e-15,
    9.35030903489290293e-16,
    4.07085420209735407e-16,
    2.00129440412052304e-17,
    -2.92447359690245673e-17,
    -9.14778818346489674e-18,
)


NUM_TERMS_IN_FLOAT32 = 13


def is_single(x: Any) -> bool:
    """Return whether x is of float32, in which JAX computes on a TPU; NumPy never does."""
    return getattr(x, "dtype", None) == jnp.float32


def exact_quotient(xp: Any, numerator: Array, denominator: Array) -> tuple[Array, Array]:
    """Return numerator / denominator as an unevaluated sum (hi, lo); both finite, the denominator not zero."""
    hi = numerator / denominator

    # The remainder numerator - hi * denominator from exact partial products.
    a = _leading_bits(xp, hi)
    b = _leading_bits(xp, denominator)
    remainder = numerator - a * b
    remainder = remainder - a * (denominator - b) - (hi - a) * b - (hi - a) * (denominator - b)
    return hi, remainder / denominator


def log_and_density(xp: Any, hi: Array, lo: Array) -> tuple[Array, Array]:
    """Return log phi and phi at x = hi + lo, to a few units in the last place of phi."""
    head = _leading_bits(xp, hi)
    correction = 0.5 * ((hi - head) + lo) * (hi + head)
    log_density = -(0.5 * head * head + correction) - LOG_SQRT_TWO_PI
    # Where the clip acts the density is zero anyway, and inf * 0 is avoided.
    density = _DENSITY_AT_ZERO * xp.exp(-0.5 * head * head) * xp.exp(-xp.clip(correction, -1.0, 1.0))
    return log_density, density


def mills_difference(x: Array, gap: Array, y: Array) -> tuple[Array, Array, Array]:
    """Return (M(x), M(y), M(x) - M(y)) for x >= -1 and y = x + gap >= x, each to a relative error of about 1e-15."""
    u = _map(x)
    v = _map(y)
    value, slope = _clenshaw(u, v)
    difference = gap / ((x + _SHIFT) * (y + _SHIFT)) * (value - 2 * (_SHIFT - 1) * slope / (x + _SHIFT))
    # G(u) = G(v) + (u - v) G[u, v].
    at_x = (value + (u - v) * slope) / (x + _SHIFT)
    at_y = value / (y + _SHIFT)
    return at_x, at_y, difference


def _map(y: Array) -> Array:
    """Return the u in [-1, 1] of a y in [-1, inf]."""
    return 1 - 2 * (_SHIFT - 1) / (y + _SHIFT)


def _clenshaw(u: Array, v: Array) -> tuple[Array, Array]:
    """Return (G(v), G[u, v]) by the pair of recurrences in the module docstring."""
    b1 = b2 = d1 = d2 = 0.0 * v
    num_terms = NUM_TERMS_IN_FLOAT32 if is_single(v) else len(_COEFFICIENTS)
    for coefficient in _COEFFICIENTS[1:num_terms][::-1]:
        d1, d2 = 2 * b1 + 2 * u * d1 - d2, d1
        b1, b2 = coefficient + 2 * v * b1 - b2, b1
    return _COEFFICIENTS[0] + v * b1 - b2, b1 + u * d1 - d2


def _leading_bits(xp: Any, x: Array) -> Array:
    """Return x cut to 24 bits, or 12 of float32, so that products of two such numbers are exact."""
    if xp is jnp and is_single(x):
        return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=11)
    if xp is jnp:
        return jax.lax.reduce_precision(x, exponent_bits=11, mantissa_bits=23)
    # Veltkamp's splitting; x stays far from overflow.
    scaled = (2.0**29 + 1.0) * x
    return scaled - (scaled - x)
