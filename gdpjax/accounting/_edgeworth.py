r"""The Edgeworth refinement of the central limit theorem for Poisson-subsampled Gaussian steps: an estimate.

The privacy loss of a run is L = sum of T independent copies of the loss of one step, and for each direction

    delta(epsilon) = E[(1 - e^{epsilon - L})_+],    L under the law that is in the numerator of its likelihood ratio.

The central limit theorem replaces L by a Gaussian. Here the cumulants k1 .. k4 of one step's loss are computed, and L
gets the Edgeworth density, with v = T k2, z = (l - T k1) / sqrt(v), s3 = k3 / (k2^{3/2} sqrt(T)), s4 = k4 / (k2^2 T),

    phi(z) (1 + s3/6 He3(z) + s4/24 He4(z) + s3^2/72 He6(z)).

The first correction is of order T^{-1/2}, the other two of order 1/T; ``order=1`` keeps the first alone. With
r = sqrt(v), a = (epsilon - T k1) / r and J_k = int_a^inf e^{r(a - z)} phi(z) He_k(z) dz, integration by parts gives,
because phi He_k is minus the derivative of phi He_{k-1},

    J_0 = phi(a) M(a + r),    J_k = phi(a) He_{k-1}(a) - r J_{k-1},
    delta = (Phi(-a) - J_0) + r (s3/6 J_2 + s4/24 J_3 + s3^2/72 J_5),

M the Mills ratio. epsilon comes from bisection. Where s3 is not small the corrected delta need not be monotone or even
positive; the bisection then still finds a crossing and the answer is an estimate of little worth, as is the CLT's.

*Cumulants.* With h = 1/noise_multiplier, p = sampling_prob, w = exp(h u - h^2/2) and S = p (w - 1), the loss is
log(1 + S) under the density (1 + S) phi(u) ("remove") and -log(1 + S) under phi(u) ("add"). The means are integrals of
the non-negative (1 + S) log(1 + S) - S and S - log(1 + S), as power series where S is small, by the trapezoid rule,
which converges geometrically, over all u that matter to the fourth moment: up to 5 h, but no further than h once
p w > 1 (where the loss is linear in u), and 9 on both sides.
"""

import math

import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtr

from gdpjax._core.checks import COUNT, NONNEGATIVE, POSITIVE, UNIT
from gdpjax._core.normal import LOG_SQRT_TWO_PI, mills_difference, mills_ratio
from gdpjax._core.precision import float64_function, map_chunks
from gdpjax._core.roots import bisect, middle
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.accounting._gdp import DELTA

_NUM_NODES = 1024
_CUT = 9.0
_SMALLEST_NOISE = 1 / 400  # below it the nodes are too far apart
_SMALLEST_VARIANCE = 1e-280  # below it the release tells nothing that float64 can hold
_LARGEST_SCORE = 1e6
_NUM_HALVINGS = 80


@float64_function(noise_multiplier=POSITIVE, sampling_prob=UNIT, num_steps=COUNT, delta=DELTA)
def edgeworth_epsilon(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, delta: Array, *, order: int = 2
) -> Array:
    """The epsilon of DP-SGD by Edgeworth expansion: an asymptotic estimate, never a guarantee.

    Poisson sampling, add-or-remove-one neighbours, the larger of the two directions.

    Formula: the root epsilon >= 0 of `edgeworth_delta` = delta, per direction.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        delta: probability strictly between 0 and 1.
        order: 1 for the skewness correction alone, 2 with the next order in 1/num_steps.

    Returns:
        epsilon >= 0 in nats, of the broadcast shape; asymptotic: it may understate the true epsilon. Within 1% where
        the skewness of one step's loss / sqrt(num_steps) is below 0.1, far off where it is above 1. inf for noise
        multipliers below 1/400.

    Raises:
        ValueError: an argument outside its range, an unknown order, or shapes that do not broadcast.

    Reference: Zheng, Dong, Long and Su, arXiv:2003.04493, for the idea; the form used is derived in the module.

    >>> print(f"{edgeworth_epsilon(1.3, 256 / 60000, 10000, 1e-5):.3f}")  # the truth is 1.514, the CLT says 1.483
    1.514
    """
    _check_order(order)

    def kernel(noise: Array, prob: Array, steps: Array, probability: Array) -> Array:
        usable, cumulants = _cumulants(noise, prob)
        epsilon = _invert(cumulants, steps, probability, order).max(axis=0)
        return jnp.where(prob > 0, jnp.where(usable, epsilon, jnp.inf), 0.0)

    return map_chunks(kernel, noise_multiplier, sampling_prob, num_steps, delta)


