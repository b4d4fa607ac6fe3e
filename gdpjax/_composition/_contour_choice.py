"""Choose where the contour lies. Nothing here is certified, and nothing needs to be: any contour gives a true bracket.

*The line* Re z = theta starts at the optimum of the Chernoff bound

    e(theta) = (K(theta) + log c(theta) + log(1/delta)) / theta,

which is where theta K' - K + log(1 + theta) = log(1/delta); the left side increases (`chernoff_line`). The saddle-point
formula

    delta = e^{K - theta e} / (theta (theta + 1) sqrt(2 pi V)),    V = K'' + theta^-2 + (theta + 1)^-2,

then gives a rough epsilon (`first_guess`), and K'(theta) = e + 1/theta + 1/(theta + 1) the line for it (`saddle_line`).

*The sampling of the line* (`choose_contour`). The period D makes both aliases small against delta. The smoothing eta
spends half of the relative width that is asked for; its cost is theta (theta + 1) eta^2 relative to delta. The cutoff
t_N = kappa / eta makes the tail small. The number of frequencies is then D t_N / (2 pi), and the number of panels is
what the quadrature bound asks for.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from gdpjax._composition import _atoms, _bounded_losses, _contour, _likelihood_ratio, _moments
from gdpjax._composition._characteristic_function import MAX_FREQUENCIES, Contour
from gdpjax._composition._likelihood_ratio import Steps
from gdpjax._composition._moments import Windows
from gdpjax._composition._run_description import RunDescription, is_alone, num_steps
from gdpjax._core.types import Array

LEAST_EPSILON = 1e-3
"""Below it the width of a bracket on epsilon is relative to this."""
_COARSE_PANELS = 4
_LOG_WINDOW_SHARE = np.log(1e-6)
"""log of the share of delta that windows may lose."""
LOG_ANY_DELTA = -650.0
"""Windows for a delta this small are wide enough for any."""
_LOG_LEAST_THETA, _LOG_LARGEST_THETA = np.log(1e-7), np.log(1e12)

_BELOW = np.array([0.25, 0.5, 0.75])
_ABOVE = np.array([1.04, 1.08, 1.15, 1.3, 1.6, 2.2, 3.2])
"""Shares of theta at which the bounds on the left and on the right aliases are tried."""
_LARGEST_ETA = 0.6
"""Beyond about 1 the factor e^{eta^2 / 2} between the two parts of the lower kernel is felt."""

_LITTLE_SMOOTHING = 0.1
"""The smoothing where the moments fall off by themselves, as a share of what it is otherwise."""
_NATS_WITHOUT_TAPER = 12.0
"""How much further they fall then, since the kernels fall slowly."""

_MAX_EVALUATIONS = 80
_NEWTON_STEPS = 20
_ROOT_WIDTH = 2e-3
_OVERSHOOT = 0.5e-3


class ContourPlan(NamedTuple):
    """A contour, and the guess of (epsilon, log delta) it is made for."""

    contour: Contour
    windows: Windows
    epsilon: Array
    log_delta: Array


class Cumulants(NamedTuple):
    """K and its first two derivatives at one theta: numbers, or arrays [events] or [runs]."""

    log_moment: Array
    mean: Array
    variance: Array


class OutcomeMasses(NamedTuple):
    """Events whose outcomes are equally many, for rough cumulants."""

    counts: Array
    """How often each event happens [events]."""
    loss: Array
    """[events, n]"""
    log_weight: Array
    """[events, n]"""
    powers: Array
    """1, the loss and its square [events, n, 3]"""

    def cumulants(self, theta: Array) -> Cumulants:
        """Return the cumulants of each event [events] at theta, a number or [events]."""
        exponent = self.log_weight + np.reshape(theta, (-1, 1)) * self.loss
        top = exponent.max(axis=1, keepdims=True)
        weight = np.exp(exponent - top)
        total, first, second = np.matmul(weight[:, None], self.powers)[:, 0].T
        mean = first / total
        variance = np.maximum(second / total - mean**2, 0.0)
        return Cumulants(np.log(total) + top[:, 0], mean, variance)

    def log_moments(self, theta: Array) -> Array:
        """Return K of each event at each theta [points] or [events, points]."""
        tilt = theta[..., None] * self.loss[:, None]
        return _moments.log_sum(self.log_weight[:, None] + tilt, axis=2)


class CoarseMeasure(Protocol):
    """A positive measure on the losses of a run, whose moments are known roughly."""

    def cumulants(self, theta: Array) -> Cumulants:
        """Return the cumulants at theta."""
        ...

    def log_moments(self, theta: Array) -> Array:
        """Return K at each theta [points]."""
        ...

    def log_frequency(self, theta: Array, log_moment: Array, nats: Array) -> Array:
        """Return the log of a frequency from which on |M(theta + it)| <= e^{K(theta) - nats}, where one is known."""
        ...


class CoarseRun(NamedTuple):
    """All the events of a run in its windows; or one kind of event of each of some runs side by side."""

    parts: tuple[OutcomeMasses, ...]
    run: RunDescription
    windows: Windows

    def cumulants(self, theta: Array) -> Cumulants:
        """Return the cumulants of the whole run at theta."""
        log_moment = mean = variance = 0.0
        for part in self.parts:
            of_each = part.cumulants(theta)
            log_moment += self.run.add_up(part.counts, of_each.log_moment)
            mean += self.run.add_up(part.counts, of_each.mean)
            variance += self.run.add_up(part.counts, of_each.variance)
        return Cumulants(log_moment, mean, variance)

    def log_moments(self, theta: Array) -> Array:
        """Return K of the whole run at each theta [points]."""
        total = np.zeros(theta.shape)
        for part in self.parts:
            total = total + self.run.add_up(part.counts, part.log_moments(theta))
        return total

    def log_frequency(self, theta: Array, log_moment: Array, nats: Array) -> Array:
        """Return the log of a frequency from which on |M(theta + it)| <= e^{K(theta) - nats}; inf: none is known."""
        if not is_alone(self.run):
            return np.inf
        # Where |A| <= V / t in every step, |M| <= prod (V / t)^T.
        steps = self.run.side_by_side
        log_variation = _moments.log_variation(steps, self.windows, theta)
        log_largest = self.run.add_up(steps.num_steps, log_variation) - log_moment
        return (log_largest + nats) / num_steps(self.run)


# ---------------------------------------------------------------------------------------------------------------------
# Rough moments of a run.


def choose_windows(run: RunDescription, log_delta: Array) -> Windows:
    """Return windows of the steps that lose about a millionth of delta over the whole run."""
    if not run.steps:
        return Windows(*np.zeros((3, 0)))
    steps = np.maximum(num_steps(run), 1.0)
    target = log_delta + _LOG_WINDOW_SHARE - np.log(4.0 * steps)
    return _moments.choose_windows(run.side_by_side, target)


def coarse_run(run: RunDescription, windows: Windows) -> CoarseRun:
    """Return a coarse quadrature of every kind of step, together with the outcomes of the other events."""
    parts = []
    if run.steps:
        parts.append(_coarse_steps(run.side_by_side, windows))
    for event in run.finite:
        loss, log_weight = _bounded_losses.distribution(event)
        parts.append(_one_event(event.num_steps, loss, log_weight))
    for event in run.atoms:
        loss, log_weight = _atoms.distribution(event)
        parts.append(_one_event(event.num_steps, loss, log_weight))
    return CoarseRun(tuple(parts), run, windows)


def _coarse_steps(steps: Steps, windows: Windows) -> OutcomeMasses:
    """Return a few nodes of all phases."""
    edges = _moments.uniform_edges(windows, _COARSE_PANELS)
    losses, log_weights = [], []
    for part in _likelihood_ratio.one_signed_parts(steps):
        nodes = _moments.make_nodes(part, edges)
        losses.append(nodes.loss)
        log_weights.append(nodes.log_weight)

    # A symmetric step has an atom at loss 0 as well.
    if steps.symmetric:
        mass = _likelihood_ratio.mass_at_zero_loss(steps)
        losses.append(np.zeros(mass.shape))
        log_weights.append(np.log(mass))
    return outcome_masses(steps.num_steps, np.concatenate(losses, axis=1), np.concatenate(log_weights, axis=1))


def _one_event(count: float, loss: Array, log_weight: Array) -> OutcomeMasses:
    return outcome_masses(np.array([count]), loss[None], log_weight[None])


def outcome_masses(counts: Array, loss: Array, log_weight: Array) -> OutcomeMasses:
    """Return events of these outcomes [events, n]."""
    powers = np.stack([np.ones(loss.shape), loss, loss**2], axis=2)
    return OutcomeMasses(counts, loss, log_weight, powers)


# ---------------------------------------------------------------------------------------------------------------------
# The line.


def rising_root(
    function: Callable[[Array], tuple[Array, Array]],
    low: float,
    high: float,
    start: Array,
) -> Array:
    """Return the root in theta of an increasing function, to 2e-3 of theta.

    Newton steps in log theta are kept between two ends that close in, because they go astray where the loss of one step
    has two scales (sampling_prob = 1e-4, or few expected participations). A step is made a little too long, so that the
    root is soon caught between two points. Where a step leaves the ends, and from the twentieth on, what is left is
    halved.

    Args:
        function: maps theta to the value of the function and its slope.
        low: log of an end below the root.
        high: log of an end above the root.
        start: log of a guess, or of one for each of some functions side by side.
    """
    x = np.minimum(np.maximum(start, low), high)
    lows, highs = low, high
    step: Array = np.zeros_like(x)
    for i in range(_MAX_EVALUATIONS):
        theta = np.exp(x)
        value, slope = function(theta)

        # The root is to the right of x where the value is negative.
        is_left_of_root = value < 0
        lows = np.where(is_left_of_root, x, lows)
        highs = np.where(is_left_of_root, highs, x)
        step = -value / (slope * theta)
        is_open = highs - lows >= _ROOT_WIDTH
        if not is_open.any():
            break

        # A step in the wrong direction, where the slope is not positive, leaves the ends as well.
        goal = 0.5 * (lows + highs)
        if i < _NEWTON_STEPS:
            proposal = x + step + np.where(is_left_of_root, _OVERSHOOT, -_OVERSHOOT)
            is_inside = (lows < proposal) & (proposal < highs)
            goal = np.where(is_inside, proposal, goal)
        x = np.where(is_open, goal, x)
    return np.exp(np.minimum(np.maximum(x + step, lows), highs))


def chernoff_line(coarse: CoarseMeasure, log_delta: Array) -> Array:
    """Return the theta of the best Chernoff bound on epsilon at delta."""

    def excess(theta: Array) -> tuple[Array, Array]:
        log_moment, mean, variance = coarse.cumulants(theta)
        value = theta * mean - log_moment + np.log1p(theta) + log_delta
        slope = theta * variance + 1.0 / (1.0 + theta)
        return value, slope

    # For a Gaussian loss the root is sqrt(2 log(1/delta) / variance).
    variance = coarse.cumulants(0.0).variance
    start = np.where(variance > 0, 0.5 * np.log(-2.0 * log_delta / variance), 0.0)
    return rising_root(excess, _LOG_LEAST_THETA, _LOG_LARGEST_THETA, start)


def saddle_line(coarse: CoarseMeasure, epsilon: Array, start: Array = 1.0) -> Array:
    """Return the theta of the saddle point of e^{K(z) - z e} / (z (z + 1)), sought from ``start``."""

    def excess(theta: Array) -> tuple[Array, Array]:
        _, mean, variance = coarse.cumulants(theta)
        poles = 1.0 / theta + 1.0 / (1.0 + theta)
        value = mean - poles - epsilon
        slope = variance + theta**-2 + (1.0 + theta) ** -2
        return value, slope

    return rising_root(excess, _LOG_LEAST_THETA, _LOG_LARGEST_THETA, np.log(start))


def saddle_log_delta(coarse: CoarseMeasure, theta: Array) -> Array:
    """Return the saddle-point estimate of log delta(e) + theta e."""
    log_moment, _, variance = coarse.cumulants(theta)
    spread = variance + theta**-2 + (1.0 + theta) ** -2
    return log_moment - np.log(theta * (1.0 + theta)) - 0.5 * np.log(2.0 * np.pi * spread)


class RoughEpsilon(NamedTuple):
    """A rough epsilon at delta, and the line it comes from."""

    epsilon: Array
    theta: Array


def first_guess(coarse: CoarseMeasure, log_delta: Array) -> RoughEpsilon:
    """Return the epsilon of the saddle-point formula on the line of the Chernoff bound."""
    theta = chernoff_line(coarse, log_delta)
    epsilon = (saddle_log_delta(coarse, theta) - log_delta) / theta
    return RoughEpsilon(np.maximum(epsilon, 0.0), theta)


def guess_log_delta(run: RunDescription, epsilon: float) -> float:
    """Return a rough log delta at epsilon, by the saddle-point formula with windows for any delta."""
    coarse = coarse_run(run, choose_windows(run, LOG_ANY_DELTA))
    theta = saddle_line(coarse, epsilon)
    return saddle_log_delta(coarse, theta) - theta * epsilon


# ---------------------------------------------------------------------------------------------------------------------
# The whole contour.


def make_plan(
    run: RunDescription,
    windows: Windows,
    coarse: CoarseMeasure,
    epsilon: Array,
    log_delta: Array,
    width: Array,
    *,
    of_delta: bool,
    start: Array = 1.0,
    least: float = LEAST_EPSILON,
) -> ContourPlan:
    """Return the plan about a guess of (epsilon, log delta).

    Args:
        run: one direction of a run.
        windows: those of its steps.
        coarse: the `coarse_run` of it in these windows.
        epsilon: the guess of epsilon.
        log_delta: the guess of log delta there.
        width: the relative width that the bracket shall have.
        of_delta: whether the bracket is one on delta, otherwise on epsilon.
        start: a guess of theta.
        least: below it the width of a bracket on epsilon is relative to this.
    """
    theta = saddle_line(coarse, epsilon, start)
    # log delta falls with the slope -theta.
    scale = 1.0 if of_delta else theta * np.maximum(epsilon, least)
    contour = choose_contour(coarse, theta, epsilon, log_delta, width * scale)
    return ContourPlan(contour, windows, epsilon, log_delta)


def choose_contour(coarse: CoarseMeasure, theta: Array, epsilon: Array, log_delta: Array, width: Array) -> Contour:
    """Return period, smoothing and cutoff for a line, a point (epsilon, log delta) and a relative width of delta."""
    # Aliases and the tail may be as large as 2 % of the width, relative to delta.
    log_share = np.log(0.02 * np.minimum(width, 1.0))
    goal = log_delta + log_share

    # For each exponent on either side: the period at which its bound makes the alias as small as the goal.
    shares = np.concatenate([[1.0], _BELOW, _ABOVE])
    points = np.multiply.outer(theta, shares)
    log_moments = coarse.log_moments(points)
    log_moment_at_theta = log_moments[..., 0]
    points = points[..., 1:]
    log_bounds = _contour.log_peak(points) + log_moments[..., 1:] - points * np.asarray(epsilon)[..., None]
    distance = np.abs(points - np.asarray(theta)[..., None])
    periods = np.maximum(log_bounds - np.asarray(goal)[..., None], 1.0) / distance

    # Both aliases are small at the longer of the two best periods. The left one is small, too, where e^{-theta D} is.
    left_points, right_points = points[..., : _BELOW.size], points[..., _BELOW.size :]
    left_periods, right_periods = periods[..., : _BELOW.size], periods[..., _BELOW.size :]
    left_period = np.minimum(np.min(left_periods, axis=-1), -goal / theta)
    period = np.maximum(left_period, np.min(right_periods, axis=-1))
    below = _largest_of_the_best(left_points, left_periods)
    above = _largest_of_the_best(right_points, right_periods)

    # The smoothing costs theta (theta + 1) eta^2 relative to delta.
    eta = np.minimum(np.sqrt(0.5 * width / (theta * (theta + 1.0))), _LARGEST_ETA)

    # The kernels fall as e^{-kappa^2 / 2} at the cutoff kappa / eta. The sum is relative to e^K, and delta is this much
    # of it.
    log_sum = log_delta + theta * epsilon - log_moment_at_theta
    nats = np.log(0.03) - log_share - log_sum
    kappa = np.sqrt(2.0 * np.minimum(np.maximum(nats, 6.0), 60.0))
    cutoff = kappa / eta

    # Where M itself has fallen before, the smoothing need not be felt.
    log_frequency = coarse.log_frequency(theta, log_moment_at_theta, nats + _NATS_WITHOUT_TAPER)
    fallen = np.exp(log_frequency) + 3.0 * 2.0 * np.pi / period  # the tail is bounded from a few terms before it on
    is_fallen = fallen < cutoff
    cutoff = np.where(is_fallen, fallen, cutoff)
    eta = np.where(is_fallen, eta * _LITTLE_SMOOTHING, eta)

    # If that takes more frequencies than there are, the cutoff is lowered and the smoothing grows in proportion.
    largest_cutoff = 0.999 * 2.0 * np.pi * MAX_FREQUENCIES / period
    crowding = np.maximum(cutoff / largest_cutoff, 1.0)
    return Contour(
        theta=theta,
        period=period,
        eta=eta * crowding,
        cutoff=cutoff / crowding,
        below=below,
        above=above,
        log_error=log_share + log_sum,
    )


def _largest_of_the_best(points: Array, cost: Array) -> Array:
    """Return the largest of the points with the least cost, along the last axis."""
    is_best = cost <= np.min(cost, axis=-1, keepdims=True)
    return np.max(np.where(is_best, points, -np.inf), axis=-1)
