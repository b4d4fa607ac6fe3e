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
"""

import math
from typing import NamedTuple

import numpy as np

UNIT_ROUNDOFF = 2.0**-53
SMALLEST_MASS = 1e-280
"""Labels with less Q-mass or P-mass are left out."""


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
