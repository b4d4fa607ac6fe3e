"""The law of a likelihood ratio on a geometric grid, from above and from below at once.

Let R = dP/dQ be the likelihood ratio of a mechanism, under Q. Both directions of its privacy loss are expectations of
convex functions of R,

    remove: delta(e) = E (R - e^e)_+,        add: delta(e) = E (1 - e^e R)_+,

so a law that is larger than that of R in convex order overstates both, and a smaller one understates both. A `Law`
holds one of each, on the same grid of values y_k = e^{origin + k spacing}, 0 <= k < size:

* `upper`, the Q-mass at each y_k, with the Q-mass `at_zero` of the value 0 and the P-mass `at_infinity`. It came about
  by moving mass to several values with the same mean (or by adding mass), which only raises both deltas.
* `lower`, the Q-mass of label k, and `excess`: the mean of R given the label is y_k (1 + excess_k / lower_k). Knowing
  only a label of an outcome lowers both deltas, and so does leaving outcomes out.

Every mass is a sum of positive terms, right to a relative error of `rounding`. The values y_k are right to a relative
error of `displacement`, the means of the labels to one of `lower_displacement`. Derivations are in
docs/theory/allocation.md.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array

CELLS = 2560
"""The largest number of grid values, the static length of all arrays."""
UNIT_ROUNDOFF = 2.0**-53
SMALLEST_MASS = 1e-280
"""Labels with less mass are left out."""


class Grid(NamedTuple):
    """The values e^{origin + k spacing} for 0 <= k < size <= CELLS."""

    origin: Array
    spacing: Array
    size: Array

    def log_values(self) -> Array:
        """The logarithms of the values [CELLS]; those beyond ``size`` carry no mass."""
        return self.origin + self.spacing * np.arange(CELLS)

    def underflow(self) -> Array:
        """A bound on the P-mass of what underflows: less than 1e-300 of Q-mass, at most at the largest value."""
        return 1e-300 * jnp.exp(self.origin + self.spacing * self.size)


class Law(NamedTuple):
    """The law of R from above and from below; see the module's docstring."""

    upper: Array
    at_zero: Array
    at_infinity: Array
    lower: Array
    excess: Array
    rounding: Array
    displacement: Array
    lower_displacement: Array

    def mean_excess(self) -> Array:
        """The excess of each label for each unit of its mass; 0 for labels with next to no mass."""
        kept = self.lower > SMALLEST_MASS
        return jnp.where(kept, self.excess / jnp.where(kept, self.lower, 1.0), 0.0)


class Pair(NamedTuple):
    """A finite pair of measures: log R, and the logarithms of the Q- and P-mass, of each outcome.

    ``lost_p`` and ``lost_q`` are the P-mass where R is infinite and the Q-mass where it is 0. The masses are right to a
    relative error of ``rounding``, log R to an absolute one of ``displacement``.
    """

    log_ratio: Array
    log_p: Array
    log_q: Array
    lost_p: Array
    lost_q: Array
    rounding: Array
    displacement: Array


def upper_pair(law: Law, grid: Grid) -> Pair:
    """The pair that overstates both directions."""
    log_ratio = grid.log_values()
    log_q = jnp.log(law.upper)
    log_p = log_q + log_ratio
    inflation = 1.0 + 2.0 * law.rounding
    lost_p = law.at_infinity * inflation
    lost_q = law.at_zero * inflation
    rounding = law.rounding + 8.0 * UNIT_ROUNDOFF * (1.0 + jnp.max(jnp.abs(log_ratio)))
    return Pair(log_ratio, log_p, log_q, lost_p, lost_q, rounding, law.displacement)


def lower_pair(law: Law, grid: Grid) -> Pair:
    """The pair that understates both directions; what is left out of it counts for nothing."""
    log_ratio = grid.log_values() + jnp.log1p(law.mean_excess())
    log_q = jnp.where(law.lower > SMALLEST_MASS, jnp.log(law.lower), -jnp.inf)
    log_p = log_q + log_ratio
    nothing = jnp.zeros_like(law.rounding)
    rounding = law.rounding + 8.0 * UNIT_ROUNDOFF * (1.0 + jnp.max(jnp.abs(log_ratio)))
    return Pair(log_ratio, log_p, log_q, nothing, nothing, rounding, law.lower_displacement)
