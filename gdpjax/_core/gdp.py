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

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr, ndtri

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


def _parts(epsilon: Array, mu: Array) -> _Parts:
    mu = jnp.minimum(mu, _LARGEST)
    divisor = jnp.where(mu > 0, mu, 1.0)
    steep = epsilon > _LARGEST * divisor
    quotient, remainder = exact_quotient(jnp.where(steep, _LARGEST * divisor, epsilon), divisor)
    hi, lo = exact_sum(quotient, -0.5 * divisor)
    lo = lo + remainder
    log_density, density = log_and_density(hi, lo)
    in_body = hi >= -1
    left = jnp.where(in_body, hi + lo, -hi)
    mills_left, mills_upper, body = mills_difference(left, divisor, quotient + 0.5 * divisor)
    return _Parts(log_density, density, mills_upper, body, density * (mills_left + mills_upper), in_body)


def _delta_of(parts: _Parts) -> Array:
    return jnp.where(parts.in_body, parts.density * parts.body, 1 - parts.defect)


def _log_delta_of(parts: _Parts) -> Array:
    body = parts.log_density + jnp.log(jnp.maximum(parts.body, _SMALLEST_LOG_ARGUMENT))
    return jnp.where(parts.in_body, body, jnp.log1p(-jnp.where(parts.in_body, 0.0, parts.defect)))


def _log_excess(parts: _Parts, delta: Array, log_target: Array) -> Array:
    """log(delta_of(parts) / delta). Near the root the two logarithms would cancel where delta is small."""
    excess = parts.density * parts.body / delta - 1
    by_ratio = parts.in_body & (jnp.abs(excess) < 0.5)
    return jnp.where(by_ratio, jnp.log1p(jnp.clip(excess, -0.5, 0.5)), _log_delta_of(parts) - log_target)


@jax.custom_jvp
def gdp_delta(epsilon: Array, mu: Array) -> Array:
    """delta(epsilon) of mu-GDP; mu = 0 gives 0 and mu = inf gives 1."""
    return jnp.where(mu > 0, _delta_of(_parts(epsilon, mu)), 0.0)


@gdp_delta.defjvp
def _gdp_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, mu = primals
    parts = _parts(epsilon, mu)
    # At mu = 0 the one-sided derivatives are 0, except phi(0) in mu at epsilon = 0.
    in_epsilon = jnp.where(mu > 0, -parts.density * parts.mills_upper, 0.0)
    at_zero = jnp.where(epsilon == 0, np.exp(-LOG_SQRT_TWO_PI), 0.0)
    in_mu = jnp.where(mu > 0, parts.density, at_zero)
    return gdp_delta(epsilon, mu), in_epsilon * tangents[0] + in_mu * tangents[1]


@jax.custom_jvp
def gdp_log_delta(epsilon: Array, mu: Array) -> Array:
    """log delta(epsilon) of mu-GDP; mu = 0 gives -inf."""
    return jnp.where(mu > 0, _log_delta_of(_parts(epsilon, mu)), -jnp.inf)


@gdp_log_delta.defjvp
def _gdp_log_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, mu = primals
    in_epsilon, in_mu = (jnp.where(mu > 0, slope, 0.0) for slope in _log_slopes(_parts(epsilon, mu)))
    return gdp_log_delta(epsilon, mu), in_epsilon * tangents[0] + in_mu * tangents[1]


def _log_slopes(parts: _Parts) -> tuple[Array, Array]:
    """Derivatives of log delta in epsilon and in mu, from D = delta / phi(x)."""
    left = (1 - parts.defect) / jnp.maximum(parts.density, _SMALLEST_LOG_ARGUMENT)
    ratio = jnp.where(parts.in_body, jnp.maximum(parts.body, _SMALLEST_LOG_ARGUMENT), left)
    return -parts.mills_upper / ratio, 1 / ratio


def gdp_epsilon(delta: Array, mu: Array) -> Array:
    """The smallest epsilon >= 0 with delta(epsilon) <= delta; mu = inf gives inf."""
    return epsilon_of_share(delta, 1.0 - delta, mu)


