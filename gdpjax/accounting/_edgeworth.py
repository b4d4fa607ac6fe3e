r"""The Edgeworth refinement of the central limit theorem for Poisson-subsampled Gaussian steps: an estimate.

`edgeworth_epsilon` and `edgeworth_delta` cost about as much as the central limit theorem's formulas (`_clt`) and are
usually far closer to the truth. They are estimates and never a guarantee.

The privacy loss of a run is a sum L of T independent copies of the loss of one step, and for each direction

    delta(epsilon) = E[(1 - e^{epsilon - L})_+],    L under the law that is in the numerator of its likelihood ratio.

**The expansion.** The central limit theorem replaces L by a Gaussian. Here the cumulants k1 .. k4 of one step's loss
are computed. With v = T k2, z = (l - T k1) / sqrt(v), s3 = k3 / (k2^{3/2} sqrt(T)) and s4 = k4 / (k2^2 T), L gets the
Edgeworth density

    phi(z) (1 + s3/6 He3(z) + s4/24 He4(z) + s3^2/72 He6(z)).

The first correction is of order T^{-1/2} and the other two are of order 1/T; ``order=1`` keeps the first alone. With
r = sqrt(v), a = (epsilon - T k1) / r and J_k = int_a^inf e^{r(a - z)} phi(z) He_k(z) dz, integration by parts gives,
because phi He_k is minus the derivative of phi He_{k-1},

    J_0 = phi(a) M(a + r),    J_k = phi(a) He_{k-1}(a) - r J_{k-1},
    delta = (Phi(-a) - J_0) + r (s3/6 J_2 + s4/24 J_3 + s3^2/72 J_5),

where M is the Mills ratio. Bisection gives epsilon. Where s3 is not small the corrected delta need not be monotone or
even positive. The bisection still finds a crossing there, but the answer is an estimate of little worth.

**Cumulants.** With h = 1/noise_multiplier, p = sampling_prob, w = exp(h u - h^2/2) and S = p (w - 1), the loss is
log(1 + S) under the density (1 + S) phi(u) ("remove") and -log(1 + S) under phi(u) ("add"). The means are integrals of
the non-negative (1 + S) log(1 + S) - S and S - log(1 + S), as power series where S is small. The trapezoid rule takes
them, which converges geometrically, over all u that matter to the fourth moment: up to 5 h, but no further than h once
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
_LARGEST_EXPONENT = 700.0
_NUM_HALVINGS = 80


@float64_function(noise_multiplier=POSITIVE, sampling_prob=UNIT, num_steps=COUNT, delta=DELTA)
def edgeworth_epsilon(
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
    delta: Array,
    *,
    order: int = 2,
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

    def kernel(
        noise_multiplier: Array,
        sampling_prob: Array,
        num_steps: Array,
        delta: Array,
    ) -> Array:
        is_usable, cumulants = _cumulants(noise_multiplier, sampling_prob)
        epsilon = _invert(cumulants, num_steps, delta, order).max(axis=0)
        epsilon = jnp.where(is_usable, epsilon, jnp.inf)
        return jnp.where(sampling_prob > 0, epsilon, 0.0)

    return map_chunks(kernel, noise_multiplier, sampling_prob, num_steps, delta)


@float64_function(
    noise_multiplier=POSITIVE,
    sampling_prob=UNIT,
    num_steps=COUNT,
    epsilon=NONNEGATIVE,
)
def edgeworth_delta(
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
    epsilon: Array,
    *,
    order: int = 2,
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

    def kernel(
        noise_multiplier: Array,
        sampling_prob: Array,
        num_steps: Array,
        epsilon: Array,
    ) -> Array:
        is_usable, cumulants = _cumulants(noise_multiplier, sampling_prob)
        log_delta = _log_delta(cumulants, num_steps, epsilon, order).max(axis=0)
        delta = jnp.exp(jnp.minimum(log_delta, 0.0))
        delta = jnp.where(is_usable, delta, 1.0)
        return jnp.where(sampling_prob > 0, delta, 0.0)

    return map_chunks(kernel, noise_multiplier, sampling_prob, num_steps, epsilon)


def _check_order(order: int) -> None:
    """Raise ValueError for any order of the expansion but 1 and 2."""
    if isinstance(order, bool) or order not in (1, 2):
        raise ValueError(f"order must be 1 or 2, got {shown(order)}")


def _cumulants(
    noise_multiplier: Array,
    sampling_prob: Array,
) -> tuple[Array, tuple[Array, ...]]:
    """Return whether the noise is large enough [...], and the cumulants (k1, k2, k3, k4) of one step's loss.

    Each cumulant is [2, ...], of the directions "remove" and "add".
    """
    is_usable = noise_multiplier >= _SMALLEST_NOISE
    inverse_noise = jnp.where(is_usable, 1 / noise_multiplier, 1.0)[..., None]
    prob = jnp.where(sampling_prob > 0, sampling_prob, 1.0)[..., None]

    # The nodes of the trapezoid rule, as far as the fourth moment matters.
    largest_mean = jnp.minimum(5 * inverse_noise, inverse_noise / 2 - jnp.log(prob) / inverse_noise)
    right_end = jnp.maximum(inverse_noise, largest_mean) + _CUT
    spacing = (right_end + _CUT) / (_NUM_NODES - 1)
    u = spacing * jnp.arange(_NUM_NODES) - _CUT

    # The loss log(1 + S) = log(1 - p + p w) without overflow, and without cancellation where S is small.
    exponent = inverse_noise * u - 0.5 * inverse_noise * inverse_noise
    shift = prob * jnp.expm1(jnp.minimum(exponent, _LARGEST_EXPONENT))
    is_small = jnp.abs(shift) < 1e-3
    s = jnp.where(is_small, shift, 0.0)
    general = jnp.logaddexp(jnp.log1p(-prob), jnp.log(prob) + exponent)
    loss = jnp.where(is_small, jnp.log1p(s), general)

    # The weights of the nodes under N(0, 1), under N(h, 1) and under the mixture of the two.
    without = _node_weights(u, 0.0, spacing)
    with_example = _node_weights(u, inverse_noise, spacing)
    mixture = (1 - prob) * without + prob * with_example

    # The integrands of the two means, as power series where S is small.
    square = without * s * s
    series_remove = square * (1 / 2 - s * (1 / 6 - s * (1 / 12 - s / 20)))
    series_add = square * (1 / 2 - s * (1 / 3 - s * (1 / 4 - s / 5)))
    difference = prob * (with_example - without)
    mean_remove = jnp.where(is_small, series_remove, mixture * loss - difference)
    mean_add = jnp.where(is_small, series_add, difference - without * loss)

    mean = jnp.stack([mean_remove.sum(axis=-1), mean_add.sum(axis=-1)])
    weights = jnp.stack([mixture, without])
    losses = jnp.stack([loss, -loss])
    return is_usable, _central_cumulants(weights, losses, mean)


def _node_weights(u: Array, center: Array | float, spacing: Array) -> Array:
    """Return the density of N(center, 1) at the nodes u, times their spacing."""
    return jnp.exp(-0.5 * (u - center) ** 2) * spacing / math.sqrt(2 * math.pi)


def _central_cumulants(
    weights: Array,
    losses: Array,
    mean: Array,
) -> tuple[Array, Array, Array, Array]:
    """Return (k1, k2, k3, k4) of a loss with this mean; nodes are on the last axis."""
    centred = losses - mean[..., None]
    second = (weights * centred**2).sum(axis=-1)
    third = (weights * centred**3).sum(axis=-1)
    fourth = (weights * centred**4).sum(axis=-1)
    return mean, second, third, fourth - 3 * second * second


def _log_delta(
    cumulants: tuple[Array, ...],
    num_steps: Array,
    epsilon: Array,
    order: int,
) -> Array:
    """Return the log of the Edgeworth delta of each direction [2, ...], -inf where it is not positive."""
    mean, variance, third, fourth = cumulants
    is_informative = variance > _SMALLEST_VARIANCE
    variance = jnp.where(is_informative, variance, 1.0)

    # s3, s4, r and a of the module docstring.
    skewness = third / variance / jnp.sqrt(variance) / jnp.sqrt(num_steps)
    kurtosis = fourth / variance / variance / num_steps
    stddev = jnp.sqrt(variance) * jnp.sqrt(num_steps)
    score = (epsilon - num_steps * mean) / stddev
    score = jnp.clip(score, -_LARGEST_SCORE, _LARGEST_SCORE)

    # Everything is divided by e^{-max(a, 0)^2 / 2}, so that nothing underflows in the tail.
    scale = -0.5 * jnp.maximum(score, 0.0) ** 2
    density = jnp.exp(-0.5 * score * score - LOG_SQRT_TWO_PI - scale)

    # Phi(-a) - J_0, as a difference of Mills ratios where the terms nearly cancel.
    first_integral = density * _mills(score + stddev)
    right_score = jnp.maximum(score, -1.0)
    _, _, difference = mills_difference(right_score, stddev, right_score + stddev)
    leading = jnp.where(score >= -1, density * difference, ndtr(-score) - first_integral)

    # J_k = phi(a) He_{k-1}(a) - r J_{k-1}.
    hermite_polynomials = (
        1.0,
        score,
        score**2 - 1,
        score**3 - 3 * score,
        score**4 - 6 * score**2 + 3,
    )
    integrals = [first_integral]
    for polynomial in hermite_polynomials:
        integrals.append(density * polynomial - stddev * integrals[-1])

    correction = stddev * skewness / 6 * integrals[2]
    if order == 2:
        second_correction = kurtosis / 24 * integrals[3] + skewness**2 / 72 * integrals[5]
        correction += stddev * second_correction
    total = leading + correction

    is_positive = is_informative & (total > 0)
    log_total = jnp.log(jnp.where(is_positive, total, 1.0)) + scale
    return jnp.where(is_positive, log_total, -jnp.inf)


def _mills(y: Array) -> Array:
    """Return the Mills ratio Phi(-y) / phi(y), large but finite for y far below 0."""
    is_moderate = y >= -1
    moderate = mills_ratio(jnp.where(is_moderate, y, 0.0))
    log_ratio = log_ndtr(-y) + 0.5 * y * y + LOG_SQRT_TWO_PI
    return jnp.where(is_moderate, moderate, jnp.exp(jnp.minimum(log_ratio, _LARGEST_EXPONENT)))


def _invert(
    cumulants: tuple[Array, ...],
    num_steps: Array,
    delta: Array,
    order: int,
) -> Array:
    """Return the epsilon >= 0 of each direction [2, ...] at which the Edgeworth delta is ``delta``, by bisection."""
    mean, variance = cumulants[:2]
    log_target = jnp.log(delta)

    # Beyond 45 standard deviations no positive float64 is left of delta.
    stddevs = 45 * jnp.sqrt(variance) * jnp.sqrt(num_steps)
    largest_epsilon = num_steps * jnp.abs(mean) + stddevs

    def meets_target(epsilon: Array) -> Array:
        return _log_delta(cumulants, num_steps, epsilon, order) <= log_target

    root = bisect(
        meets_target,
        largest_epsilon,
        jnp.zeros_like(largest_epsilon),
        midpoint=middle,
        num_iterations=_NUM_HALVINGS,
    )
    return jnp.where(root.last_held, 0.0, root.holds)
