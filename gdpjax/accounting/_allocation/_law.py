"""The law of a likelihood ratio on a geometric grid, from above and from below at once.

Let R = dP/dQ be the likelihood ratio of a mechanism, under Q. Both directions of its privacy loss are expectations of
convex functions of R,

    remove: delta(e) = E (R - e^e)_+,        add: delta(e) = E (1 - e^e R)_+,

so a law that is larger than that of R in convex order overstates both, and a smaller one understates both. A `RatioLaw`
holds one of each, on the same grid of values y_k = e^{origin + k spacing}, 0 <= k < size:

* `upper`, the Q-mass at each y_k, with the Q-mass `at_zero` of the value 0 and the P-mass `at_infinity`. It came about
  by moving mass to several values with the same mean (or by adding mass), which only raises both deltas.
* `lower`, the Q-mass of label k, and `excess`: the mean of R given the label is y_k (1 + excess_k / lower_k). Knowing
  only a label of an outcome lowers both deltas, and so does leaving outcomes out.

Every mass is a sum of positive terms, right to a relative error of `rounding`. The values y_k are right to a relative
error of `displacement`, the means of the labels to one of `lower_displacement`. Derivations are in
docs/theory/allocation.md.

**One step** (`one_step`) has R = e^{g / s - 1 / (2 s^2)}, g standard normal under Q, s the noise multiplier. Its grid
is uniform in g, between -reach and 1/s + reach. In a cell [g_k, g_{k+1}] of width w = s h, with y_k and y_{k+1} =
y_k e^h at its ends and x = (g - g_k) / s, the three masses that are needed are integrals of positive functions:

    upper, to the right end    integral phi(g) (e^x - 1) / (e^h - 1) dg
    upper, to the left end     integral phi(g) (e^h - e^x) / (e^h - 1) dg,     which together keep the mean;
    lower, to the nearer end   integral phi(g) dg over half of the cell.

The excess of a label is the integral of phi(g) (e^x - 1) over the half to its right, and of phi(g) (e^{x - h} - 1),
which is negative, over the half to its left. Sixteen Gauss-Legendre nodes in each half take them all. On the ellipse
with foci at the ends of a half and semi-axes below 4 w, all integrands are below e^{4 w |g| + 8 w^2 + 4 h} times twenty
times their mean over the half, and the error of the rule is below 4 * 16^{-32} / (1 - 1/16) of that: together less than
a rounding as long as 4 w |g| + 8 w^2 + 4 h < 45, which holds for all noise multipliers from SMALLEST_NOISE on.

Outside of the grid Phi(-x) <= e^{-x^2 / 2} / 2. The upper law moves what is above the last value down to it and its
P-mass to infinity, and what is below the first one to the values 0 and y_0; the lower law leaves both out.

**One release.** Without composition the deltas of a `Pair` are sums of positive terms, with L_k = log R at outcome k,

    remove: delta(e) = sum_k p_k (1 - e^{e - L_k})_+ + lost P,
    add:    delta(e) = sum_k q_k (1 - e^{e + L_k})_+ + lost Q.

If the masses are right to a relative error c and every L_k to an absolute one of d, the true value at e lies between
(1 - c) times the computed one at e + d and (1 + c) times the computed one at e - d.
"""

import math
from typing import NamedTuple

import numpy as np

from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Bounds

UNIT_ROUNDOFF = 2.0**-53
SMALLEST_MASS = 1e-280
"""Labels with less Q-mass or P-mass are left out."""
SMALLEST_NOISE = 0.05
_LARGEST_LOG_VALUE = 650.0
"""It keeps the values finite, and is less than the reach needs only at the smallest noises and deltas."""
_BISECTIONS = 64
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(16)


class RatioGrid(NamedTuple):
    """The values e^{origin + k spacing} for 0 <= k < size."""

    origin: float
    spacing: float
    size: int

    def log_values(self) -> np.ndarray:
        """Return the logarithms of the values [size]."""
        return self.origin + self.spacing * np.arange(self.size)

    @property
    def reach(self) -> float:
        """Return a bound on the logarithms of the values, and on every product that leads to one."""
        return abs(self.origin) + self.spacing * self.size

    def underflow(self) -> float:
        """Return a bound on the P-mass of all that underflows: 1e-300 of Q-mass, at most at the largest value."""
        return 1e-300 * math.exp(self.origin + self.spacing * self.size)


