"""Releases that are accounted for by their outcomes, in cells: sampled Laplace noise, and what is given by outcomes.

Each cell has a mass under Q, one under P, and an interval that holds log R = log dP/dQ of its outcomes. Two finite
pairs (`OutcomeEvents`) stand for the release:

* below, a cell is one outcome, as for who is told the cell alone: R is the ratio of its masses;
* above, each mass is split between the two ends of the interval so that the other mass stays the same. The two deltas
  are expectations of convex functions of R, which this raises (Jensen).

Laplace noise of privacy loss e has under Q the log ratio v = -e with probability 1/2, e with probability e^{-e}/2, and
in between the density e^{-(e + v)/2}/4; under P it is the same of -v. Sampled with probability p, P becomes the mixture
and the log ratio log(1 + p (e^v - 1)).

Where one row is replaced, either data set may be on either side, in one release so and in the next otherwise. From
above a pair (P, Q) then stands for one that is as far apart both ways round: the powers of its tests against their
errors are the concave hull of those of (P, Q) and (Q, P). The corners are sums of masses, and are found exactly, in
whole numbers. From below all releases are the same way round.
"""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gdpjax._composition import _bounded_losses
from gdpjax._composition._atoms import OutcomeEvents
from gdpjax._composition._bounded_losses import BoundedLossEvents
from gdpjax._composition._moments import UNIT_ROUNDOFF
from gdpjax._core.types import NeighboringRelation
from gdpjax.accounting._allocation import Sides
from gdpjax.ledger import AnyEvent, LaplaceEvent, OutcomesEvent

_NUM_CELLS = 2048
_LARGEST_LAPLACE = 500.0
"""More privacy loss counts as this much, which understates."""
_MOST_OUTCOMES = 20_000
_ULPS = 64.0 * UNIT_ROUNDOFF
_RATIO_BITS = 2200
"""Shares of two masses below 2^1075 units that differ do so in these bits."""


class _Cells(NamedTuple):
    """Logs of the masses under Q and P, and the ends of an interval of log R, of each cell [n]."""

    log_q: np.ndarray
    log_p: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rounding: float
    """The relative error of the masses."""


def is_given_by_outcomes(event: AnyEvent) -> bool:
    """Return whether an event is accounted for by its outcomes."""
    if isinstance(event, LaplaceEvent):
        return 0 < event.sampling_prob < 1 and event.epsilon > 0
    return isinstance(event, OutcomesEvent)


def sides_of(events: Sequence[LaplaceEvent | OutcomesEvent], alone: bool) -> list[Sides[tuple[OutcomeEvents, ...]]]:
    """Return the pairs that understate and that overstate each of the events.

    Few outcomes of events ``alone`` are one pair together: the losses of a product of laws add up.
    """
    given = [event for event in events if isinstance(event, OutcomesEvent)]
    num_outcomes = [event.num_steps * math.log(len(event.null)) for event in given]
    if alone and len(given) == len(events) and sum(num_outcomes) < math.log(_MOST_OUTCOMES):
        below, above = [], []
        for event in given:
            times = event.num_steps if len(event.null) > 1 else 0  # one outcome says nothing
            below += [_cells_of_outcomes(event)] * times
            above += [_cells_of_outcomes(_either_way_round(event))] * times
        none = _cells_of_outcomes(OutcomesEvent([1.0], [1.0]))
        return [_sides_of_both(1.0, *(functools.reduce(_product, cells, none) for cells in (below, above)))]
    sides = []
    for event in events:
        if isinstance(event, OutcomesEvent):
            cells = _cells_of_outcomes(event), _cells_of_outcomes(_either_way_round(event))
            sides.append(_sides_of_both(event.num_steps, *cells))
            continue
        below, above = _sides(event.num_steps, _cells_of_laplace(event))
        sides.append(Sides(below, above if event.epsilon <= _LARGEST_LAPLACE else None))
    return sides


def _cells_of_laplace(event: LaplaceEvent) -> _Cells:
    largest, prob = min(event.epsilon, _LARGEST_LAPLACE), event.sampling_prob
    v = largest * np.linspace(-1.0, 1.0, _NUM_CELLS + 1)
    between = math.log(-0.5 * math.expm1(-largest / _NUM_CELLS)) - 0.5 * (largest + v[:-1])
    log_q = np.concatenate([[math.log(0.5)], between, [math.log(0.5) - largest]])
    log_p = np.logaddexp(np.log1p(-prob) + log_q, np.log(prob) + log_q[::-1])
    loss = np.log1p(prob * np.expm1(v)) if prob < 0.5 else np.logaddexp(np.log1p(-prob), np.log(prob) + v)
    return _Cells(log_q, log_p, np.append(loss[0], loss), np.append(loss, loss[-1]), _rounding(log_q, log_p))


def _cells_of_outcomes(event: OutcomesEvent) -> _Cells:
    with np.errstate(divide="ignore", invalid="ignore"):
        log_q = np.log(event.null) - math.log(math.fsum(event.null))
        log_p = np.log(event.alternative) - math.log(math.fsum(event.alternative))
        loss = log_p - log_q
    return _Cells(log_q, log_p, loss, loss, _rounding(log_q, log_p))


