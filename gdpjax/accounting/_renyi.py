r"""Renyi moments of one Poisson-subsampled Gaussian step, rigorously from above.

With h = 1/noise_multiplier, p = sampling_prob, u ~ N(0, 1), w = exp(h u - h^2/2) and s = p (w - 1), the moment of
order a is A(a) = E[(1 + s)^a]; the Renyi divergence of the step is log A(a) / (a - 1). The other direction of the
add-or-remove pair is never larger (Mironov, Talwar and Zhang, arXiv:1908.10530, Theorem 5). E[s] = 0, so

    A(a) - 1 = E[g(s)],    g(s) = (1 + s)^a - 1 - a s >= 0,

and everything below sums non-negative terms: A - 1 keeps its relative accuracy down to p^2 h^2 = 1e-300.

*Whole orders.* The binomial theorem, with the identity sum_k C(a,k) p^k (1-p)^{a-k} = 1 taken off term by term:
A(a) - 1 = sum_{k=2}^a C(a,k) p^k (1-p)^{a-k} (exp(k(k-1) h^2/2) - 1), summed as logarithms.

*Fractional orders.* The two-sided binomial series of the literature converges like a power of the number of terms
and cancels, so the integral is taken by the trapezoid rule instead, which converges geometrically because the
integrand f(u) = phi(u) g(s(u)) is analytic for abs(Im u) < pi/h. Three errors are bounded and *added*. Write
X = exp(a(a-1) h^2/2), e = max(a-2, 0), C = max(a(a-1)/2, a-1).

1. Discretisation with spacing t: at most 2 M / (exp(2 pi d/t) - 1) for M >= int abs(f(u + ib)) du, abs(b) < d
   (Trefethen and Weideman, SIAM Review 56 (2014), Theorem 5.1). Taylor's remainder is
   g(s) = a(a-1) s^2 int_0^1 (1-v) (1+vs)^{a-2} dv, abs(s) <= p (w+1) and abs(phi(u+ib)) = phi(u) exp(b^2/2).
   For a >= 2, abs(1+vs)^{a-2} <= (1+pw)^e <= 2^e (1 + (pw)^e). For a < 2 and d <= pi/(2h), Re(1+vs) >= 1-v makes the
   integral at most 1/a. Either way M <= exp(d^2/2) C p^2 2^{e+1} (exp(h^2) + 1 + 2 p^e X), with d = pi/h or, for
   a < 2, half of it; beyond 2 pi/t a larger d no longer helps.
2. Nodes left of -9: 0 >= s >= -p there, so g <= C p^2.
3. Nodes right of U >= max(a, 2) h + 9: g <= C p^2 w^2 2^e (1 + (pw)^e), a sum of two shifted Gaussians that decrease
   beyond U. Both cuts have weight at most Phi(-9) + t phi(9) under the (shifted) density.

*Fallbacks.* log A is convex in a (Hoelder), so the line between the two neighbouring whole orders is always an upper
bound; the smaller of the two is taken, so that no input is ever answered by an underestimate: where the spacing is too
coarse (tiny noise multipliers, large fractional orders) the line wins. Above the tabulated whole orders Jensen's
inequality in p gives A - 1 <= p (X - 1). All results are finally raised by 2^-36 of themselves, which covers the
rounding of float64.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.types import Array

LARGEST_WHOLE_ORDER = 1024
"""Above it the Jensen bound is used: a binomial sum would have that many terms."""
LARGEST_TRACED_ORDER = 128
"""The same for orders that are traced, where every whole order up to it is tabulated."""

_ROUNDING = 1 + 2.0**-36
_NUM_NODES = 256
_CUT = 9.0
_CUT_MASS = 1.1286e-19  # Phi(-9), rounded up
_CUT_DENSITY = 1.0281e-18  # phi(9), rounded up
_LARGEST_EXPONENT = 600.0
_LARGEST_INVERSE_NOISE = 1e145


def log_moments(noise_multiplier: Array, sampling_prob: Array, orders: np.ndarray | Array, xp: Any = jnp) -> Array:
    """Upper bounds on log A: configurations [...] and orders [K], concrete or traced, to [..., K].

    By jax.numpy, or by NumPy (``xp``), which has nothing to compile, for float64 arrays and concrete orders.
    """
    h, p = xp.broadcast_arrays(1 / noise_multiplier, sampling_prob)
    h, p = h[..., None], p[..., None]
    inner = xp.where((p > 0) & (p < 1), p, 0.5)
    if isinstance(orders, np.ndarray):
        result = _of_concrete_orders(xp, h, inner, orders)
    else:
        result = _of_traced_orders(h, inner, orders)
    full = 0.5 * orders * (orders - 1) * h * h
    # A grows with p, so the closed form at p = 1 caps every bound.
    result = xp.where(p == 1, full, xp.where(p == 0, 0.0, xp.minimum(result, full))) * _ROUNDING
    # Where h^2 overflows, so do the moments.
    return xp.where((h < _LARGEST_INVERSE_NOISE) | (p == 0), result, xp.inf)


def _of_concrete_orders(xp: Any, h: Array, p: Array, orders: np.ndarray) -> Array:
    tabulated = orders <= LARGEST_WHOLE_ORDER
    needed = np.unique([np.floor(orders[tabulated]), np.ceil(orders[tabulated])])
    needed = np.unique(np.append(needed, 1.0)).astype(int)
    table = _whole_orders(xp, h, p, needed)
    clipped = np.minimum(orders, LARGEST_WHOLE_ORDER)
    below, above = (np.searchsorted(needed, rounded(clipped)) for rounded in (np.floor, np.ceil))
    weight = np.where(above > below, clipped - np.floor(clipped), 0.0)
    result = (1 - weight) * table[..., below] + weight * table[..., above]
    fractional = tabulated & (orders != np.floor(orders))
    # Orders of similar size share one grid of nodes, laid out for the largest of them.
    sizes = np.ceil(np.log2(orders) / 2)
    for size in np.unique(sizes[fractional]):
        members = np.flatnonzero(fractional & (sizes == size))
        bound = _by_trapezoid(xp, h, p, orders[members], orders[members].max(keepdims=True))
        if xp is np:
            result[..., members] = np.minimum(result[..., members], bound)
        else:
            result = result.at[..., members].min(bound)
    return xp.where(tabulated, result, _by_jensen(xp, h, p, orders)) if not tabulated.all() else result


def _of_traced_orders(h: Array, p: Array, orders: Array) -> Array:
    table = _whole_orders(jnp, h, p, np.arange(1, LARGEST_TRACED_ORDER + 1))
    clipped = jnp.clip(jnp.where(orders >= 1, orders, 1.0), 1.0, LARGEST_TRACED_ORDER)
    below = jnp.floor(clipped)
    weight = clipped - below
    index = below.astype(int) - 1
    line = (1 - weight) * table[..., index] + weight * table[..., jnp.minimum(index + 1, LARGEST_TRACED_ORDER - 1)]
    trapezoid = jnp.where(weight > 0, _by_trapezoid(jnp, h, p, clipped, clipped), jnp.inf)
    return jnp.where(orders <= LARGEST_TRACED_ORDER, jnp.minimum(line, trapezoid), _by_jensen(jnp, h, p, orders))


def _whole_orders(xp: Any, h: Array, p: Array, orders: np.ndarray) -> Array:
    """log A of sorted whole orders >= 1, the first of which is 1; [..., 1] to [..., K]."""
    columns = [xp.zeros_like(h)]
    # Orders of similar size share one rectangular sum, so that little of it is padding and few sums are compiled.
    sizes = np.maximum(np.ceil(np.log2(orders)), 4)
    for size in np.unique(sizes[orders > 1]):
        members = orders[(sizes == size) & (orders > 1)]
        k = np.arange(2, int(members[-1]) + 1)
        log_binomial = np.array([[_log_comb(a, int(j)) for j in k] for a in members])
        odds = k * (xp.log(p) - xp.log1p(-p)) + _log_expm1(xp, 0.5 * k * (k - 1) * h * h)
        logsumexp = scipy.special.logsumexp if xp is np else jax.scipy.special.logsumexp
        excess = logsumexp(odds[..., None, :] + log_binomial, axis=-1) + members * xp.log1p(-p)
        columns.append(xp.logaddexp(0.0, excess))
    return xp.concatenate(columns, axis=-1)


def _log_comb(n: int, k: int) -> float:
    return math.log(math.comb(n, k)) if k <= n else -math.inf


def _log_expm1(xp: Any, x: Array) -> Array:
    return x + xp.log(-xp.expm1(-x))


def _by_jensen(xp: Any, h: Array, p: Array, orders: Array) -> Array:
    return xp.logaddexp(0.0, xp.log(p) + _log_expm1(xp, 0.5 * orders * (orders - 1) * h * h))


def _by_trapezoid(xp: Any, h: Array, p: Array, orders: Array, largest: Array) -> Array:
    """log A by the trapezoid rule plus its error bounds; inf where a term would overflow.

    ``largest`` [1] or [K] is the order that decides where the nodes of each order end.
    """
    right = xp.maximum(largest, 2.0) * h + _CUT
    spacing = (right + _CUT) / (_NUM_NODES - 1)
    nodes = -_CUT + spacing[..., None] * np.arange(_NUM_NODES)
    gap = _weighted_gap(xp, nodes, h[..., None], p[..., None], orders[..., None])
    excess = spacing / math.sqrt(2 * math.pi) * xp.sum(gap, axis=-1) + _trapezoid_error(xp, h, p, orders, spacing)
    exponent = xp.maximum(0.5 * orders * (orders - 1) * h * h, right * h)
    representable = (exponent < _LARGEST_EXPONENT) & (orders < _LARGEST_EXPONENT)
    return xp.where(representable, xp.log1p(xp.where(representable, excess, 1.0)), xp.inf)


def _weighted_gap(xp: Any, u: Array, h: Array, p: Array, orders: Array) -> Array:
    """exp(-u^2/2) g(s(u)) without overflow or cancellation; [..., 1 or K, nodes] to [..., K, nodes]."""
    s = p * xp.expm1(xp.minimum(h * u - 0.5 * h * h, _LARGEST_EXPONENT))
    log_ratio, density = xp.log1p(s), xp.exp(-0.5 * u * u)
    near = orders * log_ratio < 1
    tiny = orders * xp.abs(s) < 0.03
    s_tiny = xp.where(tiny, s, 0.0)
    series = xp.zeros_like(s_tiny)
    for k in range(8, 1, -1):  # g = a(a-1)/2 s^2 (1 + s (a-2)/3 (1 + s (a-3)/4 (...)))
        series = s_tiny * ((orders - k) / (k + 1)) * (1 + series)
    series = 0.5 * orders * (orders - 1) * s_tiny * s_tiny * (1 + series)
    direct = (1 + s) * xp.expm1((orders - 1) * xp.where(near, log_ratio, 0.0)) - (orders - 1) * s
    far_exponent = xp.where(near, 0.0, xp.minimum(orders * log_ratio - 0.5 * u * u, _LARGEST_EXPONENT))
    far = xp.exp(far_exponent) - density * (1 + orders * s)
    return xp.where(near, density * xp.where(tiny, series, direct), far)


def _trapezoid_error(xp: Any, h: Array, p: Array, orders: Array, spacing: Array) -> Array:
    """The three error bounds of the module docstring."""
    extra = xp.maximum(orders - 2, 0.0)
    base = xp.maximum(0.5 * orders * (orders - 1), orders - 1) * p * p * xp.exp2(xp.minimum(extra, 600.0))
    squares = xp.exp(xp.minimum(h * h, _LARGEST_EXPONENT))
    high = xp.exp(xp.minimum(extra * xp.log(p) + 0.5 * orders * (orders - 1) * h * h, _LARGEST_EXPONENT))
    depth = xp.minimum(xp.where(orders >= 2, math.pi, 0.5 * math.pi) / h, 2 * math.pi / spacing)
    decay = 2 * math.pi * depth / spacing
    # d <= 2 pi/t makes the exponent at most -decay/2, so nothing overflows.
    relative = 2 * xp.exp(0.5 * depth * depth - decay) / -xp.expm1(-decay)
    discretisation = relative * 2 * base * (squares + 1 + 2 * high)
    cut = (_CUT_MASS + spacing * _CUT_DENSITY) * base * (1 + squares + high)
    return discretisation + cut
