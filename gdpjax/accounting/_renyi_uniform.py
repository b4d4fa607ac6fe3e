r"""Renyi moments of one Gaussian step on a batch of fixed size, drawn without replacement, rigorously from above.

Neighbours replace one example. p = batch size / number of examples, h = 1/noise_multiplier relative to the replace-one
sensitivity, so that given a batch with the example the two outputs are N(0, 1) and N(h, 1) at worst.

*The bound.* Write H_y(A||B) = int (a - y b)_+ for y >= 0. Balle, Barthe and Gaboardi (arXiv:1807.01647, Theorem 9): for
y >= 1 both H_y(A||B) and H_y(B||A) of the two outputs A, B of a step are at most

    p H_{1 + (y-1)/p}(N(h,1) || N(0,1)) = E_{u ~ N(0,1)}[(r - y)_+],    r = 1 + s,  s = p (exp(h u - h^2/2) - 1).

By Taylor's formula for the power of the likelihood ratio, and H_y(A||B) - (1 - y) = y H_{1/y}(B||A) for y < 1, the
moment of order a is

    E_B[(A/B)^a] = 1 + a(a-1) (int_1^oo y^{a-2} H_y(A||B) dy + int_1^oo y^{-a-1} H_y(B||A) dy),

which increases with both. Insert the bound and exchange the integrals: with F_b(s) = (1+s)^b - 1 - b s,

    A(a) - 1 <= E[(F_a(s) + F_{1-a}(s)) 1{s > 0}] = E[F_a(s)] - E[F_a(s) 1{s < 0}] + E[F_{1-a}(s) 1{s > 0}].

(It is the moment of the worst pair of C_p(G_h), Dong, Roth and Su, arXiv:1905.02383, Theorem 4.2.) The first term is
Poisson sampling's, `_renyi.log_moments`, already bounded. The others are taken on cells of u. F_b is convex in s, the
mass and the mean of s in a cell are differences of normal distribution functions, so

* F_{1-a} lies below its chord, whose mean over the cell is m ((1-l) F(s_left) + l F(s_right)), l the place of the mean,
* F_a lies above its tangent (Jensen): its mean over the cell is at least m F_a(mean of s).

F_a decreases where it is used and F_{1-a} increases, so raising l covers the rounding of both. Left of -9, F_a >= 0 is
left out; right of U = 2h + 9, F_{1-a} <= min(a(a-1)/2 s^2, (a-1) s) has mean at most min(a(a-1)/2 p^2 e^{h^2} Phi(-9),
(a-1) p Phi(-9)). Second order in the cell width: about 1e-3 of the result at ordinary parameters.

*Fallback.* F_{1-a}'' <= F_a'' for s > 0, and both vanish with their slopes at 0, so A(a) - 1 <= 2 E[F_a(s)] always.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from gdpjax._core.types import Array
from gdpjax.accounting._renyi import log_moments

_ROUNDING = 2.0**-36
_NUM_CELLS = 128
_CUT = 9.0
_CUT_MASS = 1.1286e-19  # Phi(-9), rounded up
_LARGEST_EXPONENT = 600.0


def log_moments_uniform(noise_multiplier: Array, sampling_prob: Array, orders: np.ndarray | Array) -> Array:
    """Upper bounds on log A: configurations [...] and orders [K], concrete or traced, to [..., K]."""
    poisson = log_moments(noise_multiplier, sampling_prob, orders)
    h, p = jnp.broadcast_arrays(1 / noise_multiplier, sampling_prob)
    h, p = h[..., None], p[..., None]
    representable = h * (2 * h + _CUT) < _LARGEST_EXPONENT
    safe = jnp.where(representable, h, 1.0)
    change = _gain(safe, p, orders) * (1 + _ROUNDING) - _loss(safe, p, orders) * (1 - _ROUNDING)
    # log(A + change) and log(2 A - 1), without overflow
    refined = poisson + jnp.log1p(jnp.where(representable, change * jnp.exp(-poisson), 0.0))
    doubled = poisson + jnp.log1p(-jnp.expm1(-poisson))
    result = jnp.where(representable, jnp.minimum(refined, doubled), doubled) * (1 + _ROUNDING)
    full = 0.5 * orders * (orders - 1) * h * h * (1 + _ROUNDING)
    return jnp.where(p == 1, full, jnp.where(p == 0, 0.0, jnp.minimum(result, full)))


def _gain(h: Array, p: Array, orders: Array) -> Array:
    """An upper bound on E[F_{1-a}(s) 1{s > 0}], [..., 1] to [..., K]."""
    s, mass, place = _cells(h, p, 0.5 * h, 2 * h + _CUT)
    value = _excess(s, 1 - orders[..., None])
    inside = jnp.sum(mass * ((1 - place) * value[..., :-1] + place * value[..., 1:]), axis=-1)
    curved = 0.5 * orders * p * jnp.exp(h * h)
    return inside + (orders - 1) * p * jnp.minimum(curved, 1.0) * _CUT_MASS


def _loss(h: Array, p: Array, orders: Array) -> Array:
    """A lower bound on E[F_a(s) 1{s < 0}], [..., 1] to [..., K]."""
    s, mass, place = _cells(h, p, -_CUT, 0.5 * h)
    mean = (1 - place) * s[..., :-1] + place * s[..., 1:]
    return jnp.sum(mass * _excess(jnp.minimum(mean, 0.0), orders[..., None]), axis=-1)


def _cells(h: Array, p: Array, left: Array, right: Array) -> tuple[Array, Array, Array]:
    """s at the edges of equal cells of u [..., 1, N+1], the mass of each cell, and the place of the mean of s in it."""
    width = (right - left) / _NUM_CELLS
    u = (left + width * np.arange(_NUM_CELLS + 1))[..., None, :]
    h, p, width = h[..., None], p[..., None], width[..., None]
    shift = jnp.expm1(h * u - 0.5 * h * h)  # s / p
    low, high = shift[..., :-1], shift[..., 1:]
    mass = _mass(u)
    mean = _mass(u - h) / mass - 1
    # Twice the rounding of the quotient, whose numerator is a difference of numbers that agree to about h width.
    place = (mean - low) / (high - low) + _ROUNDING / (h * width)
    return p * shift, mass, jnp.clip(place, 0.0, 1.0)


def _mass(u: Array) -> Array:
    """Phi(u_{i+1}) - Phi(u_i), accurate relative to itself."""
    left, right = u[..., :-1], u[..., 1:]
    return jnp.where(left > 0, ndtr(-left) - ndtr(-right), ndtr(right) - ndtr(left))


def _excess(s: Array, b: Array) -> Array:
    """F_b(s) = (1+s)^b - 1 - b s without cancellation."""
    tiny = jnp.abs(s) * (1 + jnp.abs(b)) < 0.01
    small = jnp.where(tiny, s, 0.0)
    series = jnp.zeros_like(small * b)
    for k in range(8, 1, -1):  # b(b-1)/2 s^2 (1 + s (b-2)/3 (1 + s (b-3)/4 (...)))
        series = small * ((b - k) / (k + 1)) * (1 + series)
    series = 0.5 * b * (b - 1) * small * small * (1 + series)
    return jnp.where(tiny, series, jnp.expm1(b * jnp.log1p(s)) - b * s)