@float64_function(noise_multiplier=POSITIVE, sampling_prob=UNIT, num_steps=COUNT, epsilon=NONNEGATIVE)
def edgeworth_delta(
    noise_multiplier: Array, sampling_prob: Array, num_steps: Array, epsilon: Array, *, order: int = 2
) -> Array:
    """The delta of DP-SGD by Edgeworth expansion: an asymptotic estimate, never a guarantee.

    Poisson sampling, add-or-remove-one neighbours, the larger of the two directions.

    Formula: delta = (Phi(-a) - J_0) + r (s3/6 J_2 + s4/24 J_3 + s3^2/72 J_5), see the module docstring.

    Args:
        noise_multiplier: stddev of the noise / sensitivity, > 0.
        sampling_prob: probability in [0, 1] that an example joins a batch.
        num_steps: whole number >= 1 of steps.
        epsilon: privacy loss, finite and >= 0, in nats.
        order: 1 for the skewness correction alone, 2 with the next order in 1/num_steps.

    Returns:
        delta in [0, 1], of the broadcast shape; asymptotic: it may understate the true delta. 1 for noise multipliers
        below 1/400.

    Raises:
        ValueError: an argument outside its range, an unknown order, or shapes that do not broadcast.

    Reference: Zheng, Dong, Long and Su, arXiv:2003.04493, for the idea; the form used is derived in the module.

    >>> print(f"{edgeworth_delta(1.3, 256 / 60000, 10000, 1.514):.2e}")
    1.00e-05
    """
    _check_order(order)

    def kernel(noise: Array, prob: Array, steps: Array, loss: Array) -> Array:
        usable, cumulants = _cumulants(noise, prob)
        log_delta = _log_delta(cumulants, steps, loss, order).max(axis=0)
        return jnp.where(prob > 0, jnp.where(usable, jnp.exp(jnp.minimum(log_delta, 0.0)), 1.0), 0.0)

    return map_chunks(kernel, noise_multiplier, sampling_prob, num_steps, epsilon)


def _check_order(order: int) -> None:
    if order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {shown(order)}")


def _cumulants(noise_multiplier: Array, sampling_prob: Array) -> tuple[Array, tuple[Array, ...]]:
    """Whether the noise is large enough, and (k1, k2, k3, k4) of one step's loss, [...] to [2, ...]: remove and add."""
    usable = noise_multiplier >= _SMALLEST_NOISE
    h, p = jnp.where(usable, 1 / noise_multiplier, 1.0)[..., None], jnp.where(sampling_prob > 0, sampling_prob, 1.0)
    p = p[..., None]
    right = jnp.maximum(h, jnp.minimum(5 * h, h / 2 - jnp.log(p) / h)) + _CUT
    spacing = (right + _CUT) / (_NUM_NODES - 1)
    u = spacing * jnp.arange(_NUM_NODES) - _CUT
    exponent = h * u - 0.5 * h * h
    shift = p * jnp.expm1(jnp.minimum(exponent, 700.0))
    small = jnp.abs(shift) < 1e-3
    # log(1 - p + p w) without overflow, and without cancellation where S is small
    general = jnp.logaddexp(jnp.log1p(-p), jnp.log(p) + exponent)
    loss = jnp.where(small, jnp.log1p(jnp.where(small, shift, 0.0)), general)
    low, high = (jnp.exp(-0.5 * (u - center) ** 2) * spacing / math.sqrt(2 * math.pi) for center in (0.0, h))
    s = jnp.where(small, shift, 0.0)
    mixture = (1 - p) * low + p * high
    tiny = low * s * s
    mean_remove = jnp.where(
        small, tiny * (1 / 2 - s * (1 / 6 - s * (1 / 12 - s / 20))), mixture * loss - p * (high - low)
    )
    mean_add = jnp.where(small, tiny * (1 / 2 - s * (1 / 3 - s * (1 / 4 - s / 5))), p * (high - low) - low * loss)
    mean = jnp.stack([mean_remove.sum(axis=-1), mean_add.sum(axis=-1)])
    return usable, _central(jnp.stack([mixture, low]), jnp.stack([loss, -loss]), mean)


