r"""Renyi moments of one block of random allocation, rigorously from above, in both directions.

    log_moments_allocation(noise_multiplier=1.0, steps=100, orders=np.array([2.0, 8.0]))

An example takes part in exactly one of t steps, chosen uniformly. With h = 1 / noise_multiplier, the likelihood ratio
of the worst case is a mean of independent log-normal numbers of mean one under Q,

    R = (Y_1 + ... + Y_t) / t,      Y_i = exp(h g_i - h^2 / 2),      g_i standard normal,

and the moments of order a are E R^a (remove) and E R^(1 - a) (add).

*Whole orders, remove.* A mean over 2m steps is the mean of two independent means over m steps, so the binomial theorem
gives the moments of one from those of the other.

*Add, and fractional orders below 8.* R^-b = (1 / Gamma(b)) int_0^oo l^(b-1) e^(-l R) dl, and E[e^(-l R)] is the t-th
power of the Laplace transform of one log-normal number at l / t. Both integrals are taken by the trapezoid rule with
its error bound. Other fractional orders are interpolated: the logarithm of a moment is convex in its order.

Proofs, error bounds and rounding: docs/theory/allocation.md, "Renyi divergences".
"""

import math
from typing import NamedTuple

import numpy as np
import scipy

LARGEST_WHOLE_ORDER = 1024
"""Above it only the Gaussian mechanism's moment is used, for which the draw is known."""

_UNIT_ROUNDOFF = 2.0**-53
_LARGEST_INVERSE_NOISE = 1e145
_SMALLEST_INVERSE_NOISE = 1e-145

# The integral over l = e^w.
_SMALLEST_NOISE = 0.1
_SPACING = 2.0**-5
_REACH = 44.0
_SMALLEST_TRANSFORM = 1e-10
_LARGEST_POWER = 8
"""Orders below it are not interpolated."""

# The integral over a standard normal number.
_CUT = 9.0
_CUT_MASS = 1.1286e-19  # Phi(-9), rounded up
_CUT_DENSITY = 1.0281e-18  # phi(9), rounded up
_LARGEST_STRIP = 6.0
_DECAY = 42.0


