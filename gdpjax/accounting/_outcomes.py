"""Releases that are accounted for by their outcomes, in cells: sampled Laplace noise, and what is given by outcomes.

Each cell has a mass under Q, one under P, and an interval that holds log R = log dP/dQ of its outcomes. Two finite
pairs (`OutcomeEvents`) stand for the release:

* below, a cell is one outcome, as for who is told the cell alone: R is the ratio of its masses;
* above, each mass is split between the two ends of the interval so that the other mass stays the same. The two deltas
  are expectations of convex functions of R, which this raises (Jensen).

Laplace noise of privacy loss e has under Q the log ratio v = -e with probability 1/2, e with probability e^{-e}/2, and
in between the density e^{-(e + v)/2}/4; under P it is the same of -v. Sampled with probability p, P becomes the mixture
and the log ratio log(1 + p (e^v - 1)).
"""

import math
from typing import NamedTuple

import numpy as np

from gdpjax._composition import _bounded_losses
from gdpjax._composition._atoms import OutcomeEvents
from gdpjax._composition._bounded_losses import BoundedLossEvents
from gdpjax._composition._moments import UNIT_ROUNDOFF
from gdpjax.accounting._allocation import Sides
from gdpjax.ledger import AnyEvent, LaplaceEvent, OutcomesEvent
from gdpjax.tradeoff import Curve, Laplace, from_probabilities, subsample

_NUM_CELLS = 2048
_LARGEST_LAPLACE = 500.0
"""More privacy loss counts as this much, which understates."""
_ULPS = 64.0 * UNIT_ROUNDOFF


class _Cells(NamedTuple):
    """Masses under Q and P, and the ends of an interval of log R, of each cell in the order of log R [n]."""

    q: np.ndarray
    p: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rounding: float
    """The relative error of the masses."""


def is_given_by_outcomes(event: AnyEvent) -> bool:
    """Return whether an event is accounted for by its outcomes."""
    if isinstance(event, LaplaceEvent):
        return 0 < event.sampling_prob < 1 and event.epsilon > 0
    return isinstance(event, OutcomesEvent)


def sides_of(event: LaplaceEvent | OutcomesEvent) -> Sides[tuple[OutcomeEvents, ...]]:
    """Return the pairs that understate and that overstate the event."""
    cells = _cells_of_laplace(event) if isinstance(event, LaplaceEvent) else _cells_of_outcomes(event)
    below = (_below(event.num_steps, cells),)
    if isinstance(event, LaplaceEvent) and event.epsilon > _LARGEST_LAPLACE:
        return Sides(below, None)
    return Sides(below, (_above(event.num_steps, cells),))


def curve_of(event: LaplaceEvent | OutcomesEvent) -> Curve:
    """Return the trade-off curve of one release, in the direction of removing the example."""
    if isinstance(event, LaplaceEvent):
        return subsample(Laplace(event.epsilon), event.sampling_prob).one_direction
    return from_probabilities(np.array(event.null), np.array(event.alternative))


def _cells_of_laplace(event: LaplaceEvent) -> _Cells:
    largest, prob = min(event.epsilon, _LARGEST_LAPLACE), event.sampling_prob
    v = largest * np.linspace(-1.0, 1.0, _NUM_CELLS + 1)
    between = -0.5 * np.expm1(-largest / _NUM_CELLS) * np.exp(-0.5 * (largest + v[:-1]))
    q = np.concatenate([[0.5], between, [0.5 * math.exp(-largest)]])
    p = (1.0 - prob) * q + prob * q[::-1]
    loss = np.log1p(prob * np.expm1(v)) if prob < 0.5 else np.logaddexp(np.log1p(-prob), np.log(prob) + v)
    return _Cells(q, p, np.append(loss[0], loss), np.append(loss, loss[-1]), _ULPS * (1.0 + largest))


def _cells_of_outcomes(event: OutcomesEvent) -> _Cells:
    q, p = np.array(event.null), np.array(event.alternative)
    with np.errstate(divide="ignore"):
        loss = np.log(p) - np.log(q)
    order = np.argsort(loss)
    q, p, loss = q[order], p[order], loss[order]
    return _Cells(q / math.fsum(q), p / math.fsum(p), loss, loss, _ULPS)


def _finite(cells: _Cells) -> tuple[np.ndarray, ...]:
    """Return q, p, low, high and the log ratio of the masses of the cells that have both."""
    has_both = (cells.q > 0) & (cells.p > 0)
    q, p, low, high = (column[has_both] for column in cells[:4])
    return q, p, low, high, np.clip(np.log(p) - np.log(q), low, high)


def _below(num_steps: float, cells: _Cells) -> OutcomeEvents:
    """Return the pair of a cell for an outcome."""
    q, p, _, _, ratio = _finite(cells)
    return _event(num_steps, cells, ratio, p, q, displacement=_error_of_ratio(cells, ratio))


def _above(num_steps: float, cells: _Cells) -> OutcomeEvents:
    """Return the pair of the two ends of a cell for outcomes."""
    q, p, low, high, ratio = _finite(cells)
    width = np.where(high > low, high - low, 1.0)
    error = _error_of_ratio(cells, np.append(low, high))

    # Of P-mass the share s goes to the lower end, s e^-low + (1 - s) e^-high = e^-ratio, with the ratio rounded up.
    larger = np.minimum(ratio + error, high)
    p_low = p * np.where(high > low, np.expm1(high - larger) / np.expm1(width), 1.0)
    p_high = p * np.where(high > low, np.exp(high - larger) * np.expm1(larger - low) / np.expm1(width), 0.0)

    # Of Q-mass the share t goes to the upper end, t e^high + (1 - t) e^low = e^ratio, with the ratio rounded down.
    smaller = np.maximum(ratio - error, low)
    q_low = q * np.where(high > low, np.exp(smaller - low) * np.expm1(high - smaller) / np.expm1(width), 1.0)
    q_high = q * np.where(high > low, np.expm1(smaller - low) / np.expm1(width), 0.0)
    return _event(
        num_steps,
        cells,
        np.concatenate([low, high]),
        np.concatenate([p_low, p_high]),
        np.concatenate([q_low, q_high]),
        displacement=error,
        lost_p=float(np.sum(cells.p[cells.q == 0])),
        lost_q=float(np.sum(cells.q[cells.p == 0])),
    )


def _error_of_ratio(cells: _Cells, log_ratio: np.ndarray) -> float:
    """Return a bound on the errors of the ratios of masses and of the ends of the intervals, absolute."""
    return 4.0 * cells.rounding + _ULPS * float(np.max(np.abs(log_ratio), initial=0.0))


def _event(
    num_steps: float,
    cells: _Cells,
    log_ratio: np.ndarray,
    p: np.ndarray,
    q: np.ndarray,
    displacement: float,
    lost_p: float = 0.0,
    lost_q: float = 0.0,
) -> OutcomeEvents:
    order = np.argsort(log_ratio, kind="stable")
    largest = float(np.max(np.abs(log_ratio), initial=0.0)) + displacement
    with np.errstate(divide="ignore"):
        log_p, log_q = np.log(p[order]), np.log(q[order])
    return OutcomeEvents(
        num_steps=num_steps,
        mu=math.inf
        if lost_p or lost_q
        else math.sqrt(_bounded_losses.squared_mu([BoundedLossEvents(1.0, largest, 2.0)])),
        log_ratio=log_ratio[order],
        log_p=log_p,
        log_q=log_q,
        lost_p=lost_p * (1.0 + 1e-9),
        lost_q=lost_q * (1.0 + 1e-9),
        rounding=4.0 * cells.rounding,
        displacement=displacement,
    )
