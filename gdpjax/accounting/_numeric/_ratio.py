"""The likelihood ratio of one step, and what the quadrature has to know of it off the real axis.

One step compares N(0, sigma^2) with the mixture sum_j w_j N(j, sigma^2), w_j = Bin(j; k, p): of a group of k rows j
were drawn (k = 1 is the usual case). In units of sigma, u ~ N(0, 1) under the first, and the ratio of the second to it
is

    r(u) = sum_j w_j e^{v_j},   v_j = j (u - j / (2 sigma)) / sigma,   increasing in u.

**Off the axis**, at x + iy with phi = y / sigma and 0 <= k phi < pi / 2, r = sum_j b_j e^{i j phi} with b_j > 0, a sum
of vectors in the first quadrant. Let psi = arg r, so that sum_j b_j sin(j phi - psi) = 0 and |j phi - psi| < pi / 2.
With d log b_j / dx = j / sigma, r' / r = (1 / sigma) sum_j j b_j e^{i (j phi - psi)} / |r|, hence

    sigma |r| d psi / dx    =  sum_j (j - psi / phi) b_j sin(j phi - psi) >= 0,
    |r| d psi / d phi       =  sum_j j b_j cos(j phi - psi)              >= 0,
    sigma |r| d log|r| / dx =  sum_j j b_j cos(j phi - psi)              >= 0,
    |r| d log|r| / d phi    = -sum_j (j - psi / phi) b_j sin(j phi - psi) <= 0:

arg r grows with x and with |y|; |r| grows with x, falls with |y|, and is r(x) at most.

**Symmetric steps.** Uniform sampling without replacement under replace-one obeys C_p(G_{1/sigma}), k = 1, which is the
mixture's curve above loss 0 and its mirror image below (Dong, Roth and Su, arXiv:1905.02383, Section 4). As a pair, P
has the mixture's outcomes with L = log r > 0, i.e. u > u0 = 1 / (2 sigma); for each of them one with loss -L and
probability e^{-L} times as large, i.e. that under N(0, 1); and the rest, probability 1 - P(U > u0) - Q(U > u0) = (1 -
p) (1 - 2 Phi(-u0)), at loss 0. So A(z) = integral_{u0}^inf phi (r^{z+1} + r^{-z}) + rest.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import erf, logsumexp, xlog1py, xlogy

from gdpjax._core.types import Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Step:
    """One kind of step, per phase of the run, in one direction. Arrays are scalars, or [J] for J phases.

    ``sign`` is +1 where L = log r and P is the mixture ("remove"), -1 where L = -log r and P = N(0, 1) ("add"). A
    symmetric step has both parts, and ``sign`` says nothing. ``group_size`` is k, at most ``largest_group``, which is
    static: it is the number of components to compute with.
    """

    noise_multiplier: Array
    sampling_prob: Array
    num_steps: Array
    sign: Array
    group_size: Array
    largest_group: int = dataclasses.field(default=1, metadata={"static": True})
    symmetric: bool = dataclasses.field(default=False, metadata={"static": True})


def parts(step: Step) -> tuple[Step, ...]:
    """The one-signed parts of which a step's moments are the sum."""
    if not step.symmetric:
        return (step,)
    return tuple(dataclasses.replace(step, sign=jnp.full_like(step.sign, sign)) for sign in (1.0, -1.0))


def rest(step: Step) -> Array:
    """The probability of loss 0 in a symmetric step, outside its parts."""
    return (1.0 - step.sampling_prob) * erf(0.5 / step.noise_multiplier / np.sqrt(2.0))


def log_ratio(u: Array, step: Step) -> Array:
    """log r(u): log1p near zero, a sum of positive terms elsewhere; its error is `log_ratio_error`."""
    if step.largest_group > 1:
        return _log_group_ratio(u, step)
    sigma, p = step.noise_multiplier, step.sampling_prob
    v = (u - 0.5 / sigma) / sigma
    moderate = jnp.minimum(v, 300.0)
    excess = p * jnp.expm1(moderate)
    near = jnp.abs(excess) < 0.25  # XLA's log1p loses digits below -0.4
    direct = jnp.log((1.0 - p) + p * jnp.exp(moderate))
    value = jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), direct)
    return jnp.where(v > 300.0, v + jnp.log(p), value)


def exponents(u: Array, step: Step) -> tuple[Array, Array]:
    """log w_j [largest_group + 1], -inf beyond k, and v_j, on a new last axis."""
    k, j = step.group_size, np.arange(step.largest_group + 1.0)
    if step.largest_group == 1:
        log_w = xlogy(j, step.sampling_prob) + xlog1py(1.0 - j, -step.sampling_prob)
    else:
        rows = np.arange(step.largest_group + 1)
        with np.errstate(divide="ignore"):
            binomial = np.log([[float(math.comb(n, i)) for i in rows] for n in rows])
        log_p, log_q = xlogy(j, step.sampling_prob), xlog1py(jnp.maximum(k - j, 0.0), -step.sampling_prob)
        log_w = jnp.asarray(binomial)[jnp.asarray(k, np.int32)] + log_p + log_q
    return log_w, j * (u[..., None] - 0.5 * j / step.noise_multiplier) / step.noise_multiplier