def _central(weight: Array, loss: Array, mean: Array) -> tuple[Array, ...]:
    centred = loss - mean[..., None]
    second, third, fourth = ((weight * centred**power).sum(axis=-1) for power in (2, 3, 4))
    return mean, second, third, fourth - 3 * second * second


def _log_delta(cumulants: tuple[Array, ...], num_steps: Array, epsilon: Array, order: int) -> Array:
    """log of the Edgeworth delta of each direction, -inf where it is not positive."""
    mean, variance, third, fourth = cumulants
    some = variance > _SMALLEST_VARIANCE
    variance = jnp.where(some, variance, 1.0)
    skewness = third / variance / jnp.sqrt(variance) / jnp.sqrt(num_steps)
    kurtosis = fourth / variance / variance / num_steps
    r = jnp.sqrt(variance) * jnp.sqrt(num_steps)
    a = jnp.clip((epsilon - num_steps * mean) / r, -_LARGEST_SCORE, _LARGEST_SCORE)
    # Everything is divided by e^{-max(a, 0)^2 / 2}, so that nothing underflows in the tail.
    scale = -0.5 * jnp.maximum(a, 0.0) ** 2
    density = jnp.exp(-0.5 * a * a - LOG_SQRT_TWO_PI - scale)
    tail = density * _mills(a + r)
    _, _, difference = mills_difference(jnp.maximum(a, -1.0), r, jnp.maximum(a, -1.0) + r)
    leading = jnp.where(a >= -1, density * difference, ndtr(-a) - tail)
    polynomials = (1.0, a, a**2 - 1, a**3 - 3 * a, a**4 - 6 * a**2 + 3)
    integrals = [tail]
    for polynomial in polynomials:
        integrals.append(density * polynomial - r * integrals[-1])
    correction = r * skewness / 6 * integrals[2]
    if order == 2:
        correction += r * (kurtosis / 24 * integrals[3] + skewness**2 / 72 * integrals[5])
    total = leading + correction
    positive = some & (total > 0)
    return jnp.where(positive, jnp.log(jnp.where(positive, total, 1.0)) + scale, -jnp.inf)


def _mills(y: Array) -> Array:
    """Phi(-y) / phi(y), large but finite for y far below 0."""
    inside = y >= -1
    outside = jnp.exp(jnp.minimum(log_ndtr(-y) + 0.5 * y * y + LOG_SQRT_TWO_PI, 700.0))
    return jnp.where(inside, mills_ratio(jnp.where(inside, y, 0.0)), outside)


def _invert(cumulants: tuple[Array, ...], num_steps: Array, delta: Array, order: int) -> Array:
    log_target = jnp.log(delta)
    end = num_steps * jnp.abs(cumulants[0]) + 45 * jnp.sqrt(cumulants[1]) * jnp.sqrt(num_steps)

    def small(epsilon: Array) -> Array:
        return _log_delta(cumulants, num_steps, epsilon, order) <= log_target

    found = bisect(small, end, jnp.zeros_like(end), midpoint=middle, num_iterations=_NUM_HALVINGS)
    return jnp.where(found.last_held, 0.0, found.holds)
