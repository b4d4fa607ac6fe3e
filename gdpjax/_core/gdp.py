r"""Kernels of the exact duality between mu-GDP and (epsilon, delta), in float64 or float32.

    gdp_delta(epsilon, mu)          # JAX, with derivatives
    delta_kernel(np, epsilon, mu)   # NumPy

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

from gdpjax._core.normal import (
    LOG_SQRT_TWO_PI,
    exact_quotient,
    is_single,
    log_and_density,
    mills_difference,
)
from gdpjax._core.trees import two_sum
from gdpjax._core.types import Array


class _Range(NamedTuple):
    """The numbers that a precision has.

    Attributes:
      largest: where mu and epsilon / mu are cut, so that their squares stay finite; this raises delta.
      smallest: the least argument of a logarithm.
    """

    largest: float
    smallest: float


_FLOAT64 = _Range(1e153, 1e-307)
_FLOAT32 = _Range(1e18, 1e-37)

_LARGEST_EXPONENT = 300.0
_NUM_NEWTON_STEPS = 10
"""The worst of 1.2e6 points of a wide grid needs 8; see tests/core/test_gdp.py."""


def _range(x: Any) -> _Range:
    return _FLOAT32 if is_single(x) else _FLOAT64


class _Parts(NamedTuple):
    """The terms of delta, in the notation of the module docstring; all of one shape.

    Attributes:
      log_density: log phi(x).
      density: phi(x).
      mills_upper: M(y).
      body: delta / phi(x), used for x >= -1.
      defect: 1 - delta, used for x < -1.
      in_body: bool, x >= -1.
    """

    log_density: Array
    density: Array
    mills_upper: Array
    body: Array
    defect: Array
    in_body: Array


def _parts(xp: Any, epsilon: Array, mu: Array) -> _Parts:
    """Return the terms of delta(epsilon), by NumPy or jax.numpy."""
    largest = _range(mu).largest
    mu = xp.minimum(mu, largest)
    mu = xp.where(mu > 0, mu, 1.0)
    is_steep = epsilon > largest * mu
    epsilon = xp.where(is_steep, largest * mu, epsilon)

    # x = epsilon / mu - mu / 2 as an unevaluated sum hi + lo, and y = x + mu.
    quotient, remainder = exact_quotient(xp, epsilon, mu)
    hi, lo = two_sum(quotient, -0.5 * mu)
    lo = lo + remainder
    log_density, density = log_and_density(xp, hi, lo)

    # M(x) - M(y), or M(-x) + M(y) below -1.
    in_body = hi >= -1
    left = xp.where(in_body, hi + lo, -hi)
    y = quotient + 0.5 * mu
    mills_left, mills_upper, body = mills_difference(left, mu, y)
    defect = density * (mills_left + mills_upper)
    return _Parts(log_density, density, mills_upper, body, defect, in_body)


def _delta_of(xp: Any, parts: _Parts) -> Array:
    return xp.where(parts.in_body, parts.density * parts.body, 1 - parts.defect)


def _log_delta_of(xp: Any, parts: _Parts) -> Array:
    safe_body = xp.maximum(parts.body, _range(parts.body).smallest)
    in_body = parts.log_density + xp.log(safe_body)
    safe_defect = xp.where(parts.in_body, 0.0, parts.defect)
    below = xp.log1p(-safe_defect)
    return xp.where(parts.in_body, in_body, below)


def _log_excess(xp: Any, parts: _Parts, delta: Array, log_delta: Array) -> Array:
    """Return log(delta_of(parts) / delta). Near the root the two logarithms would cancel where delta is small."""
    excess = parts.density * parts.body / delta - 1
    is_close = parts.in_body & (xp.abs(excess) < 0.5)
    by_ratio = xp.log1p(xp.clip(excess, -0.5, 0.5))
    by_difference = _log_delta_of(xp, parts) - log_delta
    return xp.where(is_close, by_ratio, by_difference)


def _log_slopes(xp: Any, parts: _Parts) -> tuple[Array, Array]:
    """Return the derivatives of log delta in epsilon and in mu, from D = delta / phi(x)."""
    below = (1 - parts.defect) / xp.maximum(parts.density, _range(parts.density).smallest)
    in_body = xp.maximum(parts.body, _range(parts.body).smallest)
    ratio = xp.where(parts.in_body, in_body, below)
    return -parts.mills_upper / ratio, 1 / ratio


def _inverse_density(parts: _Parts, delta: Array) -> Array:
    """Return 1 / phi(x) where the parts are those of this delta."""
    if not is_single(delta):
        return jnp.exp(-parts.log_density)
    # x is rounded, which its density shows and its body does not.
    return jnp.where(parts.in_body, parts.body / delta, 1 / parts.density)


def _special(xp: Any) -> Any:
    """Return the module of special functions, SciPy's or JAX's."""
    return jax.scipy.special if xp is jnp else scipy.special


def _newton(xp: Any, step: Callable[[Array], Array], start: Array) -> Array:
    """Return the end of Newton's method from ``start``; NumPy stops when nothing moves any more."""
    if xp is jnp:
        return jax.lax.fori_loop(0, _NUM_NEWTON_STEPS, lambda _, value: step(value), start)
    value = start
    for _ in range(_NUM_NEWTON_STEPS):
        next_value = step(value)
        if np.all(next_value == value):
            break
        value = next_value
    return value


