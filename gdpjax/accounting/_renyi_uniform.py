r"""Renyi moments of one Gaussian step on a batch of fixed size, drawn without replacement, rigorously from above.

Neighbours replace one example. With p = batch size / number of examples, h = 1/noise_multiplier relative to the
replace-one sensitivity, and s = p (exp(h u - h^2/2) - 1), u ~ N(0, 1), the moment of order a of a step is at most

    A(a) = 1 + E[F_a(s)] - E[F_a(s) 1{s < 0}] + E[F_{1-a}(s) 1{s > 0}],      F_b(s) = (1+s)^b - 1 - b s,

and never more than 1 + 2 E[F_a(s)]. The first mean is that of Poisson sampling, which `_renyi.log_moments` bounds. The
second, `_loss`, is bounded from below and the third, `_gain`, from above, on cells of u: F_b is convex, so on a cell it
lies above its tangent and below its chord. The derivation is docs/theory/subsampled_renyi.md.
"""

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr

from gdpjax._core.types import Array
from gdpjax.accounting._renyi import log_moments, log_moments_without_sampling, power_remainder_series

_ROUNDING = 2.0**-36
_NUM_CELLS = 128
_CUT = 9.0
_CUT_MASS = 1.1286e-19  # Phi(-9), rounded up
_LARGEST_EXPONENT = 600.0


def log_moments_uniform(
    noise_multiplier: Array,
    sampling_prob: Array,
    orders: np.ndarray,
) -> Array:
    """Return upper bounds on log A(a) of one step.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0, float64 [...].
        sampling_prob: batch size / number of examples, in [0, 1], float64 [...].
        orders: Renyi orders > 1, [K].

    Returns:
        upper bounds, [..., K].
    """
    log_poisson = log_moments(noise_multiplier, sampling_prob, orders)
    inverse_noise, sampling_prob = jnp.broadcast_arrays(
        1 / noise_multiplier,
        sampling_prob,
    )
    inverse_noise = inverse_noise[..., None]
    sampling_prob = sampling_prob[..., None]

    # The two corrections of the Poisson moment, each rounded up.
    is_representable = inverse_noise * (2 * inverse_noise + _CUT) < _LARGEST_EXPONENT
    safe_inverse_noise = jnp.where(is_representable, inverse_noise, 1.0)
    gain = _gain(safe_inverse_noise, sampling_prob, orders) * (1 + _ROUNDING)
    loss = _loss(safe_inverse_noise, sampling_prob, orders) * (1 - _ROUNDING)
    change = gain - loss

    # log(A + change) and log(2 A - 1), without overflow.
    relative_change = jnp.where(is_representable, change * jnp.exp(-log_poisson), 0.0)
    refined = log_poisson + jnp.log1p(relative_change)
    doubled = log_poisson + jnp.log1p(-jnp.expm1(-log_poisson))
    bound = jnp.where(
        is_representable,
        jnp.minimum(refined, doubled),
        doubled,
    ) * (1 + _ROUNDING)

    # A grows with p, so the closed form at p = 1 caps the bound.
    unsampled = log_moments_without_sampling(inverse_noise, orders) * (1 + _ROUNDING)
    bound = jnp.where(sampling_prob == 0, 0.0, jnp.minimum(bound, unsampled))
    return jnp.where(sampling_prob == 1, unsampled, bound)


def _gain(inverse_noise: Array, sampling_prob: Array, orders: np.ndarray) -> Array:
    """Return an upper bound on E[F_{1-a}(s) 1{s > 0}]; [..., 1] to [..., K]."""
    left_end = 0.5 * inverse_noise
    right_end = 2 * inverse_noise + _CUT
    s, mass, place = _cells(inverse_noise, sampling_prob, left_end, right_end)

    # The mean of the chord over each cell.
    value = _power_remainder(s, 1 - orders[..., None])
    chord = (1 - place) * value[..., :-1] + place * value[..., 1:]
    inside = jnp.sum(mass * chord, axis=-1)

    # The tail right of the last cell.
    curvature = 0.5 * orders * sampling_prob * jnp.exp(inverse_noise * inverse_noise)
    tail = (orders - 1) * sampling_prob * jnp.minimum(curvature, 1.0) * _CUT_MASS
    return inside + tail


def _loss(inverse_noise: Array, sampling_prob: Array, orders: np.ndarray) -> Array:
    """Return a lower bound on E[F_a(s) 1{s < 0}]; [..., 1] to [..., K]."""
    s, mass, place = _cells(inverse_noise, sampling_prob, -_CUT, 0.5 * inverse_noise)
    mean = (1 - place) * s[..., :-1] + place * s[..., 1:]
    value = _power_remainder(jnp.minimum(mean, 0.0), orders[..., None])
    return jnp.sum(mass * value, axis=-1)


def _cells(
    inverse_noise: Array,
    sampling_prob: Array,
    left_end: Array | float,
    right_end: Array,
) -> tuple[Array, Array, Array]:
    """Return (s, mass, place) of the N equal cells of u between two ends.

    s [..., 1, N+1] is taken at the edges of the cells. The mass [..., 1, N] is that of u, and the place in [0, 1] is
    where the mean of s lies between the two edges of the cell.
    """
    width = (right_end - left_end) / _NUM_CELLS
    u = (left_end + width * np.arange(_NUM_CELLS + 1))[..., None, :]
    inverse_noise = inverse_noise[..., None]
    sampling_prob = sampling_prob[..., None]
    width = width[..., None]

    # s / p at the edges, and its mean over each cell.
    shift = jnp.expm1(inverse_noise * u - 0.5 * inverse_noise * inverse_noise)
    mass = _mass(u)
    mean = _mass(u - inverse_noise) / mass - 1

    # Twice the rounding of the quotient, whose numerator is a difference of numbers that agree to about h width.
    rounding = _ROUNDING / (inverse_noise * width)
    low = shift[..., :-1]
    high = shift[..., 1:]
    # Far to the left both ends round to -1, and any place will do.
    place = (mean - low) / jnp.where(high > low, high - low, 1.0) + rounding
    return sampling_prob * shift, mass, jnp.clip(place, 0.0, 1.0)


def _mass(u: Array) -> Array:
    """Return Phi(u_{i+1}) - Phi(u_i), accurate relative to itself."""
    left, right = u[..., :-1], u[..., 1:]
    in_right_tail = ndtr(-left) - ndtr(-right)
    in_left_tail = ndtr(right) - ndtr(left)
    return jnp.where(left > 0, in_right_tail, in_left_tail)


def _power_remainder(s: Array, orders: np.ndarray) -> Array:
    """Return F_b(s) = (1+s)^b - 1 - b s without cancellation, where b is the order."""
    is_tiny = jnp.abs(s) * (1 + jnp.abs(orders)) < 0.01
    series = power_remainder_series(jnp, jnp.where(is_tiny, s, 0.0), orders)
    direct = jnp.expm1(orders * jnp.log1p(s)) - orders * s
    return jnp.where(is_tiny, series, direct)
