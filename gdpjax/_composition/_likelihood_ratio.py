"""The likelihood ratio of one subsampled Gaussian step, on the real axis and near it.

This module is where the certified accountant begins. A step compares N(0, sigma^2) with a mixture of shifted normal
distributions. The mixture's component j has the weight w_j = Bin(j; k, p): of a group of k rows, j are in the batch.
In units of the noise, u ~ N(0, 1) under the first distribution, and the ratio of the second to the first is

    r(u) = sum_j w_j e^{v_j},        v_j = j (u - j / (2 sigma)) / sigma,        increasing in u.

The quadrature in `_moments` needs log r at its nodes, the rounding error of that, and bounds on |r| and arg r off the
real axis:

    >>> import numpy as np
    >>> step = SubsampledGaussian(noise_multiplier=1.0, sampling_prob=0.5, num_steps=1.0)
    >>> print(log_ratio(np.array([[0.5]]), side_by_side((step,))))
    [[0.]]

The integrand of a moment is phi times *factors*, powers of r at +u or -u (`Factor`): one for a step that adds or
removes rows, two for a step of Poisson batches in which one row is replaced. There P is the mixture of N(0, 1) and
N(1 / sigma, 1), and Q that of N(0, 1) and N(-1 / sigma, 1), so the loss is log r(u) - log r(-u) and both directions are
the same.

Steps of several kinds are looked at side by side (`Steps`): every array has their axis first, so that a run of a
thousand phases takes hardly more calls than a run of one.

docs/theory/contour.md derives the bounds ("The likelihood ratio of a step"), and the parts of a symmetric step
("Symmetric steps").
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy

from gdpjax._core.types import Array

_LARGE = 300.0
"""Exponents above this one are not exponentiated."""


@dataclasses.dataclass(frozen=True)
class SubsampledGaussian:
    """One kind of step, in one direction, and the number of times it is done.

    Attributes:
        noise_multiplier: sigma, the standard deviation of the noise over the clip norm.
        sampling_prob: p, the probability with which each row is in the batch.
        num_steps: The number of steps of this kind.
        sign: +1 where P is the mixture and the loss is L = log r ("remove"); -1 where P is N(0, 1) and the loss is
            L = -log r ("add"). A symmetric step has both parts, and its ``sign`` is not used.
        group_size: k, the largest number of rows of the group that are in a batch.
        num_rows: The number of rows in the group; 0: k. Of a large group hardly more than a few rows are ever in one
            batch, so that the weights of more are left out.
        missed: A bound on the probability that more than k rows are.
        symmetric: Whether the step samples uniformly, and one row is replaced.
        replaced: Whether it is a step of Poisson batches, and one row is replaced; ``sign`` is +1 then.
    """

    noise_multiplier: float
    sampling_prob: float
    num_steps: float
    sign: float = 1.0
    group_size: int = 1
    symmetric: bool = False
    num_rows: int = 0
    missed: float = 0.0
    replaced: bool = False

    def __post_init__(self) -> None:
        if not self.num_rows:
            object.__setattr__(self, "num_rows", self.group_size)


class Steps(NamedTuple):
    """Kinds of steps side by side, in one direction; see `SubsampledGaussian`.

    Attributes:
        noise_multiplier, sampling_prob: [steps, 1]
        num_steps, missed: [steps]
        sign, group_size, symmetric, num_rows, replaced: the same for all.
    """

    noise_multiplier: Array
    sampling_prob: Array
    num_steps: Array
    sign: float
    group_size: int
    symmetric: bool
    num_rows: int
    missed: Array
    replaced: bool

    @property
    def shift(self) -> float:
        """The exponent of r in the weight of an outcome under P."""
        if self.sign > 0:
            return 1.0
        return 0.0

    @property
    def mu(self) -> Array:
        """Return mu of one step of each kind without sampling [steps]."""
        distance = 2.0 if self.replaced else self.num_rows
        return distance / self.noise_multiplier[:, 0]

    @property
    def factors(self) -> tuple["Factor", ...]:
        """Return the factors of the integrand of one-signed steps."""
        if not self.replaced:
            return (Factor(1.0, self),)
        remove = self._replace(replaced=False)
        return Factor(1.0, remove), Factor(-1.0, remove._replace(sign=-1.0))

    def taken(self, some: Any) -> "Steps":
        """Return some of the kinds of steps, by their places."""
        return self._replace(
            noise_multiplier=self.noise_multiplier[some],
            sampling_prob=self.sampling_prob[some],
            num_steps=self.num_steps[some],
            missed=self.missed[some],
        )


def side_by_side(steps: Sequence[SubsampledGaussian]) -> Steps:
    """Return kinds of steps side by side; they share direction, group and symmetry."""
    shared = {(step.sign, step.group_size, step.symmetric, step.num_rows, step.replaced) for step in steps}
    ((sign, group_size, symmetric, num_rows, replaced),) = shared
    return Steps(
        noise_multiplier=np.array([[step.noise_multiplier] for step in steps], np.float64),
        sampling_prob=np.array([[step.sampling_prob] for step in steps], np.float64),
        num_steps=np.array([step.num_steps for step in steps], np.float64),
        sign=sign,
        group_size=group_size,
        symmetric=symmetric,
        num_rows=num_rows,
        missed=np.array([step.missed for step in steps]),
        replaced=replaced,
    )


class Factor(NamedTuple):
    """The factor r(side u)^{shift + sign z} of the integrand of the moments of steps."""

    side: float
    """1 or -1."""
    steps: Steps
    """The steps with the shift and the sign of this factor."""


def one_signed_parts(steps: Steps) -> tuple[Steps, ...]:
    """Return the one-signed parts whose moments add up to those of the steps."""
    if not steps.symmetric:
        return (steps,)
    remove = steps._replace(sign=1.0, symmetric=False)
    add = steps._replace(sign=-1.0, symmetric=False)
    return remove, add


def mass_at_zero_loss(steps: Steps) -> Array:
    """Return the probability of loss 0 in symmetric steps, outside their parts [steps, 1]."""
    # (1 - p) (1 - 2 Phi(-u0)), with u0 = 1 / (2 sigma).
    u0 = 0.5 / steps.noise_multiplier
    central_mass = scipy.special.erf(u0 / np.sqrt(2.0))
    return (1.0 - steps.sampling_prob) * central_mass


def _shifted_exponent(u: Array, steps: Steps) -> Array:
    """Return v_1, the exponent of the component that is shifted by one row [steps, n]."""
    noise_multiplier = steps.noise_multiplier
    return (u - 0.5 / noise_multiplier) / noise_multiplier


def log_ratio(u: Array, steps: Steps) -> Array:
    """Return log r(u) at the points u [steps, n], with an error of at most `log_ratio_error`."""
    if steps.group_size > 1:
        return _log_group_ratio(u, steps)
    sampling_prob = steps.sampling_prob
    v = _shifted_exponent(u, steps)

    # Near r = 1 the logarithm is log1p(p (e^v - 1)), which does not cancel.
    moderate = np.minimum(v, _LARGE)
    excess = sampling_prob * np.expm1(moderate)
    value = np.log1p(np.maximum(excess, -0.25))

    # Far below zero 1 + excess would cancel. A sum of two positive terms does not.
    if np.max(sampling_prob) > 0.25:
        mixture = (1.0 - sampling_prob) + sampling_prob * np.exp(moderate)
        value = np.where(excess < -0.25, np.log(mixture), value)
        value = np.where(sampling_prob == 1.0, v, value)

    # Far above zero the exponential would overflow, and its own term alone is left.
    if np.max(v) > _LARGE:
        value = np.where(v > _LARGE, v + np.log(sampling_prob), value)
    return value


@functools.lru_cache(maxsize=1024)
def _log_choices(group_size: int, num_rows: int) -> Array:
    """Return log C(m, j) [k + 1], the number of ways to draw j of m rows."""
    return np.array([math.log(math.comb(num_rows, drawn)) for drawn in range(group_size + 1)])


def log_weights(steps: Steps) -> Array:
    """Return log w_j of each kind of step, the logarithms of the binomial weights [steps, k + 1]."""
    j = np.arange(steps.group_size + 1.0)
    log_drawn = scipy.special.xlogy(j, steps.sampling_prob)
    log_missed = scipy.special.xlog1py(steps.num_rows - j, -steps.sampling_prob)
    return _log_choices(steps.group_size, steps.num_rows) + log_drawn + log_missed


def exponents(u: Array, steps: Steps) -> tuple[Array, Array]:
    """Return log w_j [steps, 1, k + 1], and v_j with j on a new last axis [steps, n, k + 1]."""
    noise_multiplier = steps.noise_multiplier[..., None]
    j = np.arange(steps.group_size + 1.0)
    half_shift = 0.5 * j / noise_multiplier
    centred = u[..., None] - half_shift
    v = j * centred / noise_multiplier
    return log_weights(steps)[:, None], v


def _log_group_ratio(u: Array, steps: Steps) -> Array:
    """Return log r(u) for a group of more than one row."""
    log_w, v = exponents(u, steps)
    # Near r = 1 sum_j w_j (e^{v_j} - 1) is small, and log1p keeps its relative precision.
    excess_of_each = np.expm1(np.minimum(v, _LARGE))
    excess = np.sum(np.exp(log_w) * excess_of_each, axis=-1)
    near = np.abs(excess) < 0.25
    safe_excess = np.where(near, excess, 0.0)
    value_near = np.log1p(safe_excess)
    return np.where(near, value_near, scipy.special.logsumexp(log_w + v, axis=-1))


def log_ratio_error(u: Array, steps: Steps, ell: Array) -> Array:
    """Bound the absolute error of ``ell`` = log r(u) for exact u, in ulp.

    The error is 12 |ell|. For k > 1 the cancellation in the sums adds to it: each log w_j and v_j is right to a few
    ulp of its size, and near r = 1 the terms are w_j (e^{v_j} - 1), whose signs differ.
    """
    if steps.group_size == 1:
        return 12.0 * np.abs(ell)
    log_w, v = exponents(u, steps)

    # The relative error of a term: the sums, the table of log w_j, the products in v_j.
    is_possible = log_w > -np.inf
    log_w_error = np.where(is_possible, 4.0 * np.abs(log_w), 0.0)
    sum_error = 16.0 + 2.0 * steps.group_size
    term_error = sum_error + log_w_error + 8.0 * np.abs(v)

    # The size of a term relative to r. Near r = 1 it is that of w_j (e^{v_j} - 1), where r >= 0.76 is allowed for.
    share = _posterior(log_w, v, ell)
    moderate = np.minimum(v, _LARGE)
    excess = np.abs(np.expm1(moderate))
    size_near = np.exp(log_w) * excess * 1.5
    size_far = share + np.minimum(size_near, 2.0)
    is_near = np.abs(np.expm1(ell)) < 0.24
    size = np.where(is_near[..., None], size_near, size_far)
    cancellation = np.sum(term_error * size, axis=-1)
    return 12.0 * np.abs(ell) + cancellation


def _posterior(log_w: Array, v: Array, ell: Array) -> Array:
    """Return the probability of each j given u, w_j e^{v_j} / r [..., k + 1]."""
    log_share = log_w + v - ell[..., None]
    return np.exp(np.minimum(log_share, 0.0))


def posterior_mean(u: Array, steps: Steps, ell: Array) -> Array:
    """Return the mean of j given u, sum_j j w_j e^{v_j} / r, where ``ell`` = log r(u).

    This is the slope of log r, times sigma.
    """
    if steps.group_size == 1:
        v = _shifted_exponent(u, steps)
        log_share = np.log(steps.sampling_prob) + v - ell
        return np.exp(np.minimum(log_share, 0.0))
    log_w, v = exponents(u, steps)
    share = _posterior(log_w, v, ell)
    j = np.arange(steps.group_size + 1.0)
    mean = np.sum(j * share, axis=-1)
    return np.minimum(mean, steps.group_size)


def largest_height(steps: Steps) -> Array:
    """Return the distance y from the real axis up to which |r| and arg r are monotone [steps, 1]."""
    return 0.499 * np.pi * steps.noise_multiplier / steps.group_size


def argument(x: Array, y: Array, steps: Steps) -> Array:
    """Return arg r(x + iy) for 0 <= y <= `largest_height`, and no less."""
    if steps.group_size > 1:
        cos_sum, sin_sum, _ = _sum_of_vectors(x, y, steps)
        return np.arctan2(sin_sum, cos_sum) * (1.0 + 1e-9)

    # Both components are divided by the larger one, so that neither overflows.
    sampling_prob = steps.sampling_prob
    v = _shifted_exponent(x, steps)
    omega = y / steps.noise_multiplier
    missed_scale = np.exp(-np.maximum(v, 0.0))
    drawn_scale = np.exp(np.minimum(v, 0.0))
    missed = (1.0 - sampling_prob) * missed_scale
    drawn = sampling_prob * drawn_scale
    imag = drawn * np.sin(omega)
    real = missed + drawn * np.cos(omega)
    return np.arctan2(imag, real)


def log_modulus(x: Array, y: Array, steps: Steps) -> Array:
    """Return log |r(x + iy)| for 0 <= y <= `largest_height`, and no more."""
    ell = log_ratio(x, steps)
    if steps.group_size > 1:
        cos_sum, sin_sum, top = _sum_of_vectors(x, y, steps)
        squared = cos_sum**2 + sin_sum**2
        value = top + 0.5 * np.log(np.maximum(squared, 1e-300))
        rounding = 1e-15 * log_ratio_error(x, steps, ell)
        return np.minimum(value, ell) - rounding - 1e-14

    # |r(x + iy)|^2 = r(x)^2 - 2 (1 - p) p e^v (1 - cos omega), and 1 - cos omega = 2 sin^2(omega / 2).
    sampling_prob = steps.sampling_prob
    v = _shifted_exponent(x, steps)
    sine = np.sin(0.5 * y / steps.noise_multiplier)
    relative_size = np.exp(v - 2.0 * ell)
    coefficient = 4.0 * (1.0 - sampling_prob) * sampling_prob
    relative_fall = coefficient * relative_size * sine**2
    remaining = np.maximum(1.0 - relative_fall, 1e-300)
    rounding = 1e-14 * np.abs(ell)
    return ell + 0.5 * np.log(remaining) - rounding - 2e-15


def _sum_of_vectors(x: Array, y: Array, steps: Steps) -> tuple[Array, Array, Array]:
    """Return sum_j b_j e^{i j omega} as its real and imaginary parts, both relative to e^top, and top."""
    log_w, v = exponents(x, steps)
    top = np.max(log_w + v, axis=-1)
    size = np.exp(log_w + v - top[..., None])
    omega = (y / steps.noise_multiplier)[..., None]
    angle = np.arange(steps.group_size + 1.0) * omega
    cos_sum = np.sum(size * np.cos(angle), axis=-1)
    sin_sum = np.sum(size * np.sin(angle), axis=-1)
    return cos_sum, sin_sum, top
