"""From the bracket on delta(e) to the bracket on epsilon(delta), for one direction of one configuration."""

import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _characteristic_function, _contour
from gdpjax.accounting._numeric._characteristic_function import Contour, Transform
from gdpjax.accounting._numeric._contour import Sums
from gdpjax.accounting._numeric._contour_choice import Plan
from gdpjax.accounting._numeric._moments import Window
from gdpjax.accounting._numeric._run_description import Run

_MARGINS = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1)
_KERNELS = ("upper", "lower")


def epsilon_bracket(data: Transform, plan: Plan) -> tuple[Bounds, float]:
    """A certified bracket on the epsilon of one direction at delta = e^plan.log_delta, and an estimate inside it.

    Any e with a certified delta(e) <= delta is an upper bound, any with delta(e) >= delta a lower one. Newton's method
    proposes, the certified bounds dispose: the first proposal of a widening sequence that passes is returned, the
    Chernoff bound or 0 if none does. Comparisons leave 1e-13 for the rounding of log delta.
    """
    contour = plan.contour
    sums = _contour.make_sums(_KERNELS, data, contour, plan.epsilon)
    shift, converged = _estimate(sums, data, contour, plan)
    crossings = _crossings(sums, data, contour, plan, shift)
    highest, lowest = (max(plan.epsilon + crossing, 0.0) for crossing in crossings)

    lower, upper = None, None
    for margin in (*_MARGINS, None):  # the last stands for the plan's own epsilon
        above, below = plan.epsilon, plan.epsilon
        if margin is not None:
            above = highest + margin * max(highest, 1e-7) if highest > 0 else 0.0
            below = max(lowest - margin * max(lowest, 1e-7), 0.0)
        if upper is None:
            passed = _contour.log_upper_delta(data, contour, sums, plan.epsilon, above) <= plan.log_delta - 1e-13
            upper = above if passed else None
        if lower is None:
            passed = _contour.log_lower_delta(data, contour, sums, plan.epsilon, below) >= plan.log_delta + 1e-13
            lower = below if passed else None
        if upper is not None and lower is not None:
            break
    log_size = data.log_size + data.log_size_error
    chernoff = max(_chernoff(log_size, contour.theta, data.lost, plan.log_delta), data.least)
    upper = np.fmin(chernoff, np.inf if upper is None else upper)
    bounds = Bounds(0.0 if lower is None else lower, upper)
    guess = plan.epsilon + shift if converged else 0.5 * (bounds.lower + bounds.upper)
    return bounds, min(max(guess, bounds.lower), bounds.upper)


def log_upper_delta(data: Transform, plan: Plan) -> float:
    """A certified upper bound on log delta(plan.epsilon) of one direction."""
    sums = _contour.make_sums(("upper",), data, plan.contour, plan.epsilon)
    return _contour.log_upper_delta(data, plan.contour, sums, plan.epsilon, plan.epsilon)


def log_chernoff_delta(run: Run, windows: list[Window], theta: float, epsilon: float) -> float:
    """The Chernoff bound on log delta(epsilon) of one direction of a run of steps, which needs no line."""
    log_size, shifted = _log_size_above(run, windows, theta), theta * epsilon
    bound = log_size - shifted + _contour.log_peak(theta)
    slack = 1e-13 * (1.0 + abs(log_size) + abs(shifted))
    return np.logaddexp(bound + slack, np.log(_characteristic_function.lost_mass(run, windows)))


def log_delta_bracket(data: Transform, plan: Plan, epsilon: Array) -> tuple[Bounds, Array]:
    """Certified brackets on log delta of one direction at each epsilon [n], near plan.epsilon, and estimates inside."""
    contour, origin = plan.contour, plan.epsilon
    sums = _contour.make_sums(_KERNELS, data, contour, origin)
    lower, upper, guess = np.zeros((3, epsilon.size))
    for i, e in enumerate(epsilon):
        above = _contour.log_upper_delta(data, contour, sums, origin, e)
        below = _contour.log_lower_delta(data, contour, sums, origin, e)
        chernoff = _contour.log_scale(data, contour, e, 1.0) + _contour.log_peak(contour.theta)
        chernoff = np.logaddexp(chernoff + 1e-12 * (1.0 + abs(chernoff)), np.log(data.lost))
        chernoff = chernoff if e >= data.least else 0.0
        lower[i] = -np.inf if np.isnan(below) else below
        upper[i] = np.fmin(np.fmin(above, chernoff), 0.0)
        value = np.mean(_contour.evaluate(sums, e - origin)[0])
        middle = data.log_size - contour.theta * e + np.log(max(value, 1e-300))
        guess[i] = min(max(middle, lower[i]), upper[i])
    return Bounds(lower, upper), guess


