r"""Renyi moments of one Poisson-subsampled Gaussian step, rigorously from above.

The moments accountant (`_rdp`) adds up the Renyi divergences of its steps. `log_moments` gives log A(a) of one step,
and log A(a) / (a - 1) is the Renyi divergence of order a. With h = 1/noise_multiplier, p = sampling_prob and
u ~ N(0, 1),

    A(a) = E[(1 + s)^a],    s = p (w - 1),    w = exp(h u - h^2/2),
    A(a) - 1 = E[g(s)],     g(s) = (1 + s)^a - 1 - a s >= 0.

* At whole orders the binomial theorem gives A - 1 as a finite sum of positive terms.
* At fractional orders the trapezoid rule takes the integral. Bounds on its three errors are added.
* Between whole orders log A is convex, and above the tabulated ones A - 1 <= p (exp(a(a-1) h^2/2) - 1). Both always
  hold, so an order at which the trapezoid rule does badly is answered by the smaller bound.

All results are raised by 2^-36 of themselves, which covers the rounding of float64. The derivation, error by error, is
docs/theory/subsampled_renyi.md.
"""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.types import Array

LARGEST_WHOLE_ORDER = 1024
"""Above it the Jensen bound is used: a binomial sum would have that many terms."""

_ROUNDING = 1 + 2.0**-36
_NUM_NODES = 256
_ROW = 16
_CUT = 9.0
_CUT_MASS = 1.1286e-19  # Phi(-9), rounded up
_CUT_DENSITY = 1.0281e-18  # phi(9), rounded up
_LARGEST_EXPONENT = 600.0
_LARGEST_INVERSE_NOISE = 1e145
_LAST_SERIES_TERM = 8


def log_moments(
    noise_multiplier: Array,
    sampling_prob: Array,
    orders: np.ndarray,
    xp: Any = jnp,
) -> Array:
    """Return upper bounds on log A(a) of one step.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0, float64 [...].
        sampling_prob: probability in [0, 1] that an example joins a batch, float64 [...].
        orders: Renyi orders > 1, [K].
        xp: jax.numpy, or numpy, which has nothing to compile, for float64 arrays.

    Returns:
        upper bounds, [..., K].
    """
    inverse_noise, sampling_prob = xp.broadcast_arrays(
        1 / noise_multiplier,
        sampling_prob,
    )
    inverse_noise = inverse_noise[..., None]
    sampling_prob = sampling_prob[..., None]

    # The sums need a probability strictly inside (0, 1); the ends are closed forms.
    inner_prob = xp.where((sampling_prob > 0) & (sampling_prob < 1), sampling_prob, 0.5)
    bound = _at_orders(xp, inverse_noise, inner_prob, orders)

    # A grows with p, so the closed form at p = 1 caps every bound.
    unsampled = log_moments_without_sampling(inverse_noise, orders)
    bound = xp.where(sampling_prob == 0, 0.0, xp.minimum(bound, unsampled))
    bound = xp.where(sampling_prob == 1, unsampled, bound) * _ROUNDING

    # Where h^2 overflows, so do the moments.
    is_finite = (inverse_noise < _LARGEST_INVERSE_NOISE) | (sampling_prob == 0)
    return xp.where(is_finite, bound, xp.inf)


def log_moments_without_sampling(inverse_noise: Array, orders: np.ndarray) -> Array:
    """Return a(a-1) h^2/2, which is log A(a) of a step that every example takes part in."""
    return 0.5 * orders * (orders - 1) * inverse_noise * inverse_noise


