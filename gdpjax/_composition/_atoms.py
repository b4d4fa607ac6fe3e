"""Events given by a finite list of outcomes, each with log R = log dP/dQ and its masses under P and Q.

The outcomes are the nodes of the moments, without any error of quadrature:

    remove:  L = log R,    A(z) = sum_k p_k e^{z L_k},
    add:     L = -log R,   A(z) = sum_k q_k e^{z L_k}.

What has an infinite loss (P-mass where R is infinite, Q-mass where it is zero) is treated as the mass outside a window
is. The masses may be off by a relative error of ``rounding``, and log R by an absolute one of ``displacement``. A
weighted node is then off by the first, and by the second times the exponent of R.

docs/theory/contour.md has how these errors enter the moments ("Events given by their outcomes").
"""

import dataclasses
from collections.abc import Sequence

import numpy as np

from gdpjax._composition._moments import UNIT_ROUNDOFF, log_sum
from gdpjax._core.types import Array

_MERGED = 8
"""The number of outcomes that are merged into one for planning."""


_FEW = 256
"""Fewer outcomes are not merged."""


@dataclasses.dataclass(frozen=True)
class OutcomeEvents:
    """An event of n outcomes in one direction, and the number of times it happens.

    Attributes:
        num_steps: The number of such events.
        mu: A mu such that the event is mu-GDP.
        log_ratio: log R of each outcome [n].
        log_p: The logs of the masses under P [n].
        log_q: The logs of the masses under Q [n].
        lost_p: The P-mass of infinite R.
        lost_q: The Q-mass of R = 0.
        rounding: The relative error of the masses.
        displacement: The absolute error of log R.
        sign: +1 for "remove", -1 for "add".
    """

    num_steps: float
    mu: float
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
        """The privacy losses [n]."""
        return self.sign * self.log_ratio

    @property
    def log_weight(self) -> Array:
        """The logarithms of the masses under the distribution that the loss is drawn from [n]."""
        if self.sign > 0:
            return self.log_p
        return self.log_q

    @property
    def lost(self) -> float:
        """The mass of infinite loss."""
        if self.sign > 0:
            return self.lost_p
        return self.lost_q


def distribution(atoms: OutcomeEvents) -> tuple[Array, Array]:
    """Return (losses, log weights) of a coarser pair, for planning only."""
    loss = atoms.loss
    log_weight = atoms.log_weight
    if loss.size < _FEW:
        return loss, log_weight
    num_merged = atoms.log_ratio.size // _MERGED * _MERGED
    loss_groups = loss[:num_merged].reshape(-1, _MERGED)
    weight_groups = log_weight[:num_merged].reshape(-1, _MERGED)
    merged_losses = np.mean(loss_groups, axis=1)
    merged_weights = log_sum(weight_groups, axis=1)

    # The last few outcomes do not fill a group.
    losses = np.append(merged_losses, loss[num_merged:])
    log_weights = np.append(merged_weights, log_weight[num_merged:])
    return losses, log_weights


def log_moment(atoms: OutcomeEvents, theta: Array) -> Array:
    """Return log A(theta) of one event at each theta [points]."""
    exponent = atoms.log_weight + theta[:, None] * atoms.loss
    return log_sum(exponent, axis=1)


def largest_loss(events: Sequence[OutcomeEvents]) -> float:
    """Return the largest finite loss of all the events together, rounded up."""
    total = 0.0
    for event in events:
        has_mass = event.log_weight > -np.inf
        largest = np.max(event.loss[has_mass], initial=-np.inf)
        rounding = 1e-12 * abs(largest)
        total += event.num_steps * (largest + event.displacement + rounding)
    return total


def log_lost(events: Sequence[OutcomeEvents]) -> float:
    """Return the log of the probability that nothing is lost in any event."""
    total = 0.0
    for event in events:
        lost = min(event.lost, 1.0)
        total += event.num_steps * np.log1p(-lost)
    return total


def rounding_terms(atoms: OutcomeEvents, exponent: Array) -> tuple[Array, Array]:
    """Return the errors of each node: c0 of its weight e^exponent, relative, and c1 of its loss, absolute.

    54 ulp are allowed for, as in `_moments`.

    Args:
        atoms: The event.
        exponent: The logarithms of the weighted nodes [n].
    """
    unit = 2.0 * UNIT_ROUNDOFF
    is_possible = exponent > -np.inf
    size = np.where(is_possible, np.abs(exponent), 0.0)
    fixed = atoms.rounding + unit * (54.0 + 2.0 * size)
    loss_rounding = 6.0 * unit * np.abs(atoms.loss)
    return fixed, atoms.displacement + loss_rounding
