r"""Kernels of the exact duality between mu-GDP and (epsilon, delta), in float64.

With x = epsilon/mu - mu/2 and y = x + mu, Mills ratio M and normal density phi, e^epsilon phi(y) = phi(x), so

    delta = Phi(-x) - e^epsilon Phi(-y) = phi(x) (M(x) - M(y)).

For x >= -1 the difference comes from `normal.mills_difference`, which does not cancel. For x < -1 the form
delta = 1 - phi(x) (M(-x) + M(y)) does not either, since the second term is below 1/3, and it is exact as delta -> 1.
Write D = delta / phi(x). The partial derivatives are remarkably simple:

    d delta / d epsilon = -phi(x) M(y),        d delta / d mu = phi(x).

*Inversion in epsilon.* delta is the normal density convolved with (1 - e^{-mu t})_+, hence log-concave in x and so in
epsilon. Newton's method on a concave decreasing function, started where it is already below the target, never
overshoots: it decreases monotonically to the root. A start is any upper bound on x: delta <= Phi(-x) gives
x <= -Phi^-1(delta), and delta <= mu phi(x) (x >= 0) gives x^2 <= 2 log(mu phi(0) / delta); the smaller is taken.

*Inversion in mu.* d D / d log mu >= D because M'' > 0, so d log delta / d log mu = mu / D decreases: log delta is
concave and increasing in log mu, and Newton from a lower bound on mu increases monotonically to the root. The lower
bounds are delta <= Phi(-x), i.e. mu >= sqrt(z^2 + 2 epsilon) - z with z = -Phi^-1(delta), and delta <= mu phi(0).

*A subsampled step.* With probability p the step is a Gaussian mechanism, otherwise nothing happens, and

    delta(epsilon) = p delta_mu(e'),    e^epsilon = 1 + p (e^{e'} - 1).

To invert it, e' is taken at delta_mu = delta / p. Where that is close to 1, e' depends on 1 - delta / p alone, which
the rounded quotient has lost. So the inversion also takes 1 - delta, as (p - delta) / p: the difference of two close
numbers is exact (Sterbenz).

Derivatives of the inverses follow from the implicit function theorem: d epsilon / d mu = 1 / M(y),
d epsilon / d delta = -1 / (phi(x) M(y)), d mu / d epsilon = M(y), d mu / d delta = 1 / phi(x).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.normal import LOG_SQRT_TWO_PI, exact_quotient, exact_sum, log_and_density, mills_difference
from gdpjax._core.types import Array

_LARGEST = 1e153  # mu and epsilon/mu are cut here, so that their squares stay finite
_SMALLEST_LOG_ARGUMENT = 1e-307
_NUM_NEWTON_STEPS = 10  # the worst of 1.2e6 points of a wide grid needs 8; see tests/core/test_gdp.py


class _Parts(NamedTuple):
    log_density: Array  # log phi(x)
    density: Array  # phi(x)
    mills_upper: Array  # M(y)
    body: Array  # delta / phi(x), used for x >= -1
    defect: Array  # 1 - delta, used for x < -1
    in_body: Array  # x >= -1


def _parts(xp: Any, epsilon: Array, mu: Array) -> _Parts:
    mu = xp.minimum(mu, _LARGEST)
    divisor = xp.where(mu > 0, mu, 1.0)
    steep = epsilon > _LARGEST * divisor
    quotient, remainder = exact_quotient(xp, xp.where(steep, _LARGEST * divisor, epsilon), divisor)
    hi, lo = exact_sum(quotient, -0.5 * divisor)
    lo = lo + remainder
    log_density, density = log_and_density(xp, hi, lo)
    in_body = hi >= -1
    left = xp.where(in_body, hi + lo, -hi)
    mills_left, mills_upper, body = mills_difference(left, divisor, quotient + 0.5 * divisor)
    return _Parts(log_density, density, mills_upper, body, density * (mills_left + mills_upper), in_body)


def _delta_of(xp: Any, parts: _Parts) -> Array:
    return xp.where(parts.in_body, parts.density * parts.body, 1 - parts.defect)


def _log_delta_of(xp: Any, parts: _Parts) -> Array:
    body = parts.log_density + xp.log(xp.maximum(parts.body, _SMALLEST_LOG_ARGUMENT))
    return xp.where(parts.in_body, body, xp.log1p(-xp.where(parts.in_body, 0.0, parts.defect)))


def _log_excess(xp: Any, parts: _Parts, delta: Array, log_target: Array) -> Array:
    """log(delta_of(parts) / delta). Near the root the two logarithms would cancel where delta is small."""
    excess = parts.density * parts.body / delta - 1
    by_ratio = parts.in_body & (xp.abs(excess) < 0.5)
    return xp.where(by_ratio, xp.log1p(xp.clip(excess, -0.5, 0.5)), _log_delta_of(xp, parts) - log_target)


def _log_slopes(xp: Any, parts: _Parts) -> tuple[Array, Array]:
    """Derivatives of log delta in epsilon and in mu, from D = delta / phi(x)."""
    left = (1 - parts.defect) / xp.maximum(parts.density, _SMALLEST_LOG_ARGUMENT)
    ratio = xp.where(parts.in_body, xp.maximum(parts.body, _SMALLEST_LOG_ARGUMENT), left)
    return -parts.mills_upper / ratio, 1 / ratio


def _special(xp: Any) -> Any:
    """The special functions of SciPy or of JAX."""
    return jax.scipy.special if xp is jnp else scipy.special


def _repeat(xp: Any, step: Callable[[Array], Array], start: Array) -> Array:
    """Newton steps from ``start``; NumPy stops when nothing moves any more."""
    if xp is jnp:
        return jax.lax.fori_loop(0, _NUM_NEWTON_STEPS, lambda _, value: step(value), start)
    for _ in range(_NUM_NEWTON_STEPS):
        value = step(start)
        if np.all(value == start):
            break
        start = value
    return start


def delta_kernel(xp: Any, epsilon: Array, mu: Array) -> Array:
    """`gdp_delta` by NumPy or jax.numpy, without derivatives."""
    return xp.where(mu > 0, _delta_of(xp, _parts(xp, epsilon, mu)), 0.0)


def epsilon_kernel(xp: Any, delta: Array, rest: Array, mu: Array) -> Array:
    """`epsilon_of_share` by NumPy or jax.numpy, without derivatives."""
    target = xp.where(rest < 0.25, xp.log1p(-xp.minimum(rest, 0.25)), xp.log(delta))
    capped = xp.clip(mu, _SMALLEST_LOG_ARGUMENT, _LARGEST)
    x_bound = xp.sqrt(2 * xp.maximum(xp.log(capped) - LOG_SQRT_TWO_PI - target, 0.0))
    quantile = -_special(xp).ndtri(delta)
    start = xp.maximum(capped * (xp.minimum(quantile, x_bound) + 0.5 * capped), 0.0)

    def step(epsilon: Array) -> Array:
        parts = _parts(xp, epsilon, capped)
        slope, _mu_slope = _log_slopes(xp, parts)
        move = _log_excess(xp, parts, delta, target) / slope
        return xp.maximum(epsilon - xp.where(slope < 0, move, 0.0), 0.0)

    epsilon = _repeat(xp, step, start)
    # delta(0) = 2 Phi(mu / 2) - 1, compared where it is far from 1, and otherwise what it lacks of 1.
    close = rest <= 2 * _special(xp).ndtr(-0.5 * mu)
    nothing = xp.where(rest < 0.25, close, delta >= delta_kernel(xp, 0.0 * start, mu))
    epsilon = xp.where(nothing, 0.0, epsilon)
    return xp.where(mu < _LARGEST, epsilon, xp.inf)


def subsampled_epsilon_kernel(xp: Any, delta: Array, sampling_prob: Array, mu: Array) -> Array:
    """`subsampled_epsilon` by NumPy or jax.numpy, with derivatives in jax.numpy only."""
    p = sampling_prob
    covered = delta >= p  # the mechanism does nothing with probability 1 - p
    share = xp.where(covered, 0.5, delta / p)
    rest = xp.where(covered, 0.5, (p - delta) / p)
    inner = epsilon_of_share(share, rest, mu) if xp is jnp else epsilon_kernel(xp, share, rest, mu)
    moderate = xp.log1p(p * xp.expm1(xp.minimum(inner, 300.0)))
    value = xp.where(inner < 300.0, moderate, inner + xp.log(p))
    return xp.where(covered, 0.0, value)


def mu_kernel(xp: Any, epsilon: Array, delta: Array) -> Array:
    """`gdp_mu` by NumPy or jax.numpy, without derivatives."""
    target = xp.log(delta)
    z = -_special(xp).ndtri(delta)
    root = xp.sqrt(z * z + 2 * epsilon)
    far = xp.where(z > 0, 2 * epsilon / (xp.abs(z) + root), root - z)
    start = xp.maximum(far, xp.exp(target + LOG_SQRT_TWO_PI))

    def step(mu: Array) -> Array:
        parts = _parts(xp, epsilon, mu)
        slope = mu * _log_slopes(xp, parts)[1]
        move = -_log_excess(xp, parts, delta, target) / slope
        return mu * xp.exp(xp.where(slope > 0, xp.clip(move, -2.0, 50.0), 0.0))

    return _repeat(xp, step, start)


@jax.custom_jvp
def gdp_delta(epsilon: Array, mu: Array) -> Array:
    """delta(epsilon) of mu-GDP; mu = 0 gives 0 and mu = inf gives 1."""
    return delta_kernel(jnp, epsilon, mu)


@gdp_delta.defjvp
def _gdp_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, mu = primals
    parts = _parts(jnp, epsilon, mu)
    # At mu = 0 the one-sided derivatives are 0, except phi(0) in mu at epsilon = 0.
    in_epsilon = jnp.where(mu > 0, -parts.density * parts.mills_upper, 0.0)
    at_zero = jnp.where(epsilon == 0, np.exp(-LOG_SQRT_TWO_PI), 0.0)
    in_mu = jnp.where(mu > 0, parts.density, at_zero)
    return gdp_delta(epsilon, mu), in_epsilon * tangents[0] + in_mu * tangents[1]


@jax.custom_jvp
def gdp_log_delta(epsilon: Array, mu: Array) -> Array:
    """log delta(epsilon) of mu-GDP; mu = 0 gives -inf."""
    return jnp.where(mu > 0, _log_delta_of(jnp, _parts(jnp, epsilon, mu)), -jnp.inf)


@gdp_log_delta.defjvp
def _gdp_log_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, mu = primals
    in_epsilon, in_mu = (jnp.where(mu > 0, slope, 0.0) for slope in _log_slopes(jnp, _parts(jnp, epsilon, mu)))
    return gdp_log_delta(epsilon, mu), in_epsilon * tangents[0] + in_mu * tangents[1]


def gdp_epsilon(delta: Array, mu: Array) -> Array:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta; mu = inf gives inf."""
    return epsilon_of_share(delta, 1.0 - delta, mu)