class RatioLaw(NamedTuple):
    """The law of R from above and from below; see the module's docstring. The arrays are [size]."""

    upper: np.ndarray
    at_zero: float
    at_infinity: float
    lower: np.ndarray
    excess: np.ndarray
    rounding: float
    displacement: float
    lower_displacement: float

    def mean_excess(self) -> np.ndarray:
        """Return the excess of each label for each unit of its mass; 0 for labels with next to no mass."""
        has_mass = self.lower > SMALLEST_MASS
        return np.divide(self.excess, self.lower, out=np.zeros_like(self.lower), where=has_mass)


def one_step(
    noise_multiplier: float,
    size: int,
    log_tail: float,
) -> tuple[RatioLaw, RatioGrid]:
    """Return the law of one step on ``size`` values, which leaves out tails of about e^log_tail."""
    shift = 1.0 / noise_multiplier
    largest_reach = (_LARGEST_LOG_VALUE - 0.5 * shift**2) / shift
    reach = min(math.sqrt(-2.0 * log_tail), largest_reach)
    width = (2.0 * reach + shift) / (size - 1.0)
    spacing = width * shift
    grid = RatioGrid(-reach * shift - 0.5 * shift**2, spacing, size)

    # The nodes of each cell, half by half [size - 1, 2, 16], with the density folded into their weights.
    start = (-reach + width * np.arange(size - 1))[:, None, None]
    inside = 0.25 * width * (1.0 + _NODES + np.array([[0.0], [2.0]]))
    weights = 0.25 * width / math.sqrt(2.0 * math.pi) * _WEIGHTS
    density = np.exp(-0.5 * (start + inside) ** 2) * weights

    # e^x - 1 and e^h - e^x, without cancellation.
    rise = inside * shift
    above_left = np.expm1(rise)
    below_right = np.expm1(rise - spacing)
    to_right = np.sum(density * above_left, axis=(1, 2)) / math.expm1(spacing)
    to_left = np.sum(density * -below_right, axis=(1, 2)) * (math.exp(spacing) / math.expm1(spacing))

    # The P-mass below -reach, at the value y_0, is a Q-mass of P(-reach) / y_0 = e^{-reach^2 / 2} / 2 at most.
    tail = 0.5 * math.exp(-0.5 * reach**2) * (1.0 + 1e-9)
    far_tail = 0.5 * math.exp(-0.5 * (reach + shift) ** 2) * (1.0 + 1e-9)
    upper = np.zeros(size)
    upper[:-1] += to_left
    upper[1:] += to_right
    upper[0] += tail
    upper[-1] += far_tail

    # Each half goes to the nearer label.
    half_masses = np.sum(density, axis=2)
    lower = np.zeros(size)
    lower[:-1] += half_masses[:, 0]
    lower[1:] += half_masses[:, 1]
    excess = np.zeros(size)
    excess[:-1] += np.sum(density[:, 0] * above_left[0], axis=1)
    excess[1:] += np.sum(density[:, 1] * below_right[1], axis=1)

    # The exponent of the density is right to a few ulp of its size, and a node to a few ulp of its size.
    rounding = UNIT_ROUNDOFF * (100.0 + 8.0 * (reach + shift) ** 2)
    displacement = 16.0 * UNIT_ROUNDOFF * grid.reach
    law = RatioLaw(
        upper=upper,
        at_zero=tail + 1e-300,
        at_infinity=tail + grid.underflow(),
        lower=lower,
        excess=excess,
        rounding=rounding,
        displacement=displacement,
        lower_displacement=displacement + 4.0 * rounding * math.expm1(spacing),
    )
    return law, grid


class Pair(NamedTuple):
    """A finite pair of measures: log R, and the logarithms of the Q- and P-mass, of each outcome.

    ``lost_p`` and ``lost_q`` are the P-mass where R is infinite and the Q-mass where it is 0. The masses are right to a
    relative error of ``rounding``, log R to an absolute one of ``displacement``.
    """

    log_ratio: np.ndarray
    log_p: np.ndarray
    log_q: np.ndarray
    lost_p: float
    lost_q: float
    rounding: float
    displacement: float