def delta_kernel(xp: Any, epsilon: Array, mu: Array) -> Array:
    """Return `gdp_delta` by NumPy or jax.numpy, without derivatives."""
    delta = _delta_of(xp, _parts(xp, epsilon, mu))
    return xp.where(mu > 0, delta, 0.0)


def epsilon_kernel(xp: Any, delta: Array, rest: Array, mu: Array) -> Array:
    """Return `epsilon_of_share` by NumPy or jax.numpy, without derivatives."""
    near_one = xp.log1p(-xp.minimum(rest, 0.25))
    log_delta = xp.where(rest < 0.25, near_one, xp.log(delta))

    # A start where delta(epsilon) is at most the target: the smaller one of two upper bounds on x.
    largest, smallest = _range(mu)
    capped_mu = xp.clip(mu, smallest, largest)
    half_square = xp.maximum(xp.log(capped_mu) - LOG_SQRT_TWO_PI - log_delta, 0.0)
    x_by_density = xp.sqrt(2 * half_square)
    x_by_tail = -_special(xp).ndtri(delta)
    x = xp.minimum(x_by_tail, x_by_density)
    start = xp.maximum(capped_mu * (x + 0.5 * capped_mu), 0.0)

    def step(epsilon: Array) -> Array:
        parts = _parts(xp, epsilon, capped_mu)
        slope, _slope_in_mu = _log_slopes(xp, parts)
        move = _log_excess(xp, parts, delta, log_delta) / slope
        move = xp.where(slope < 0, move, 0.0)
        return xp.maximum(epsilon - move, 0.0)

    epsilon = _newton(xp, step, start)

    # Where delta(0) = 2 Phi(mu / 2) - 1 is small enough, the answer is 0. Near 1 compare what the two deltas lack of 1.
    is_enough_near_one = rest <= 2 * _special(xp).ndtr(-0.5 * mu)
    is_enough = delta >= delta_kernel(xp, 0.0 * start, mu)
    is_zero = xp.where(rest < 0.25, is_enough_near_one, is_enough)
    epsilon = xp.where(is_zero, 0.0, epsilon)
    return xp.where(mu < largest, epsilon, xp.inf)


def subsampled_epsilon_kernel(xp: Any, delta: Array, sampling_prob: Array, mu: Array) -> Array:
    """Return `subsampled_epsilon` by NumPy or jax.numpy, with derivatives in jax.numpy only."""
    # With probability 1 - p nothing happens: a delta of p covers everything.
    p = sampling_prob
    is_covered = delta >= p

    # The epsilon e' of the mechanism at delta / p.
    share = xp.where(is_covered, 0.5, delta / p)
    rest = xp.where(is_covered, 0.5, (p - delta) / p)
    inner = epsilon_of_share(share, rest, mu) if xp is jnp else epsilon_kernel(xp, share, rest, mu)

    # epsilon = log(1 + p (e^{e'} - 1)), which is e' + log p where e^{e'} is large.
    moderate = xp.log1p(p * xp.expm1(xp.minimum(inner, _LARGEST_EXPONENT)))
    large = inner + xp.log(p)
    epsilon = xp.where(inner < _LARGEST_EXPONENT, moderate, large)
    return xp.where(is_covered, 0.0, epsilon)


def mu_kernel(xp: Any, epsilon: Array, delta: Array) -> Array:
    """Return `gdp_mu` by NumPy or jax.numpy, without derivatives."""
    log_delta = xp.log(delta)

    # A start at which delta_mu is at most the target: the larger one of two lower bounds. The first one is
    # sqrt(z^2 + 2 epsilon) - z, without cancellation.
    z = -_special(xp).ndtri(delta)
    root = xp.sqrt(z * z + 2 * epsilon)
    mu_by_tail = xp.where(z > 0, 2 * epsilon / (xp.abs(z) + root), root - z)
    mu_by_density = xp.exp(log_delta + LOG_SQRT_TWO_PI)
    start = xp.maximum(mu_by_tail, mu_by_density)

    def step(mu: Array) -> Array:
        # In log mu.
        parts = _parts(xp, epsilon, mu)
        _slope_in_epsilon, slope_in_mu = _log_slopes(xp, parts)
        slope = mu * slope_in_mu
        move = -_log_excess(xp, parts, delta, log_delta) / slope
        move = xp.where(slope > 0, xp.clip(move, -2.0, 50.0), 0.0)
        return mu * xp.exp(move)

    return _newton(xp, step, start)


