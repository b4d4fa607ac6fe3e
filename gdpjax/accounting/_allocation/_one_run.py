"""Delta and epsilon of one finite pair, without composition: sums of positive terms.

remove: delta(e) = sum_k p_k (1 - e^{e - L_k})_+ + lost P,     add: delta(e) = sum_k q_k (1 - e^{e + L_k})_+ + lost Q,

L_k = log R at outcome k. If the masses are right to a relative error c and every L_k to an absolute one of d, the true
value at e lies between (1 - c) times the computed one at e + d and (1 + c) times the computed one at e - d.
"""

import math
from typing import NamedTuple

import numpy as np

from gdpjax._core.types import Bounds
from gdpjax.accounting._allocation._law import UNIT_ROUNDOFF, Pair

_STEPS = 40
_TO_SAFE_SIDE = 1e-7
_CLOSE = 2e-7


class _Direction(NamedTuple):
    """One direction of a pair: the outcomes' losses and masses, and the mass of infinite loss."""

    loss: np.ndarray
    mass: np.ndarray
    lost: float

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Return (delta, its rate of decrease in epsilon), without errors."""
        exceeds = self.loss > epsilon
        mass = self.mass[exceeds]
        difference = epsilon - self.loss[exceeds]
        value = float(np.sum(mass * -np.expm1(difference))) + self.lost
        rate = float(np.sum(mass * np.exp(difference)))
        return value, rate


class PairBound:
    """The bound on delta(epsilon) that a pair gives, moved by its errors up (side 1) or down (side -1)."""

    def __init__(self, pair: Pair, side: float) -> None:
        self._remove = _Direction(pair.log_ratio, np.exp(pair.log_p), pair.lost_p)
        self._add = _Direction(-pair.log_ratio, np.exp(pair.log_q), pair.lost_q)
        # Each direction sums that many terms.
        sum_rounding = UNIT_ROUNDOFF * (2.0 * pair.log_ratio.size + 64.0)
        self._factor = 1.0 + side * (2.0 * pair.rounding + sum_rounding)
        self.largest_loss = float(np.max(np.abs(pair.log_ratio), initial=0.0))
        self._displacement = pair.displacement
        self._side = side

    def delta(self, epsilon: float) -> tuple[float, float]:
        """Return the larger of the two directions, and about its rate of decrease in epsilon."""
        loss_error = self._displacement + 8.0 * UNIT_ROUNDOFF * (self.largest_loss + epsilon)
        moved_epsilon = epsilon - self._side * loss_error
        value, rate = max(self._remove.delta(moved_epsilon), self._add.delta(moved_epsilon))
        return value * self._factor, rate


def delta(pair: Pair, epsilon: float) -> Bounds:
    """Return a lower bound on delta from a pair that understates, an upper bound from one that overstates."""
    lower, _ = PairBound(pair, -1.0).delta(epsilon)
    upper, _ = PairBound(pair, 1.0).delta(epsilon)
    return Bounds(max(lower, 0.0), min(upper, 1.0))


def epsilon(pair: Pair, delta: float) -> Bounds:
    """Return bounds on epsilon: from a pair that understates a lower, else an upper one."""
    above = PairBound(pair, 1.0)
    # Beyond the largest finite loss delta is what is lost.
    largest = 1.0 + above.largest_loss * (1.0 + 1e-9)
    lower = _crossing(PairBound(pair, -1.0), delta, largest, above=True)
    delta_at_zero, _ = above.delta(0.0)
    delta_at_largest, _ = above.delta(largest)
    if delta_at_zero <= delta:
        return Bounds(lower, 0.0)
    if delta_at_largest > delta:
        return Bounds(lower, np.inf)
    return Bounds(lower, _crossing(above, delta, largest, above=False))


def _crossing(curve: PairBound, delta: float, largest: float, *, above: bool) -> float:
    """Return the largest known epsilon at which the curve is above delta, or else the smallest at which it is not.

    Newton's method for log delta proposes points, moved a little to the safe side; only a point at which the curve was
    evaluated is an answer. 0 and ``largest`` are ends to begin with, which every fourth step halves.
    """
    low, high = 0.0, largest
    point = 0.5 * largest
    for i in range(_STEPS):
        value, rate = curve.delta(point)
        is_safe = (value > delta) == above
        if value > delta:
            low = point
        else:
            high = point

        # Newton's step for log delta, which is taken unless it leaves the bracket, or this is a step that halves.
        newton = math.nan
        if value > 0 and rate > 0:
            newton = point + math.log(value / delta) * value / rate
        if is_safe and abs(newton - point) <= _CLOSE * point:
            break
        proposal = newton * (1.0 - _TO_SAFE_SIDE if above else 1.0 + _TO_SAFE_SIDE)
        point = 0.5 * (low + high)
        if low < proposal < high and i % 4 < 3:
            point = proposal
    return low if above else high