def upper_pair(law: RatioLaw, grid: RatioGrid) -> Pair:
    """Return the pair that overstates both directions."""
    inflation = 1.0 + 2.0 * law.rounding
    lost_p = law.at_infinity * inflation
    lost_q = law.at_zero * inflation
    return _pair(law.upper, grid.log_values(), (lost_p, lost_q), law.rounding, law.displacement)


def lower_pair(law: RatioLaw, grid: RatioGrid) -> Pair:
    """Return the pair that understates both directions; outcomes that are left out count for nothing."""
    mass = np.where(law.lower > SMALLEST_MASS, law.lower, 0.0)
    log_ratio = grid.log_values() + np.log1p(law.mean_excess())
    return _pair(mass, log_ratio, (0.0, 0.0), law.rounding, law.lower_displacement)


def _pair(
    mass: np.ndarray,
    log_ratio: np.ndarray,
    lost: tuple[float, float],
    rounding: float,
    displacement: float,
) -> Pair:
    """Return the pair of these outcomes."""
    log_q = np.log(mass, out=np.full_like(mass, -np.inf), where=mass > 0)
    lost_p, lost_q = lost

    # The logarithms of the masses are right to a few ulp of their size.
    largest_log_ratio = float(np.max(np.abs(log_ratio)))
    smallest_log_q = float(np.min(log_q, initial=0.0, where=mass > 0))
    largest = largest_log_ratio - smallest_log_q
    rounding = rounding + 8.0 * UNIT_ROUNDOFF * (1.0 + largest)
    return Pair(
        log_ratio=log_ratio,
        log_p=log_q + log_ratio,
        log_q=log_q,
        lost_p=lost_p,
        lost_q=lost_q,
        rounding=rounding,
        displacement=displacement,
    )


class _PairBound:
    """The bound on delta(epsilon) that a pair gives, moved by its errors up (side 1) or down (side -1)."""

    def __init__(self, pair: Pair, side: float) -> None:
        # The losses, their masses, and the mass of infinite loss, of each direction.
        remove = (pair.log_ratio, np.exp(pair.log_p), pair.lost_p)
        add = (-pair.log_ratio, np.exp(pair.log_q), pair.lost_q)
        self._directions = (remove, add)
        # Each direction sums that many terms.
        sum_rounding = UNIT_ROUNDOFF * (2.0 * pair.log_ratio.size + 64.0)
        self._factor = 1.0 + side * (2.0 * pair.rounding + sum_rounding)
        self.largest_loss = float(np.max(np.abs(pair.log_ratio), initial=0.0))
        self._displacement = pair.displacement
        self._side = side

    def delta(self, epsilon: float) -> float:
        """Return the larger one of the two directions."""
        loss_error = self._displacement + 8.0 * UNIT_ROUNDOFF * (self.largest_loss + epsilon)
        moved_epsilon = epsilon - self._side * loss_error
        deltas = []
        for loss, mass, lost in self._directions:
            exceeds = loss > moved_epsilon
            deltas.append(np.sum(mass[exceeds] * -np.expm1(moved_epsilon - loss[exceeds])) + lost)
        return float(max(deltas)) * self._factor


def delta_of_pair(pair: Pair, epsilon: float) -> Bounds:
    """Return a lower bound on delta from a pair that understates, an upper bound from one that overstates."""
    lower = _PairBound(pair, -1.0).delta(epsilon)
    upper = _PairBound(pair, 1.0).delta(epsilon)
    return Bounds(max(lower, 0.0), min(upper, 1.0))


def epsilon_of_pair(pair: Pair, delta: float) -> Bounds:
    """Return bounds on epsilon: from a pair that understates a lower, else an upper one."""
    below, above = _PairBound(pair, -1.0), _PairBound(pair, 1.0)
    # Beyond the largest finite loss delta is what is lost.
    largest = 1.0 + above.largest_loss * (1.0 + 1e-9)
    lower, _ = bisect_on_host(lambda point: below.delta(point) > delta, 0.0, largest, num_iterations=_BISECTIONS)
    if above.delta(0.0) <= delta:
        return Bounds(float(lower), 0.0)
    if above.delta(largest) > delta:
        return Bounds(float(lower), np.inf)
    _, upper = bisect_on_host(lambda point: above.delta(point) > delta, 0.0, largest, num_iterations=_BISECTIONS)
    return Bounds(float(lower), float(upper))