@jax.custom_jvp
def gdp_delta(epsilon: Array, mu: Array) -> Array:
    """Return delta(epsilon) of mu-GDP; mu = 0 gives 0 and mu = inf gives 1."""
    return delta_kernel(jnp, epsilon, mu)


@gdp_delta.defjvp
def _gdp_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, mu = primals
    epsilon_tangent, mu_tangent = tangents
    parts = _parts(jnp, epsilon, mu)

    # At mu = 0 the one-sided derivatives are 0, except phi(0) in mu at epsilon = 0.
    in_epsilon = jnp.where(mu > 0, -parts.density * parts.mills_upper, 0.0)
    at_zero = jnp.where(epsilon == 0, float(np.exp(-LOG_SQRT_TWO_PI)), 0.0)
    in_mu = jnp.where(mu > 0, parts.density, at_zero)
    return gdp_delta(epsilon, mu), in_epsilon * epsilon_tangent + in_mu * mu_tangent


@jax.custom_jvp
def gdp_log_delta(epsilon: Array, mu: Array) -> Array:
    """Return log delta(epsilon) of mu-GDP; mu = 0 gives -inf."""
    log_delta = _log_delta_of(jnp, _parts(jnp, epsilon, mu))
    return jnp.where(mu > 0, log_delta, -jnp.inf)


@gdp_log_delta.defjvp
def _gdp_log_delta_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, mu = primals
    epsilon_tangent, mu_tangent = tangents
    in_epsilon, in_mu = _log_slopes(jnp, _parts(jnp, epsilon, mu))
    in_epsilon = jnp.where(mu > 0, in_epsilon, 0.0)
    in_mu = jnp.where(mu > 0, in_mu, 0.0)
    return gdp_log_delta(epsilon, mu), in_epsilon * epsilon_tangent + in_mu * mu_tangent


def gdp_epsilon(delta: Array, mu: Array) -> Array:
    """Return the smallest epsilon >= 0 with delta(epsilon) <= delta; mu = inf gives inf."""
    return epsilon_of_share(delta, 1.0 - delta, mu)


def subsampled_epsilon(delta: Array, sampling_prob: Array, mu: Array) -> Array:
    """Return the smallest epsilon >= 0 of a mu-GDP Gaussian mechanism on a Poisson sample, for 0 < delta."""
    return subsampled_epsilon_kernel(jnp, delta, sampling_prob, mu)


@jax.custom_jvp
def epsilon_of_share(delta: Array, rest: Array, mu: Array) -> Array:
    """Return `gdp_epsilon` where ``rest`` = 1 - delta is known better than from delta."""
    return epsilon_kernel(jnp, delta, rest, mu)


@epsilon_of_share.defjvp
def _epsilon_of_share_jvp(primals: tuple, tangents: tuple) -> tuple:
    delta, rest, mu = primals
    delta_tangent, _rest_tangent, mu_tangent = tangents
    epsilon = epsilon_of_share(delta, rest, mu)
    parts = _parts(jnp, epsilon, mu)
    in_mu = 1 / parts.mills_upper
    in_delta = -_inverse_density(parts, delta) * in_mu

    # At the ends of its range epsilon does not move.
    moves = (epsilon > 0) & (epsilon < jnp.inf)
    in_delta = jnp.where(moves, in_delta, 0.0)
    in_mu = jnp.where(moves, in_mu, 0.0)
    return epsilon, in_delta * delta_tangent + in_mu * mu_tangent


@jax.custom_jvp
def gdp_mu(epsilon: Array, delta: Array) -> Array:
    """Return the mu whose delta(epsilon) is delta, the largest mu that implies (epsilon, delta)-DP."""
    return mu_kernel(jnp, epsilon, delta)


@gdp_mu.defjvp
def _gdp_mu_jvp(primals: tuple, tangents: tuple) -> tuple:
    epsilon, delta = primals
    epsilon_tangent, delta_tangent = tangents
    mu = gdp_mu(epsilon, delta)
    parts = _parts(jnp, epsilon, mu)
    in_epsilon = parts.mills_upper
    in_delta = _inverse_density(parts, delta)
    return mu, in_epsilon * epsilon_tangent + in_delta * delta_tangent