def log_moments_allocation(noise_multiplier: float, steps: int, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on the larger of log E R^a and log E R^(1 - a), for orders a > 1 of shape [K].

    They are right to about 1e-9 of themselves and 1e-12 nats at whole orders up to 1024 and, for noise multipliers from
    0.5, at orders below 8. With less noise orders between whole ones are up to a tenth high. Above 8 those are on the
    line between whole ones, a percent high where the moments do not rise steeply.
    """
    h = max(1.0 / noise_multiplier, _SMALLEST_INVERSE_NOISE)
    if h >= _LARGEST_INVERSE_NOISE:
        return np.full(orders.shape, np.inf)
    gaussian = 0.5 * orders * (orders - 1.0) * h * h
    if steps > 1:
        both = np.maximum(log_moments_remove(h, steps, orders), log_moments_add(h, steps, orders))
        gaussian = np.minimum(gaussian, both)
    return gaussian * (1.0 + 8.0 * _UNIT_ROUNDOFF)


def log_moments_remove(h: float, steps: int, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on log E R^a; inf above the largest whole order."""
    largest = int(min(np.ceil(orders.max()), LARGEST_WHOLE_ORDER))
    table = _whole_orders(h, steps, largest)

    clipped = np.minimum(orders, largest)
    below = np.floor(clipped).astype(int)
    above = np.minimum(below + 1, largest)
    weight = clipped - below
    with np.errstate(invalid="ignore"):
        line = (1.0 - weight) * table[below] + weight * table[above]
    line = np.where(weight == 0.0, table[below], line)
    moments = np.where(orders <= largest, line * (1.0 + 4.0 * _UNIT_ROUNDOFF), np.inf)
    if h * _SMALLEST_NOISE > 1.0:
        return moments

    for power in range(2, _LARGEST_POWER + 1):
        inside = (orders > power - 1) & (orders < power)
        if inside.any():
            exact = _by_transform(h, steps, power, power - orders[inside])
            moments[inside] = np.minimum(moments[inside], exact)
    return moments


def _whole_orders(h: float, steps: int, largest: int) -> np.ndarray:
    """Upper bounds on log E R^a for a = 0, ..., largest."""
    a = np.arange(largest + 1.0)
    one_step = 0.5 * a * (a - 1.0) * h * h
    binomials = _Binomials.up_to(largest)
    means = {1: one_step}

    def mean_of(size: int) -> np.ndarray:
        """log E of the powers of a mean over ``size`` steps, from those of its two halves."""
        if size not in means:
            half = size // 2
            means[size] = binomials.mean_of_two(mean_of(half), mean_of(size - half), half / size)
        return means[size]

    moments = mean_of(steps)
    # Rounding: in each of the rounds the excess over 1 of a moment is right to ``relative`` of itself.
    rounds = math.ceil(math.log2(steps))
    magnitude = 20.0 * scipy.special.gammaln(a + 1.0) + 8.0 * one_step + 4.0 * a + 2000.0
    relative = _UNIT_ROUNDOFF * magnitude
    # Of noise so small that this overflows nothing is known but that the moment is large.
    with np.errstate(over="ignore", invalid="ignore"):
        bounds = moments + 2.0 * rounds * relative * (1.0 + one_step) * np.minimum(moments, 1.0)
    return np.where(np.isnan(bounds), np.inf, bounds)


class _Binomials(NamedTuple):
    """The binomial coefficients C(a, j) of a = 2, ..., largest, one row after another.

    Attributes:
        row: a - 2 of each.
        starts: where the rows start.
        j, rest: j and a - j.
        log: their logarithms.
    """

    row: np.ndarray
    starts: np.ndarray
    j: np.ndarray
    rest: np.ndarray
    log: np.ndarray

    @classmethod
    def up_to(cls, largest: int) -> "_Binomials":
        # The rows of a = 0 and 1 have three elements.
        a, j = (index[3:] for index in np.tril_indices(largest + 1))
        log_factorial = scipy.special.gammaln(np.arange(largest + 1.0) + 1.0)
        log = log_factorial[a] - log_factorial[j] - log_factorial[a - j]
        return cls(a - 2, np.flatnonzero(j == 0), j, a - j, log)

    def mean_of_two(self, first: np.ndarray, second: np.ndarray, share: float) -> np.ndarray:
        """The log moments of share X + (1 - share) Z from those of independent X and Z.

        E(share X + (1 - share) Z)^a - 1 = sum_j C(a, j) share^j (1 - share)^(a - j) (E X^j E Z^(a - j) - 1).
        """
        log_weight = self.log + self.j * math.log(share) + self.rest * math.log1p(-share)
        together = first[self.j] + second[self.rest]
        # A product of first moments is 1: nothing is left of it.
        with np.errstate(divide="ignore"):
            terms = log_weight + together + np.log(-np.expm1(-together))

        largest = np.maximum.reduceat(terms, self.starts)
        total = np.add.reduceat(np.exp(terms - largest[self.row]), self.starts)
        moments = np.zeros(first.size)
        moments[2:] = np.logaddexp(0.0, largest + np.log(total))
        return moments


def _log_sum(terms: np.ndarray) -> np.ndarray:
    """log of the sum of e^terms over the last axis, in which some term is finite."""
    largest = np.max(terms, axis=-1)
    return largest + np.log(np.sum(np.exp(terms - largest[..., None]), axis=-1))


def log_moments_add(h: float, steps: int, orders: np.ndarray) -> np.ndarray:
    """Upper bounds on log E R^(1 - a)."""
    b = orders - 1.0
    # An arithmetic mean is at least the geometric one, exp(h g / sqrt(t) - h^2 / 2) with a standard normal g.
    by_geometric_mean = 0.5 * b * h * h * (1.0 + b / steps) * (1.0 + 8.0 * _UNIT_ROUNDOFF)
    if h * _SMALLEST_NOISE > 1.0:
        return by_geometric_mean
    return np.minimum(by_geometric_mean, _by_transform(h, steps, 0, b))


class _Piece(NamedTuple):
    """Upper bounds on the logarithm of a function of w = log l that falls from a largest value and is log-concave.

    Attributes:
        at_nodes: at the first nodes, as many as are good to a relative error of 1e-7 a step.
        largest: what it is at most anywhere.
    """

    at_nodes: np.ndarray
    largest: float


def _by_transform(h: float, steps: int, power: int, b: np.ndarray) -> np.ndarray:
    """Upper bounds on log E R^(power - b), for b > 0 of shape [K]; inf where the bound is of no use.

    R^power e^(-l R) has a mean that is a sum over the partitions of ``power``: the steps in a partition have as many
    factors Y as its parts say, the others none.
    """
    nodes = np.arange(-_REACH, _REACH, _SPACING)
    s = np.exp(nodes) / steps
    # E[Y^k e^(-s Y)] is E[Y^k] times the transform at s e^(k h^2). It falls in s, so less than that is safe.
    transforms = [_log_laplace(h, s * math.exp(min(k * h * h, 500.0))) for k in range(power + 1)]
    pieces = []
    for parts in _partitions(power, power):
        others = steps - len(parts)
        if others < 0:
            continue
        largest = _log_count(parts, steps) + sum(0.5 * k * (k - 1.0) * h * h for k in parts)
        at_nodes = largest + others * transforms[0] + sum(transforms[k] for k in parts)
        least = np.minimum(transforms[0], transforms[parts[0]] if parts else 0.0)
        good = int(np.argmax(least < math.log(_SMALLEST_TRANSFORM))) or nodes.size
        pieces.append(_Piece(at_nodes[:good], largest))
    return _log_mellin(nodes, pieces, b, 2e-7 * steps)


def _partitions(number: int, largest: int) -> list[tuple[int, ...]]:
    """The partitions of a number into parts of at most ``largest``, each in decreasing order."""
    if number == 0:
        return [()]
    found = []
    for part in range(min(number, largest), 0, -1):
        found += [(part, *rest) for rest in _partitions(number - part, part)]
    return found


def _log_count(parts: tuple[int, ...], steps: int) -> float:
    """log of the probability that so many draws of one of ``steps`` steps repeat as ``parts`` says."""
    count = math.factorial(sum(parts))
    for k in parts:
        count //= math.factorial(k)
    for k in set(parts):
        count //= math.factorial(parts.count(k))
    different = math.fsum(math.log1p(-i / steps) for i in range(len(parts)))
    return math.log(count) + different - (sum(parts) - len(parts)) * math.log(steps)


def _log_mellin(nodes: np.ndarray, pieces: list[_Piece], b: np.ndarray, ratio_error: float) -> np.ndarray:
    """Upper bounds on the log of the integral of e^(b w) times the sum of the pieces, over Gamma(b)."""
    total = np.full(b.shape, -np.inf)
    largest_exponent = np.zeros(b.shape)
    usable = np.ones(b.shape, bool)
    rate = b[:, None]
    for at_nodes, largest in pieces:
        w = nodes[: at_nodes.size]
        terms = rate * w + at_nodes
        # Left of the nodes the piece is at most its largest value, and the sum a geometric series.
        left = largest + rate * (w[0] - _SPACING) - np.log(-np.expm1(-rate * _SPACING))
        # Right of them the terms, log-concave in w, fall at least as fast as between the last two.
        log_ratio = terms[:, -1:] - terms[:, -2:-1] + ratio_error
        right = terms[:, -1:] - np.log(np.expm1(np.clip(-log_ratio, 1e-300, 600.0)))
        usable &= log_ratio[:, 0] < 0.0
        total = np.logaddexp(total, _log_sum(np.concatenate([left, terms, right], axis=1)))

        matters = terms > terms.max(axis=1, keepdims=True) - 50.0
        size = np.where(matters, np.abs(rate * w) + np.abs(at_nodes), 0.0)
        largest_exponent = np.maximum(largest_exponent, size.max(axis=1))
    total = total + math.log(_SPACING)

    # The trapezoid rule is off by 2 cos(d)^-b / (e^(2 pi d / spacing) - 1) of the integral; the best d has this
    # tangent.
    tangent = 2.0 * math.pi / _SPACING / b
    decay = 2.0 * math.pi / _SPACING * np.arctan(tangent)
    log_error = math.log(2.0) + 0.5 * b * np.log1p(tangent**2) - decay - np.log(-np.expm1(-decay))
    usable &= log_error < -1.0
    error = np.exp(np.minimum(log_error, -1.0))

    # Exponents are right to a few ulp of the largest that matters.
    rounding = 8.0 * largest_exponent + 8.0 * np.abs(scipy.special.gammaln(b)) + 16.0 * np.abs(total) + 256.0
    moments = np.maximum(total - scipy.special.gammaln(b) - np.log1p(-error), 0.0) + _UNIT_ROUNDOFF * rounding
    return np.where(usable, moments, np.inf)


def _log_laplace(h: float, s: np.ndarray) -> np.ndarray:
    """Upper bounds on log E[e^(-s Y)], at s of shape [n]."""
    strip = min(0.5 * math.pi / h, _LARGEST_STRIP)
    decay = _DECAY + 0.5 * strip**2
    spacing = 2.0 * math.pi * strip / decay
    u = np.arange(-_CUT, h + _CUT + spacing, spacing)
    weight = spacing / math.sqrt(2.0 * math.pi) * np.exp(-0.5 * u * u)
    z = s[:, None] * np.exp(h * u - 0.5 * h * h)

    largest = 0.5 * (h + _CUT) ** 2 + h * (h + _CUT)
    rounding = _UNIT_ROUNDOFF * (256.0 + 8.0 * largest)
    error = 2.0 * math.exp(0.5 * strip**2) / math.expm1(decay) * np.minimum(s, 2.0)
    cut = 2.0 * (_CUT_MASS + spacing * _CUT_DENSITY)

    # Where s Y is small the transform is 1 - E[1 - e^(-s Y)], elsewhere it is better summed itself.
    gap = np.sum(weight * -np.expm1(-z), axis=1) * (1.0 - rounding) - error
    direct = np.sum(weight * np.exp(-z), axis=1) * (1.0 + rounding) + error + cut
    return np.minimum(np.log1p(-np.clip(gap, 0.0, 1.0 - 2.0**-50)), np.log(direct))