def _at_orders(
    xp: Any,
    inverse_noise: Array,
    sampling_prob: Array,
    orders: np.ndarray,
) -> Array:
    """Return the bounds at orders [K]; [..., 1] to [..., K]."""
    # Tabulate the whole orders on both sides of each order.
    is_tabulated = orders <= LARGEST_WHOLE_ORDER
    tabulated = orders[is_tabulated]
    whole_orders = np.unique([np.floor(tabulated), np.ceil(tabulated)])
    whole_orders = np.unique(np.append(whole_orders, 1.0)).astype(int)
    table = _at_whole_orders(xp, inverse_noise, sampling_prob, whole_orders)

    # log A is convex, so the line between the two neighbours is an upper bound.
    clipped = np.minimum(orders, LARGEST_WHOLE_ORDER)
    floor = np.floor(clipped)
    below = np.searchsorted(whole_orders, floor)
    above = np.searchsorted(whole_orders, np.ceil(clipped))
    weight = np.where(above > below, clipped - floor, 0.0)
    bound = (1 - weight) * table[..., below] + weight * table[..., above]

    # The trapezoid rule improves on the line at fractional orders. Orders of similar size stand in rows. A row shares
    # one grid of nodes, laid out for its largest order. The last row of a size is filled up with its first orders.
    members = np.flatnonzero(is_tabulated & (orders != np.floor(orders)))
    if members.size:
        sizes = np.ceil(np.log2(orders[members]) / 2)
        groups = [members[sizes == size] for size in np.unique(sizes)]
        rows = np.concatenate([np.resize(group, (-(-group.size // _ROW), _ROW)) for group in groups])
        integral = _by_trapezoid(
            xp, inverse_noise[..., None], sampling_prob[..., None], orders[rows], orders[rows].max(axis=-1)[:, None]
        )
        # Where each of the members is in the rows.
        integral = integral.reshape(*integral.shape[:-2], -1)[..., np.unique(rows, return_index=True)[1]]
        if xp is np:
            bound[..., members] = np.minimum(bound[..., members], integral)
        else:
            bound = bound.at[..., members].min(integral)

    if is_tabulated.all():
        return bound
    jensen = _by_jensen(xp, inverse_noise, sampling_prob, orders)
    return xp.where(is_tabulated, bound, jensen)


def _at_whole_orders(
    xp: Any,
    inverse_noise: Array,
    sampling_prob: Array,
    orders: np.ndarray,
) -> Array:
    """Return log A at sorted whole orders >= 1, the first of which is 1; [..., 1] to [..., K]."""
    logsumexp = scipy.special.logsumexp if xp is np else jax.scipy.special.logsumexp
    log_odds = xp.log(sampling_prob) - xp.log1p(-sampling_prob)
    columns = [xp.zeros_like(inverse_noise)]

    # Orders of similar size share one rectangular sum, so that not most of it is padding and few sums are compiled.
    sizes = np.maximum(np.ceil(np.log2(orders) / 3), 2)
    for size in np.unique(sizes[orders > 1]):
        members = orders[(sizes == size) & (orders > 1)]
        k = np.arange(2, int(members[-1]) + 1)
        log_binomial = _log_binomials(tuple(members.tolist()))

        # The terms C(a,k) p^k (1-p)^{a-k} (exp(k(k-1) h^2/2) - 1), as logarithms.
        log_gain = log_expm1(xp, log_moments_without_sampling(inverse_noise, k))
        log_terms = k * log_odds + log_gain
        log_excess = logsumexp(log_terms[..., None, :] + log_binomial, axis=-1)
        log_excess = log_excess + members * xp.log1p(-sampling_prob)
        columns.append(xp.logaddexp(0.0, log_excess))
    return xp.concatenate(columns, axis=-1)


@functools.lru_cache(maxsize=16)
def _log_binomials(orders: tuple[int, ...]) -> np.ndarray:
    """Return log C(a, k) for each of the sorted orders [K] and each k from 2 to the last one; -inf where k > a."""
    table = np.full((len(orders), orders[-1] - 1), -np.inf)
    for row, order in enumerate(orders):
        for k in range(2, order + 1):
            table[row, k - 2] = math.log(math.comb(order, k))
    return table


def log_expm1(xp: Any, x: Array) -> Array:
    """Return log(e^x - 1) without overflow."""
    return x + xp.log(-xp.expm1(-x))


def _by_jensen(
    xp: Any,
    inverse_noise: Array,
    sampling_prob: Array,
    orders: np.ndarray,
) -> Array:
    """Return log(1 + p (exp(a(a-1) h^2/2) - 1)), an upper bound on log A(a)."""
    log_gain = log_expm1(xp, log_moments_without_sampling(inverse_noise, orders))
    return xp.logaddexp(0.0, xp.log(sampling_prob) + log_gain)


def _by_trapezoid(
    xp: Any,
    inverse_noise: Array,
    sampling_prob: Array,
    orders: Array,
    largest_order: Array,
) -> Array:
    """Return log A by the trapezoid rule plus its error bounds; inf where a term would overflow.

    ``largest_order`` [1] decides where the nodes of each order end.
    """
    # The nodes, equally spaced from -9 to U = max(a, 2) h + 9.
    right_end = xp.maximum(largest_order, 2.0) * inverse_noise + _CUT
    spacing = (right_end + _CUT) / (_NUM_NODES - 1)
    nodes = -_CUT + spacing[..., None] * np.arange(_NUM_NODES)

    # The sum over the nodes, and all that it may have missed.
    gap = _weighted_gap(
        xp,
        nodes,
        inverse_noise[..., None],
        sampling_prob[..., None],
        orders[..., None],
    )
    integral = spacing / math.sqrt(2 * math.pi) * xp.sum(gap, axis=-1)
    error = _trapezoid_error(xp, inverse_noise, sampling_prob, orders, spacing)
    excess = integral + error

    unsampled = log_moments_without_sampling(inverse_noise, orders)
    exponent = xp.maximum(unsampled, right_end * inverse_noise)
    is_representable = (exponent < _LARGEST_EXPONENT) & (orders < _LARGEST_EXPONENT)
    excess = xp.where(is_representable, excess, 1.0)
    return xp.where(is_representable, xp.log1p(excess), xp.inf)


def _weighted_gap(
    xp: Any,
    u: Array,
    inverse_noise: Array,
    sampling_prob: Array,
    orders: Array,
) -> Array:
    """Return exp(-u^2/2) g(s(u)) without overflow or cancellation; [..., 1 or K, nodes] to [..., K, nodes]."""
    exponent = inverse_noise * u - 0.5 * inverse_noise * inverse_noise
    s = sampling_prob * xp.expm1(xp.minimum(exponent, _LARGEST_EXPONENT))
    log_ratio = xp.log1p(s)
    density = xp.exp(-0.5 * u * u)
    is_near = orders * log_ratio < 1
    is_tiny = orders * xp.abs(s) < 0.03

    # Where s is tiny, the power series of g.
    series = power_remainder_series(xp, xp.where(is_tiny, s, 0.0), orders)

    # Where (1+s)^a is moderate, g = (1 + s) ((1+s)^{a-1} - 1) - (a - 1) s.
    near_log_ratio = xp.where(is_near, log_ratio, 0.0)
    moderate = (1 + s) * xp.expm1((orders - 1) * near_log_ratio) - (orders - 1) * s

    # Where it is large, nothing cancels; the density joins the exponent, which alone might overflow.
    far_exponent = xp.minimum(orders * log_ratio - 0.5 * u * u, _LARGEST_EXPONENT)
    far_exponent = xp.where(is_near, 0.0, far_exponent)
    far = xp.exp(far_exponent) - density * (1 + orders * s)
    return xp.where(is_near, density * xp.where(is_tiny, series, moderate), far)


def power_remainder_series(xp: Any, s: Array, orders: Array) -> Array:
    """Return (1+s)^a - 1 - a s for s near 0, by a(a-1)/2 s^2 (1 + s (a-2)/3 (1 + s (a-3)/4 (...)))."""
    series = xp.zeros_like(s)
    for k in range(_LAST_SERIES_TERM, 1, -1):
        series = s * ((orders - k) / (k + 1)) * (1 + series)
    return 0.5 * orders * (orders - 1) * s * s * (1 + series)


def _trapezoid_error(
    xp: Any,
    inverse_noise: Array,
    sampling_prob: Array,
    orders: Array,
    spacing: Array,
) -> Array:
    """Return the sum of the three errors of the trapezoid rule; the symbols are those of the theory page."""
    # C p^2 2^e, exp(h^2) and p^e X.
    power = xp.maximum(orders - 2, 0.0)
    curvature = xp.maximum(0.5 * orders * (orders - 1), orders - 1)
    base = curvature * sampling_prob * sampling_prob * xp.exp2(xp.minimum(power, 600.0))
    square_moment = xp.exp(xp.minimum(inverse_noise * inverse_noise, _LARGEST_EXPONENT))
    log_high_moment = power * xp.log(sampling_prob) + log_moments_without_sampling(
        inverse_noise,
        orders,
    )
    high_moment = xp.exp(xp.minimum(log_high_moment, _LARGEST_EXPONENT))

    # The half-width d of the strip. d <= 2 pi/t makes the exponent at most -decay/2, so nothing overflows.
    depth = xp.where(orders >= 2, math.pi, 0.5 * math.pi) / inverse_noise
    depth = xp.minimum(depth, 2 * math.pi / spacing)
    decay = 2 * math.pi * depth / spacing
    relative = 2 * xp.exp(0.5 * depth * depth - decay) / -xp.expm1(-decay)

    discretisation = relative * 2 * base * (square_moment + 1 + 2 * high_moment)
    cut = (_CUT_MASS + spacing * _CUT_DENSITY) * base * (1 + square_moment + high_moment)
    return discretisation + cut
