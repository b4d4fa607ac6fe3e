"""Turn brackets on delta(e) into brackets on epsilon(delta), for one direction of one run.

Any e with a certified delta(e) <= delta is an upper bound on epsilon, and any e with delta(e) >= delta a lower one. So
Newton's method, which knows nothing of errors, proposes points, and the certified bounds of `_contour` decide about
them. The Chernoff bound is there where they do not reach.

Every number of a run may be an array [runs] of runs side by side.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from gdpjax._composition import _characteristic_function, _contour
from gdpjax._composition._characteristic_function import RunOnLine
from gdpjax._composition._contour import TrapezoidSums
from gdpjax._composition._contour_choice import ContourPlan
from gdpjax._composition._moments import Windows
from gdpjax._composition._run_description import RunDescription, per_line
from gdpjax._core.types import Array, Bounds

_MARGINS = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
"""Relative distances from a proposal at which an end is tried, until one is certified."""
_LEAST_MARGIN_EPSILON = 1e-7
"""Below it the distances are relative to this."""
_LOG_DELTA_ROUNDING = 1e-13
"""Comparisons leave this for the rounding of log delta."""
_KERNELS = ("upper", "lower")
_UPPER, _LOWER = range(2)
_LEAST_LOG_DELTA = -700.0

_ONLY_UPPER, _ONLY_LOWER, _MEAN = np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.5, 0.5])
"""Weights of the two sums."""
_NEWTON_STEPS = 14


class PlannedLine(NamedTuple):
    """The transform of a run along a planned contour, and the sums of the two kernels about the plan's epsilon."""

    data: RunOnLine
    plan: ContourPlan
    sums: TrapezoidSums

    def log_upper_delta(self, epsilon: Array) -> Array:
        """Return a certified upper bound on log delta(epsilon)."""
        plan = self.plan
        return _contour.log_upper_delta(self.data, plan.contour, self.sums, plan.epsilon, epsilon)

    def log_lower_delta(self, epsilon: Array) -> Array:
        """Return a certified lower bound on log delta(epsilon)."""
        plan = self.plan
        return _contour.log_lower_delta(self.data, plan.contour, self.sums, plan.epsilon, epsilon)


def make_line(data: RunOnLine, plan: ContourPlan) -> PlannedLine:
    """Return the transform with the sums of the two kernels."""
    sums = _contour.make_sums(_KERNELS, data, plan.contour, plan.epsilon)
    return PlannedLine(data, plan, sums)


def _clipped(value: Array, low: Array, high: Array) -> Array:
    return np.minimum(np.maximum(value, low), high)


# ---------------------------------------------------------------------------------------------------------------------
# Epsilon.


def epsilon_bracket(line: PlannedLine, guess: Array, log_delta: Array) -> tuple[Array, Array, Array]:
    """Return the certified ends of the epsilon of one direction at e^log_delta, and an estimate inside.

    Each end is the first one of a widening sequence of proposals that is certified. If none is, the upper end is the
    Chernoff bound and the lower one is 0.

    Args:
        line: a line for deltas near this one.
        guess: a guess of epsilon, where the search begins.
        log_delta: log of the delta that is asked about.
    """
    origin = line.plan.epsilon
    line = line._replace(plan=line.plan._replace(log_delta=log_delta))
    # Where the mean of the two sums, without error terms, crosses delta.
    drowned = 2.0 * line.sums.error[..., _UPPER]
    shift, converged = _crossing(line, _MEAN, 0.0, log_delta, guess - origin, drowned)
    upper_crossing, lower_crossing = _crossings(line, shift)
    highest = np.maximum(origin + upper_crossing, 0.0)
    lowest = np.maximum(origin + lower_crossing, 0.0)

    # The upper end is sought upwards, the lower one downwards.
    goal = log_delta - _LOG_DELTA_ROUNDING
    points = [np.where(highest > 0, highest + distance, 0.0) for distance in _distances(highest)]
    upper = _first_point([*points, guess], lambda point: line.log_upper_delta(point) <= goal, np.inf)
    upper = np.fmin(_chernoff_upper(line), upper)

    goal = log_delta + _LOG_DELTA_ROUNDING
    points = [np.maximum(lowest - distance, 0.0) for distance in _distances(lowest)]
    lower = _first_point([*points, guess], lambda point: line.log_lower_delta(point) >= goal, 0.0)

    estimate = np.where(converged, origin + shift, 0.5 * (lower + upper))
    return lower, upper, _clipped(estimate, lower, upper)


