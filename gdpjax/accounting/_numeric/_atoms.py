"""Events given as a finite pair of measures: a list of outcomes, with log R = log dP/dQ, P-mass and Q-mass of each.

    remove: L = log R,   A(z) = sum_k p_k e^{z L_k},          add: L = -log R,   A(z) = sum_k q_k e^{z L_k}.

The outcomes are the nodes of the moments, without any quadrature error. What is lost (P-mass where R is infinite,
Q-mass where it is zero) is treated as what a window cuts off. If masses are right to a relative error of `rounding` and
log R to an absolute one of `displacement`, a weighted node is right to both, the second times the exponent of R.
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF, log_sum

_MERGED = 8


@dataclasses.dataclass(frozen=True)
class Atoms:
    """An event of n outcomes in one direction, and how often it happens."""

    num_steps: float
    mu: float
    """A mu such that the event is mu-GDP."""
    log_ratio: Array
    log_p: Array
    log_q: Array
    lost_p: float
    lost_q: float
    rounding: float
    displacement: float
    sign: float = 1.0

    @property
    def loss(self) -> Array:
        """The privacy losses."""
        return self.sign * self.log_ratio

    @property
    def log_weight(self) -> Array:
        """The logarithms of the masses under P."""
        return self.log_p if self.sign > 0 else self.log_q

    @property
    def lost(self) -> float:
        """The mass of infinite loss."""
        return self.lost_p if self.sign > 0 else self.lost_q


def distribution(atoms: Atoms) -> tuple[Array, Array]:
    """(losses, log weights) of a coarser pair: for planning only."""
    whole = atoms.log_ratio.size // _MERGED * _MERGED
    losses = np.mean(atoms.loss[:whole].reshape(-1, _MERGED), axis=1)
    weights = log_sum(atoms.log_weight[:whole].reshape(-1, _MERGED), axis=1)
    return np.append(losses, atoms.loss[whole:]), np.append(weights, atoms.log_weight[whole:])


def log_moment(atoms: Atoms, theta: Array) -> Array:
    """log A(theta) of one event at each theta [points]."""
    return log_sum(atoms.log_weight + theta[:, None] * atoms.loss, axis=1)


def largest_loss(events: Sequence[Atoms]) -> float:
    """The largest finite loss of all the events together."""
    total = 0.0
    for event in events:
        each = np.max(event.loss[event.log_weight > -np.inf], initial=-np.inf)
        total += event.num_steps * (each + event.displacement + 1e-12 * abs(each))
    return total


def log_lost(events: Sequence[Atoms]) -> float:
    """log of the probability that nothing is lost in any event."""
    return sum(event.num_steps * np.log1p(-min(event.lost, 1.0)) for event in events)


def rounding_terms(atoms: Atoms, exponent: Array) -> tuple[Array, Array]:
    """Per node: the relative error c0 of its weight e^exponent, and the absolute one c1 of its loss.

    40 ulp stand for the tables and the three rotations, as in `_moments`.
    """
    unit = 2.0 * UNIT_ROUNDOFF
    fixed = atoms.rounding + unit * (40.0 + 2.0 * np.where(exponent > -np.inf, np.abs(exponent), 0.0))
    return fixed, atoms.displacement + 6.0 * unit * np.abs(atoms.loss)