def subsampled_epsilon(delta: Array, sampling_prob: Array, mu: Array) -> Array:
    """The smallest epsilon >= 0 of a mu-GDP Gaussian mechanism on a Poisson sample, for 0 < delta."""
    p = sampling_prob
    covered = delta >= p  # the mechanism does nothing with probability 1 - p
    share = jnp.where(covered, 0.5, delta / p)
    rest = jnp.where(covered, 0.5, (p - delta) / p)
    inner = epsilon_of_share(share, rest, mu)
    moderate = jnp.log1p(p * jnp.expm1(jnp.minimum(inner, 300.0)))
    value = jnp.where(inner < 300.0, moderate, inner + jnp.log(p))
    return jnp.where(covered, 0.0, value)


@jax.custom_jvp
def epsilon_of_share(delta: Array, rest: Array, mu: Array) -> Array:
    """`gdp_epsilon` where ``rest`` = 1 - delta is known better than delta says."""
    target = jnp.where(rest < 0.25, jnp.log1p(-jnp.minimum(rest, 0.25)), jnp.log(delta))
    capped = jnp.clip(mu, _SMALLEST_LOG_ARGUMENT, _LARGEST)
    x_bound = jnp.sqrt(2 * jnp.maximum(jnp.log(capped) - LOG_SQRT_TWO_PI - target, 0.0))
    start = jnp.maximum(capped * (jnp.minimum(-ndtri(delta), x_bound) + 0.5 * capped), 0.0)

    def step(_: Array, epsilon: Array) -> Array:
        parts = _parts(epsilon, capped)
        slope, _mu_slope = _log_slopes(parts)
        move = _log_excess(parts, delta, target) / slope
        return jnp.maximum(epsilon - jnp.where(slope < 0, move, 0.0), 0.0)

    epsilon = jax.lax.fori_loop(0, _NUM_NEWTON_STEPS, step, start)
    # delta(0) = 2 Phi(mu / 2) - 1, compared where it is far from 1, and otherwise what it lacks of 1.
    close = rest <= 2 * ndtr(-0.5 * mu)
    nothing = jnp.where(rest < 0.25, close, delta >= gdp_delta(jnp.zeros_like(start), mu))
    epsilon = jnp.where(nothing, 0.0, epsilon)
    return jnp.where(mu < _LARGEST, epsilon, jnp.inf)


@epsilon_of_share.defjvp
def _epsilon_of_share_jvp(primals: tuple, tangents: tuple) -> tuple:
    delta, rest, mu = primals
    epsilon = epsilon_of_share(delta, rest, mu)
    parts = _parts(epsilon, mu)
    in_mu = 1 / parts.mills_upper
    in_delta = -jnp.exp(-parts.log_density) * in_mu
    moves = (epsilon > 0) & (epsilon < jnp.inf)
    return epsilon, jnp.where(moves, in_delta, 0.0) * tangents[0] + jnp.where(moves, in_mu, 0.0) * tangents[2]


@jax.custom_jvp
def gdp_mu(epsilon: Array, delta: Array) -> Array:
    """The mu whose delta(epsilon) is delta, i.e. the largest mu that implies (epsilon, delta)-DP."""
    target = jnp.log(delta)
    z = -ndtri(delta)
    root = jnp.sqrt(z * z + 2 * epsilon)
    far = jnp.where(z > 0, 2 * epsilon / (jnp.abs(z) + root), root - z)
    start = jnp.maximum(far, jnp.exp(target + LOG_SQRT_TWO_PI))

    def step(_: Array, mu: Array) -> Array:
        parts = _parts(epsilon, mu)
        slope = mu * _log_slopes(parts)[1]
        move = -_log_excess(parts, delta, target) / slope
        return mu * jnp.exp(jnp.where(slope > 0, jnp.clip(move, -2.0, 50.0), 0.0))

    return jax.lax.fori_loop(0, _NUM_NEWTON_STEPS, step, start)


@gdp_mu.defjvp
def _gdp_mu_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, delta = primals
    mu = gdp_mu(epsilon, delta)
    parts = _parts(epsilon, mu)
    return mu, parts.mills_upper * tangents[0] + jnp.exp(-parts.log_density) * tangents[1]