def _distances(end: Array) -> list[Array]:
    """Return the distances from a proposal at which an end is tried."""
    return [margin * np.maximum(end, _LEAST_MARGIN_EPSILON) for margin in _MARGINS]


def _first_point(points: Iterable[Array], is_certified: Callable[[Array], Array], otherwise: float) -> Array:
    """Return the first of the points at which something is certified."""
    found: Array = otherwise
    is_open = np.True_
    for point in points:
        is_found = is_open & is_certified(point)
        found = np.where(is_found, point, found)
        is_open = is_open & ~is_found
        if not np.any(is_open):
            break
    return found


def _chernoff_upper(line: PlannedLine) -> Array:
    """Return the Chernoff bound on epsilon on the line itself; below ``least`` nothing is known."""
    data, plan = line.data, line.plan
    log_size = data.log_size + data.log_size_error
    bound = _chernoff(log_size, plan.contour.theta, data.lost, plan.log_delta)
    return np.maximum(bound, data.least)


def _crossing(
    line: PlannedLine, weights: Array, error: Array, goal: Array, start: Array, least: Array = 0.0
) -> tuple[Array, Array]:
    """Return where the weighted sums, moved by an error, make log delta the goal, and whether the search converged.

    The answer is a shift from plan.epsilon, sought by Newton's method from ``start``. A step to where the value is not
    above the ``least`` one is taken back, and the next one is shorter.
    """
    data, plan, sums = line.data, line.plan, line.sums
    theta = plan.contour.theta
    reach = 0.45 * plan.contour.period
    close = 1e-3 * plan.contour.eta
    last_good, move = np.zeros(np.shape(theta)), start
    longest_move = 0.4 * reach
    is_open = np.ones(np.shape(theta), bool)
    for _ in range(_NEWTON_STEPS):
        shift = _clipped(last_good + move, np.maximum(-reach, -plan.epsilon), reach)
        values, slopes = _contour.evaluate(sums, shift)
        value = weights @ values + error

        # log delta is log_size - theta e + log(value), and delta falls by at least a little.
        is_good = value > least
        safe_value = np.where(is_good, value, 1.0)
        log_delta = data.log_size - theta * (plan.epsilon + shift) + np.log(safe_value)
        rate = np.minimum(weights @ slopes / safe_value - theta, -0.02 * theta)
        newton_move = np.where(is_good, -(log_delta - goal) / rate, move)

        # What has converged stays.
        last_good = np.where(is_open & is_good, shift, last_good)
        shorter = 0.3 * np.minimum(longest_move, np.abs(move))
        longest_move = np.where(is_open & ~is_good, shorter, longest_move)
        move = np.where(is_open, _clipped(newton_move, -longest_move, longest_move), move)
        is_open = is_open & (np.abs(move) > close)
        if not is_open.any():
            break
    converged = np.abs(move) <= close
    return _clipped(last_good + move, -reach, reach), converged


def _crossings(line: PlannedLine, guess: Array) -> tuple[Array, Array]:
    """Return where the upper and the lower bound cross delta, about: shifts from plan.epsilon.

    What is added to the sums for the lost mass and the aliases is held fixed at the ``guess``.
    """
    data, plan, sums = line.data, line.plan, line.sums
    log_lost_share = np.log(data.lost) - plan.log_delta
    lost_share = np.exp(np.minimum(log_lost_share, -0.5))
    log_alias = _contour.log_alias(data, plan.contour, plan.epsilon + guess)
    alias_share = np.exp(np.minimum(log_alias - plan.log_delta, 0.0))

    # The bounds are the two sums, moved by their errors.
    upper_goal = plan.log_delta + np.log1p(-lost_share)
    lower_goal = plan.log_delta + np.log1p(alias_share)
    upper, _ = _crossing(line, _ONLY_UPPER, sums.error[..., _UPPER], upper_goal, guess)
    lower, _ = _crossing(line, _ONLY_LOWER, -sums.error[..., _LOWER], lower_goal, guess)
    return upper, lower