def _log_group_ratio(u: Array, step: Step) -> Array:
    log_w, v = exponents(u, step)
    excess = jnp.sum(jnp.exp(log_w) * jnp.expm1(jnp.minimum(v, 300.0)), axis=-1)
    near = jnp.abs(excess) < 0.25
    return jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), logsumexp(log_w + v, axis=-1))


def log_ratio_error(u: Array, step: Step, ell: Array) -> Array:
    """The absolute error of ``ell`` = log r(u) for given u, in ulp: 12 |ell|, and for k > 1 what the sums cancel.

    Each log w_j and v_j is right to a few ulp of its size; near r = 1 the terms are w_j (e^{v_j} - 1), whose signs
    differ.
    """
    if step.largest_group == 1:
        return 12.0 * jnp.abs(ell)
    log_w, v = exponents(u, step)
    size = 16.0 + 2.0 * step.largest_group + jnp.where(log_w > -jnp.inf, 4.0 * jnp.abs(log_w), 0.0) + 8.0 * jnp.abs(v)
    share = jnp.exp(jnp.minimum(log_w + v - ell[..., None], 0.0))
    near = jnp.abs(jnp.expm1(ell)) < 0.24
    lone = jnp.exp(log_w) * jnp.abs(jnp.expm1(jnp.minimum(v, 300.0))) * 1.5
    weight = jnp.where(near[..., None], lone, share + jnp.minimum(lone, 2.0))
    return 12.0 * jnp.abs(ell) + jnp.sum(size * weight, axis=-1)


def posterior_mean(u: Array, step: Step, ell: Array) -> Array:
    """The mean of j given u, sum_j j w_j e^{v_j} / r: the slope of log r, times sigma."""
    if step.largest_group == 1:
        v = (u - 0.5 / step.noise_multiplier) / step.noise_multiplier
        return jnp.exp(jnp.minimum(jnp.log(step.sampling_prob) + v - ell, 0.0))
    log_w, v = exponents(u, step)
    share = jnp.exp(jnp.minimum(log_w + v - ell[..., None], 0.0))
    return jnp.minimum(jnp.sum(np.arange(step.largest_group + 1.0) * share, axis=-1), step.group_size)


def largest_height(step: Step) -> Array:
    """The y below which the statements of the module docstring hold."""
    return 0.499 * np.pi * step.noise_multiplier / step.group_size


def argument(x: Array, y: Array, step: Step) -> Array:
    """arg r(x + iy) for 0 <= y <= `largest_height`, divided through by the largest term so that nothing overflows."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    if step.largest_group > 1:
        cos, sin, _ = _phasor(x, y, step)
        return jnp.arctan2(sin, cos) * (1.0 + 1e-9)
    v = (x - 0.5 / sigma) / sigma
    scale = jnp.exp(-jnp.abs(v))
    one, ev = jnp.where(v > 0, scale, 1.0), jnp.where(v > 0, 1.0, scale)
    return jnp.arctan2(p * ev * jnp.sin(y / sigma), (1.0 - p) * one + p * ev * jnp.cos(y / sigma))


def log_modulus(x: Array, y: Array, step: Step) -> Array:
    """log |r(x + iy)|, not more, for 0 <= y <= `largest_height`: r^2 less 2 (1 - p) p e^v (1 - cos)."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    ell = log_ratio(x, step)
    if step.largest_group > 1:
        cos, sin, top = _phasor(x, y, step)
        value = top + 0.5 * jnp.log(jnp.maximum(cos**2 + sin**2, 1e-300))
        return jnp.minimum(value, ell) - 1e-15 * log_ratio_error(x, step, ell) - 1e-14
    v = (x - 0.5 / sigma) / sigma
    loss = 4.0 * (1.0 - p) * p * jnp.exp(v - 2.0 * ell) * jnp.sin(0.5 * y / sigma) ** 2
    return ell + 0.5 * jnp.log(jnp.maximum(1.0 - loss, 1e-300))


def _phasor(x: Array, y: Array, step: Step) -> tuple[Array, Array, Array]:
    """sum_j b_j e^{i j phi} as (cos, sin), relative to e^top."""
    log_w, v = exponents(x, step)
    top = jnp.max(log_w + v, axis=-1)
    share = jnp.exp(log_w + v - top[..., None])
    angle = np.arange(step.largest_group + 1.0) * (y / step.noise_multiplier)[..., None]
    return jnp.sum(share * jnp.cos(angle), axis=-1), jnp.sum(share * jnp.sin(angle), axis=-1), top