def _estimate(sums: Sums, data: Transform, contour: Contour, plan: Plan) -> tuple[float, bool]:
    """Where the mean of the two sums, without error terms, crosses delta: a shift from plan.epsilon, and convergence.

    A step to where the (smaller) error of the upper sum drowns the value is taken back, and the next one is shorter.
    """
    reach = 0.45 * contour.period
    close = 1e-3 * contour.eta
    good, move, radius = 0.0, 0.0, 0.4 * reach
    for _ in range(14):
        shift = min(max(good + move, -reach, -plan.epsilon), reach)
        values, slopes = _contour.evaluate(sums, shift)
        value, slope = 0.5 * (values[0] + values[1]), 0.5 * (slopes[0] + slopes[1])
        if value > 2.0 * sums.error[0]:
            height = data.log_size - contour.theta * (plan.epsilon + shift) + np.log(value) - plan.log_delta
            rate = min(slope / value - contour.theta, -0.02 * contour.theta)
            good, move = shift, -height / rate
        else:
            radius = 0.3 * min(radius, abs(move))
        move = min(max(move, -radius), radius)
        if not abs(move) > close:
            break
    return min(max(good + move, -reach), reach), abs(move) <= close


def _crossings(sums: Sums, data: Transform, contour: Contour, plan: Plan, guess: float) -> tuple[float, float]:
    """Where the two bounds cross delta, by Newton's method from the estimate; terms outside the sums held fixed."""
    lost = np.exp(min(np.log(data.lost) - plan.log_delta, -0.5))
    alias = np.exp(min(_contour.log_alias(data, contour, plan.epsilon + guess) - plan.log_delta, 0.0))
    goals = plan.log_delta + np.log1p(-lost), plan.log_delta + np.log1p(alias)
    reach = 0.2 * contour.period

    def crossing(kernel: int, error: float, goal: float) -> float:
        shift = guess
        for _ in range(3):
            values, slopes = _contour.evaluate(sums, shift)
            safe = max(values[kernel] + error, 1e-300)
            height = data.log_size - contour.theta * (plan.epsilon + shift) + np.log(safe) - goal
            rate = min(slopes[kernel] / safe - contour.theta, -0.05 * contour.theta)
            move = min(max(shift - height / rate, guess - reach), guess + reach) - shift
            shift += move
            if not abs(move) > 1e-5 * abs(plan.epsilon + shift):  # the next step would be about its square
                break
        return shift

    return crossing(0, sums.error[0], goals[0]), crossing(1, -sums.error[1], goals[1])


def chernoff_epsilon(run: Run, windows: list[Window], theta: float, log_delta: float) -> float:
    """The Chernoff bound on epsilon of one direction of a run of steps, which needs no line."""
    return _chernoff(
        _log_size_above(run, windows, theta), theta, _characteristic_function.lost_mass(run, windows), log_delta
    )


def _log_size_above(run: Run, windows: list[Window], theta: float) -> float:
    """An upper bound on K(theta) of a run of steps."""
    counts = np.array([step.num_steps for step in run.steps])
    return counts @ _characteristic_function.log_moments_above(run.steps, windows, theta)


def _chernoff(log_size: float, theta: float, lost: float, log_delta: float) -> float:
    """delta <= c(theta) e^{K(theta) - theta e} + lost, solved for e; ``log_size`` is at least K(theta)."""
    share = lost / np.exp(log_delta) if log_delta > -700.0 else np.inf
    if not share < 0.5:
        return np.inf
    room = log_delta + np.log1p(-share)
    peak = _contour.log_peak(theta)
    slack = 1e-14 * (1.0 + abs(log_size) + abs(peak) + abs(log_delta))
    return max((log_size + peak - room + slack) / theta, 0.0)