def subsampled_epsilon(delta: Array, sampling_prob: Array, mu: Array) -> Array:
    """The smallest epsilon >= 0 of a mu-GDP Gaussian mechanism on a Poisson sample, for 0 < delta."""
    return subsampled_epsilon_kernel(jnp, delta, sampling_prob, mu)


@jax.custom_jvp
def epsilon_of_share(delta: Array, rest: Array, mu: Array) -> Array:
    """`gdp_epsilon` where ``rest`` = 1 - delta is known better than delta says."""
    return epsilon_kernel(jnp, delta, rest, mu)


@epsilon_of_share.defjvp
def _epsilon_of_share_jvp(primals: tuple, tangents: tuple) -> tuple:
    delta, rest, mu = primals
    epsilon = epsilon_of_share(delta, rest, mu)
    parts = _parts(jnp, epsilon, mu)
    in_mu = 1 / parts.mills_upper
    in_delta = -jnp.exp(-parts.log_density) * in_mu
    moves = (epsilon > 0) & (epsilon < jnp.inf)
    return epsilon, jnp.where(moves, in_delta, 0.0) * tangents[0] + jnp.where(moves, in_mu, 0.0) * tangents[2]


@jax.custom_jvp
def gdp_mu(epsilon: Array, delta: Array) -> Array:
    """The mu whose delta(epsilon) is delta, i.e. the largest mu that implies (epsilon, delta)-DP."""
    return mu_kernel(jnp, epsilon, delta)


@gdp_mu.defjvp
def _gdp_mu_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, delta = primals
    mu = gdp_mu(epsilon, delta)
    parts = _parts(jnp, epsilon, mu)
    return mu, parts.mills_upper * tangents[0] + jnp.exp(-parts.log_density) * tangents[1]
