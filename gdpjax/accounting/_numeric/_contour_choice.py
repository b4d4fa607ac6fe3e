"""Where to put the contour. Nothing here is certified, and nothing needs to be: any plan gives a true bracket.

For a target delta the line starts at the optimum of the Chernoff bound e(theta) = (K(theta) + log c(theta) +
log(1/delta)) / theta, where theta K' - K + log(1 + theta) = log(1/delta), whose left side increases. Newton steps
alone go astray where the one-step loss has two scales (p = 1e-4, or T p small), so they are kept between two ends.
The saddle-point formula delta = e^{K - theta e} / (theta (theta + 1) sqrt(2 pi V)), V = K'' + theta^-2 + (theta +
1)^-2, then gives an epsilon, and K'(theta) = e + 1/theta + 1/(theta + 1) the line for it.

The period D makes both aliases small against delta, the smoothing eta spends half of the wanted relative width (its
cost is theta (theta + 1) eta^2 relative to delta), and the cutoff t_N = kappa / eta makes the tail small. The number
of frequencies is then D t_N / (2 pi), the number of panels what the quadrature bound asks for.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _atoms, _bounded_losses, _contour, _likelihood_ratio, _moments
from gdpjax.accounting._numeric._characteristic_function import MAX_FREQUENCIES, Contour
from gdpjax.accounting._numeric._likelihood_ratio import Step
from gdpjax.accounting._numeric._moments import Window
from gdpjax.accounting._numeric._run_description import Run, num_steps

PLAN_PANELS = 8
LEAST_EPSILON = 1e-3
"""Below it the width of a bracket on epsilon is relative to this."""
LOG_CUT = np.log(1e-6)
_BELOW, _ABOVE = np.array([0.25, 0.5, 0.75]), np.array([1.04, 1.08, 1.15, 1.3, 1.6, 2.2, 3.2])
_LOG_THETA = (np.log(1e-7), np.log(1e12))


class Plan(NamedTuple):
    """A contour, and the guess of (epsilon, log delta) it is made for."""

    contour: Contour
    windows: list[Window]
    epsilon: float
    log_delta: float


class Masses(NamedTuple):
    """Events whose outcomes are counted alike, for rough cumulants: how often each happens, its losses, log weights."""

    counts: Array
    """[events]"""
    loss: Array
    """[events, n]"""
    log_weight: Array
    """[events, n]"""

    def cumulants(self, theta: float) -> tuple[Array, Array, Array]:
        """K, K' and K'' of each event [events] at theta."""
        exponent = self.log_weight + theta * self.loss
        top = exponent.max(axis=1)
        weight = np.exp(exponent - top[:, None])
        total = weight.sum(axis=1)
        mean = np.einsum("ij,ij->i", weight, self.loss) / total
        centred = self.loss - mean[:, None]
        spread = np.einsum("ij,ij,ij->i", weight, centred, centred) / total
        return np.log(total) + top, mean, spread

    def log_moments(self, theta: Array) -> Array:
        """K of each event at each theta [events, points]."""
        return _moments.log_sum(self.log_weight[:, None] + theta[:, None] * self.loss[:, None], axis=2)


def masses(run: Run, windows: list[Window]) -> "Composition":
    """A coarse quadrature of every phase, and the outcomes of the other events."""
    found = []
    if run.steps:
        pairs = [_coarse(step, window) for step, window in zip(run.steps, windows, strict=True)]
        loss, log_weight = (np.stack(column) for column in zip(*pairs, strict=True))
        found.append(Masses(np.array([step.num_steps for step in run.steps]), loss, log_weight))
    for event in run.finite:
        found.append(_one_event(event.num_steps, *_bounded_losses.distribution(event)))
    for event in run.atoms:
        found.append(_one_event(event.num_steps, *_atoms.distribution(event)))
    return Composition(found)


def _coarse(step: Step, window: Window) -> tuple[Array, Array]:
    edges = _moments.uniform_edges(window, PLAN_PANELS)
    pieces = [_moments.make_nodes(part, edges) for part in _likelihood_ratio.parts(step)]
    losses, log_weights = [piece.loss for piece in pieces], [piece.log_weight for piece in pieces]
    if step.symmetric:
        losses, log_weights = [*losses, np.zeros(1)], [*log_weights, np.log([_likelihood_ratio.rest(step)])]
    return np.concatenate(losses), np.concatenate(log_weights)


def _one_event(count: float, loss: Array, log_weight: Array) -> Masses:
    return Masses(np.array([count]), loss[None], log_weight[None])


class Coarse(Protocol):
    """A positive measure on the losses of a run, of which planning knows the moments roughly."""

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at theta."""
        ...

    def log_moments(self, theta: Array) -> Array:
        """K at each theta [points]."""
        ...


class Composition(NamedTuple):
    """All the events of a run."""

    parts: list[Masses]

    def cumulants(self, theta: float) -> tuple[float, float, float]:
        """K, K' and K'' at theta."""
        zeroth = first = second = 0.0
        for part in self.parts:
            log_moment, mean, spread = part.cumulants(theta)
            zeroth += part.counts @ log_moment
            first += part.counts @ mean
            second += part.counts @ spread
        return zeroth, first, second

    def log_moments(self, theta: Array) -> Array:
        """K at each theta [points]."""
        return sum(part.counts @ part.log_moments(theta) for part in self.parts) + np.zeros(theta.size)