# ---------------------------------------------------------------------------------------------------------------------
# Log delta.


def log_delta_bracket(
    data: RunOnLine,
    plan: ContourPlan,
    epsilon: Array,
) -> tuple[Bounds, Array]:
    """Return certified brackets on log delta of one direction at each epsilon, and estimates inside them.

    Args:
        data: the transform along the plan's contour.
        plan: made for an epsilon near those asked about.
        epsilon: the points [n].
    """
    line = make_line(data, plan)
    theta = plan.contour.theta
    lower, upper, estimate = np.zeros((3, epsilon.size))
    for i, e in enumerate(epsilon):
        # The ends; a number that is not known says nothing.
        above = line.log_upper_delta(e)
        below = line.log_lower_delta(e)
        chernoff = _log_chernoff_delta_on_line(line, e)
        lower[i] = np.fmax(below, -np.inf)
        upper[i] = np.fmin(np.fmin(above, chernoff), 0.0)

        # The mean of the two sums, without error terms.
        values, _ = _contour.evaluate(line.sums, e - plan.epsilon)
        value = max(np.mean(values), 1e-300)
        middle = data.log_size - theta * e + np.log(value)
        estimate[i] = _clipped(middle, lower[i], upper[i])
    return Bounds(lower, upper), estimate


def _log_chernoff_delta_on_line(line: PlannedLine, epsilon: float) -> float:
    """Return the Chernoff bound on log delta(epsilon) at the theta of the line."""
    data, contour = line.data, line.plan.contour
    if not epsilon >= data.least:
        return 0.0
    log_scale = _contour.log_scale(data, contour, epsilon, 1.0)
    bound = log_scale + _contour.log_peak(contour.theta)
    slack = 1e-12 * (1.0 + abs(bound))
    return np.logaddexp(bound + slack, np.log(data.lost))


# ---------------------------------------------------------------------------------------------------------------------
# Chernoff bounds on runs of steps, which need no line.


def log_chernoff_delta(
    run: RunDescription,
    windows: Windows,
    theta: Array,
    epsilon: Array,
) -> Array:
    """Return the Chernoff bound on log delta(epsilon) of one direction of a run of steps."""
    log_size = per_line(run, _log_size_above, windows, theta)
    tilt = theta * epsilon
    bound = log_size - tilt + _contour.log_peak(theta)
    slack = 1e-13 * (1.0 + np.abs(log_size) + np.abs(tilt))
    lost = _characteristic_function.lost_mass(run, windows)
    return np.logaddexp(bound + slack, np.log(lost))


def _log_size_above(run: RunDescription, windows: Windows, theta: Array) -> Array:
    """Return an upper bound on K(theta) of a run of steps."""
    steps = run.side_by_side
    return run.add_up(steps.num_steps, _characteristic_function.log_moments_above(steps, windows, theta))


def _chernoff(log_size: Array, theta: Array, lost: Array, log_delta: Array) -> Array:
    """Solve delta <= c(theta) e^{K(theta) - theta e} + lost for e; ``log_size`` is at least K(theta)."""
    share = lost / np.exp(np.maximum(log_delta, _LEAST_LOG_DELTA))
    is_known = (log_delta > _LEAST_LOG_DELTA) & (share < 0.5)
    goal = log_delta + np.log1p(-np.where(is_known, share, 0.0))
    peak = _contour.log_peak(theta)
    size = 1.0 + np.abs(log_size) + np.abs(peak) + np.abs(log_delta)
    slack = 1e-14 * size
    bound = np.maximum((log_size + peak - goal + slack) / theta, 0.0)
    return np.where(is_known, bound, np.inf)[()]
