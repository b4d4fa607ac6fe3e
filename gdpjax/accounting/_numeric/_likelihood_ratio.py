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
import functools
import math

import numpy as np
from scipy.special import erf, logsumexp, xlog1py, xlogy

from gdpjax._core.types import Array

_LARGE = 300.0


@dataclasses.dataclass(frozen=True)
class Step:
    """One kind of step, in one direction, and how often it is done.

    ``sign`` is +1 where L = log r and P is the mixture ("remove"), -1 where L = -log r and P = N(0, 1) ("add"). A
    symmetric step has both parts, and ``sign`` says nothing. ``group_size`` is k.
    """

    noise_multiplier: float
    sampling_prob: float
    num_steps: float
    sign: float = 1.0
    group_size: int = 1
    symmetric: bool = False

    @property
    def shift(self) -> float:
        """The exponent of r in the weight of an outcome under P."""
        return 1.0 if self.sign > 0 else 0.0


def parts(step: Step) -> tuple[Step, ...]:
    """The one-signed parts of which a step's moments are the sum."""
    if not step.symmetric:
        return (step,)
    return tuple(dataclasses.replace(step, sign=sign, symmetric=False) for sign in (1.0, -1.0))


def rest(step: Step) -> float:
    """The probability of loss 0 in a symmetric step, outside its parts."""
    return (1.0 - step.sampling_prob) * erf(0.5 / step.noise_multiplier / np.sqrt(2.0))


def log_ratio(u: Array, step: Step) -> Array:
    """log r(u): log1p near zero, a sum of positive terms elsewhere; its error is `log_ratio_error`."""
    if step.group_size > 1:
        return _log_group_ratio(u, step)
    p = step.sampling_prob
    v = (u - 0.5 / step.noise_multiplier) / step.noise_multiplier
    if p == 1.0:
        return v
    moderate = np.minimum(v, _LARGE)
    excess = p * np.expm1(moderate)
    # Far below zero 1 + excess would cancel.
    value = np.log1p(np.maximum(excess, -0.25))
    if p > 0.25:
        value = np.where(excess < -0.25, np.log((1.0 - p) + p * np.exp(moderate)), value)
    if np.max(v) > _LARGE:
        value = np.where(v > _LARGE, v + np.log(p), value)
    return value


@functools.lru_cache(maxsize=1024)
def log_weights(sampling_prob: float, group_size: int) -> np.ndarray:
    """log w_j [k + 1]."""
    j = np.arange(group_size + 1.0)
    log_choose = np.log([math.comb(group_size, int(i)) for i in j])
    return log_choose + xlogy(j, sampling_prob) + xlog1py(group_size - j, -sampling_prob)


def exponents(u: Array, step: Step) -> tuple[Array, Array]:
    """log w_j [k + 1] and v_j, on a new last axis."""
    j = np.arange(step.group_size + 1.0)
    v = j * (np.asarray(u)[..., None] - 0.5 * j / step.noise_multiplier) / step.noise_multiplier
    return log_weights(step.sampling_prob, step.group_size), v


def _log_group_ratio(u: Array, step: Step) -> Array:
    log_w, v = exponents(u, step)
    excess = np.sum(np.exp(log_w) * np.expm1(np.minimum(v, _LARGE)), axis=-1)
    near = np.abs(excess) < 0.25
    return np.where(near, np.log1p(np.where(near, excess, 0.0)), logsumexp(log_w + v, axis=-1))


def log_ratio_error(u: Array, step: Step, ell: Array) -> Array:
    """The absolute error of ``ell`` = log r(u) for given u, in ulp: 12 |ell|, and for k > 1 what the sums cancel.

    Each log w_j and v_j is right to a few ulp of its size; near r = 1 the terms are w_j (e^{v_j} - 1), whose signs
    differ.
    """
    if step.group_size == 1:
        return 12.0 * np.abs(ell)
    log_w, v = exponents(u, step)
    size = 16.0 + 2.0 * step.group_size + np.where(log_w > -np.inf, 4.0 * np.abs(log_w), 0.0) + 8.0 * np.abs(v)
    share = np.exp(np.minimum(log_w + v - ell[..., None], 0.0))
    near = np.abs(np.expm1(ell)) < 0.24
    lone = np.exp(log_w) * np.abs(np.expm1(np.minimum(v, _LARGE))) * 1.5
    weight = np.where(near[..., None], lone, share + np.minimum(lone, 2.0))
    return 12.0 * np.abs(ell) + np.sum(size * weight, axis=-1)


def posterior_mean(u: Array, step: Step, ell: Array) -> Array:
    """The mean of j given u, sum_j j w_j e^{v_j} / r: the slope of log r, times sigma."""
    if step.group_size == 1:
        v = (u - 0.5 / step.noise_multiplier) / step.noise_multiplier
        return np.exp(np.minimum(np.log(step.sampling_prob) + v - ell, 0.0))
    log_w, v = exponents(u, step)
    share = np.exp(np.minimum(log_w + v - ell[..., None], 0.0))
    return np.minimum(np.sum(np.arange(step.group_size + 1.0) * share, axis=-1), step.group_size)


def largest_height(step: Step) -> float:
    """The y below which the statements of the module docstring hold."""
    return 0.499 * np.pi * step.noise_multiplier / step.group_size


def argument(x: Array, y: Array, step: Step) -> Array:
    """arg r(x + iy) for 0 <= y <= `largest_height`, divided through by the largest term so that nothing overflows."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    if step.group_size > 1:
        cos, sin, _ = _phasor(x, y, step)
        return np.arctan2(sin, cos) * (1.0 + 1e-9)
    v = (x - 0.5 / sigma) / sigma
    nothing, drawn = (1.0 - p) * np.exp(-np.maximum(v, 0.0)), p * np.exp(np.minimum(v, 0.0))
    return np.arctan2(drawn * np.sin(y / sigma), nothing + drawn * np.cos(y / sigma))


def log_modulus(x: Array, y: Array, step: Step) -> Array:
    """log |r(x + iy)|, not more, for 0 <= y <= `largest_height`: r^2 less 2 (1 - p) p e^v (1 - cos)."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    ell = log_ratio(x, step)
    if step.group_size > 1:
        cos, sin, top = _phasor(x, y, step)
        value = top + 0.5 * np.log(np.maximum(cos**2 + sin**2, 1e-300))
        return np.minimum(value, ell) - 1e-15 * log_ratio_error(x, step, ell) - 1e-14
    v = (x - 0.5 / sigma) / sigma
    loss = 4.0 * (1.0 - p) * p * np.exp(v - 2.0 * ell) * np.sin(0.5 * y / sigma) ** 2
    return ell + 0.5 * np.log(np.maximum(1.0 - loss, 1e-300)) - 1e-14 * np.abs(ell) - 2e-15


def _phasor(x: Array, y: Array, step: Step) -> tuple[Array, Array, Array]:
    """sum_j b_j e^{i j phi} as (cos, sin), relative to e^top."""
    log_w, v = exponents(x, step)
    top = np.max(log_w + v, axis=-1)
    share = np.exp(log_w + v - top[..., None])
    angle = np.arange(step.group_size + 1.0) * (y / step.noise_multiplier)[..., None]
    return np.sum(share * np.cos(angle), axis=-1), np.sum(share * np.sin(angle), axis=-1), top