def _either_way_round(event: OutcomesEvent) -> OutcomesEvent:
    """Return releases that reveal no less than the event's, either way round; the event itself but for REPLACE_ONE."""
    if event.neighboring_relation != NeighboringRelation.REPLACE_ONE:
        return event
    outcomes = [(_in_units(q), _in_units(p)) for q, p in zip(event.null, event.alternative, strict=True) if p or q]
    total_q, total_p = map(sum, zip(*outcomes, strict=True))

    # The best tests of Q against P, and of P against Q, by errors and powers of which the largest is ``total``.
    total = total_q * total_p
    corners = [(0, 0)]
    for q, p in sorted(outcomes, key=lambda masses: (masses[1] << _RATIO_BITS) // sum(masses), reverse=True):
        corners.append((corners[-1][0] + q * total_p, corners[-1][1] + p * total_q))
    corners += [(total - power, total - error) for error, power in corners]

    # Their concave hull, from the left.
    hull: list[tuple[int, int]] = []
    for corner in sorted(corners):
        while len(hull) > 1 and not _turns_right(hull[-2], hull[-1], corner):
            hull.pop()
        hull.append(corner)

    # Each of its edges is an outcome.
    edges = list(itertools.pairwise(hull))
    null = [(end[0] - start[0]) / total for start, end in edges]
    alternative = [(end[1] - start[1]) / total for start, end in edges]
    return OutcomesEvent(null, alternative, event.num_steps, event.neighboring_relation)


def _in_units(mass: float) -> int:
    """Return a mass in units of the least number that is not zero."""
    numerator, denominator = mass.as_integer_ratio()
    return numerator * (2**1074 // denominator)


def _turns_right(first: tuple[int, int], second: tuple[int, int], third: tuple[int, int]) -> bool:
    """Return whether the way from the first point over the second to the third turns right there."""
    over, up = second[0] - first[0], second[1] - first[1]
    return over * (third[1] - second[1]) < up * (third[0] - second[0])


def _rounding(log_q: np.ndarray, log_p: np.ndarray) -> float:
    """Return a bound on the relative error of masses, which that of their logs makes."""
    logs = np.append(log_q, log_p)
    return _ULPS * (1.0 + float(np.max(np.abs(logs[logs > -np.inf]), initial=0.0)))


def _product(first: _Cells, second: _Cells) -> _Cells:
    """Return the outcomes of two independent releases."""
    with np.errstate(invalid="ignore"):
        columns = [np.add.outer(one, other).ravel() for one, other in zip(first[:4], second[:4], strict=True)]
    return _Cells(*columns, rounding=first.rounding + second.rounding + _ULPS)


def _sides_of_both(num_steps: float, below: _Cells, above: _Cells) -> Sides[tuple[OutcomeEvents, ...]]:
    """Return the pairs of releases with one law from below and another one from above."""
    return Sides(_sides(num_steps, below).below, _sides(num_steps, above).above)


def _sides(num_steps: float, cells: _Cells) -> Sides[tuple[OutcomeEvents, ...]]:
    """Return the two pairs of releases with these cells."""
    has_both = (cells.log_q > -np.inf) & (cells.log_p > -np.inf)
    log_q, log_p, low, high = (column[has_both] for column in cells[:4])
    ratio = np.clip(log_p - log_q, low, high)
    error = _error_of_ratio(cells, np.append(low, high))
    below = _event(num_steps, cells, ratio, log_p, log_q, error)

    # Of P-mass the share s goes to the lower end, s e^-low + (1 - s) e^-high = e^-ratio, with the ratio rounded up. Of
    # Q-mass the share t goes to the upper end, t e^high + (1 - t) e^low = e^ratio, with the ratio rounded down.
    has_width = high > low
    width = np.where(has_width, high - low, 1.0)
    larger, smaller = np.minimum(ratio + error, high), np.maximum(ratio - error, low)
    p_low = np.where(has_width, np.expm1(high - larger) / np.expm1(width), 1.0)
    p_high = np.where(has_width, np.exp(high - larger) * np.expm1(larger - low) / np.expm1(width), 0.0)
    q_low = np.where(has_width, np.exp(smaller - low) * np.expm1(high - smaller) / np.expm1(width), 1.0)
    q_high = np.where(has_width, np.expm1(smaller - low) / np.expm1(width), 0.0)
    with np.errstate(divide="ignore"):
        above = _event(
            num_steps,
            cells,
            np.concatenate([low, high]),
            np.concatenate([log_p + np.log(p_low), log_p + np.log(p_high)]),
            np.concatenate([log_q + np.log(q_low), log_q + np.log(q_high)]),
            error,
            lost_p=float(np.sum(np.exp(cells.log_p[cells.log_q == -np.inf]))),
            lost_q=float(np.sum(np.exp(cells.log_q[cells.log_p == -np.inf]))),
        )
    return Sides((below,), (above,))


def _error_of_ratio(cells: _Cells, log_ratio: np.ndarray) -> float:
    """Return a bound on the errors of the ratios of masses and of the ends of the intervals, absolute."""
    return 4.0 * cells.rounding + _ULPS * float(np.max(np.abs(log_ratio), initial=0.0))


def _event(
    num_steps: float,
    cells: _Cells,
    log_ratio: np.ndarray,
    log_p: np.ndarray,
    log_q: np.ndarray,
    displacement: float,
    lost_p: float = 0.0,
    lost_q: float = 0.0,
) -> OutcomeEvents:
    order = np.argsort(log_ratio, kind="stable")
    largest = float(np.max(np.abs(log_ratio), initial=0.0)) + displacement
    bounded = BoundedLossEvents(1.0, largest, 2.0)
    return OutcomeEvents(
        num_steps=num_steps,
        mu=math.inf if lost_p or lost_q else math.sqrt(_bounded_losses.squared_mu([bounded])),
        log_ratio=log_ratio[order],
        log_p=log_p[order],
        log_q=log_q[order],
        lost_p=lost_p * (1.0 + 1e-9),
        lost_q=lost_q * (1.0 + 1e-9),
        rounding=4.0 * cells.rounding,
        displacement=displacement,
    )