def rising_root(function: Callable[[float], tuple[float, float]], low: float, high: float, start: float) -> float:
    """The root in theta of an increasing function, given with its slope, to 2e-3 of theta.

    Newton steps in log theta between two ends that close in. A short step is made a little too long, so that the root
    is caught between two points. Where a step leaves the ends, and from the twentieth on, what is left is halved.
    """
    x = min(max(start, low), high)
    for i in range(80):
        theta = np.exp(x)
        value, slope = function(theta)
        low, high = (x, high) if value < 0 else (low, x)
        step = -value / (slope * theta) if slope > 0 else np.nan
        if high - low < 2e-3:
            break
        new = x + step + (0.5e-3 if value < 0 else -0.5e-3)
        x = new if low < new < high and i < 20 else 0.5 * (low + high)
    return np.exp(min(max(x + step, low), high))


def chernoff_line(coarse: Coarse, log_delta: float) -> float:
    """theta of the best Chernoff bound on epsilon at delta."""

    def slope(theta: float) -> tuple[float, float]:
        k, k1, k2 = coarse.cumulants(theta)
        return theta * k1 - k + np.log1p(theta) + log_delta, theta * k2 + 1.0 / (1.0 + theta)

    variance = coarse.cumulants(0.0)[2]
    start = 0.5 * np.log(-2.0 * log_delta / variance) if variance > 0 else 0.0
    return rising_root(slope, *_LOG_THETA, start)


def saddle_line(coarse: Coarse, epsilon: float, start: float = 1.0) -> float:
    """theta of the saddle point of e^{K(z) - z e} / (z (z + 1)), sought from ``start``."""

    def slope(theta: float) -> tuple[float, float]:
        _, k1, k2 = coarse.cumulants(theta)
        rest = 1.0 / theta + 1.0 / (1.0 + theta)
        return k1 - rest - epsilon, k2 + theta**-2 + (1.0 + theta) ** -2

    return rising_root(slope, *_LOG_THETA, np.log(start))


def saddle_log_delta(coarse: Coarse, theta: float) -> float:
    """The saddle-point estimate of log delta(e) + theta e."""
    k, _, k2 = coarse.cumulants(theta)
    spread = k2 + theta**-2 + (1.0 + theta) ** -2
    return k - np.log(theta * (1.0 + theta)) - 0.5 * np.log(2.0 * np.pi * spread)


def windows(run: Run, log_delta: float) -> list[Window]:
    """Windows that lose about e^LOG_CUT delta over the whole run."""
    target = log_delta + LOG_CUT - np.log(4.0 * max(num_steps(run), 1.0))
    return [_moments.choose_window(step, target) for step in run.steps]


class Rough(NamedTuple):
    """A rough epsilon at delta, and the line it comes from."""

    epsilon: float
    theta: float


def first_guess(coarse: Coarse, log_delta: float) -> Rough:
    """The saddle-point formula on the line of the Chernoff bound."""
    theta = chernoff_line(coarse, log_delta)
    return Rough(max((saddle_log_delta(coarse, theta) - log_delta) / theta, 0.0), theta)


def make_plan(
    run: Run, windows: list[Window], coarse: Coarse, epsilon: float, log_delta: float, width: float,
    *, of_delta: bool, start: float = 1.0, least: float = LEAST_EPSILON,
) -> Plan:  # fmt: skip
    """The plan about a guess of (epsilon, log delta), for a relative ``width`` of delta, or else of epsilon.

    ``coarse`` are the `masses` of the run, ``start`` a guess of theta.
    """
    theta = saddle_line(coarse, epsilon, start)
    scale = 1.0 if of_delta else theta * max(epsilon, least)
    return Plan(choose_contour(coarse, theta, epsilon, log_delta, width * scale), windows, epsilon, log_delta)


def guess_log_delta(run: Run, epsilon: float) -> float:
    """A rough log delta at epsilon: the saddle-point formula, with a window for any delta."""
    coarse = masses(run, windows(run, -650.0))
    theta = saddle_line(coarse, epsilon)
    return saddle_log_delta(coarse, theta) - theta * epsilon


def choose_contour(coarse: Coarse, theta: float, epsilon: float, log_delta: float, width: float) -> Contour:
    """Period, smoothing and cutoff for a line, a point (epsilon, log delta) and a relative width of delta."""
    slack = np.log(0.02 * min(width, 1.0))
    goal = log_delta + slack

    # The period at which both aliases are small, with the best of some exponents.
    points = theta * np.concatenate([[1.0], _BELOW, _ABOVE])
    log_k = coarse.log_moments(points)
    k, points, log_k = log_k[0], points[1:], log_k[1:]
    needed = np.maximum(_contour.log_peak(points) + log_k - points * epsilon - goal, 1.0) / np.abs(points - theta)
    left, right = needed[: _BELOW.size], needed[_BELOW.size :]
    period = max(min(np.min(left), -goal / theta), np.min(right))
    below, above = _best(points[: _BELOW.size], left), _best(points[_BELOW.size :], right)

    # Beyond about 1 the factor e^{eta^2 / 2} between the two parts of the lower kernel is felt.
    eta = min(np.sqrt(0.5 * width / (theta * (theta + 1.0))), 0.6)
    share = log_delta + theta * epsilon - k  # log of the sum, relative to e^K
    kappa = np.sqrt(2.0 * min(max(np.log(0.03) - slack - share, 6.0), 60.0))
    cutoff = kappa / eta
    room = 0.999 * 2.0 * np.pi * MAX_FREQUENCIES / period
    crowding = max(cutoff / room, 1.0)
    return Contour(theta, period, eta * crowding, cutoff / crowding, below, above, slack + share)


def _best(points: Array, cost: Array) -> float:
    """The largest of the points with the least cost."""
    return np.max(points[cost <= np.min(cost)], initial=-np.inf)
