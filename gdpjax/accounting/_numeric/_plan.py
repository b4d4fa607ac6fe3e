"""Where to put the contour. Nothing here is certified, and nothing needs to be: any plan gives a true bracket.

For a target delta the line starts at the optimum of the Chernoff bound e(theta) = (K(theta) + log c(theta) +
log(1/delta)) / theta, where theta K' - K + log(1 + theta) = log(1/delta), whose left side increases. Bisection, because
Newton steps go astray where the one-step loss has two scales (p = 1e-4, or T p small). The saddle-point formula
delta = e^{K - theta e} / (theta (theta + 1) sqrt(2 pi V)), V = K'' + theta^-2 + (theta + 1)^-2, then gives an epsilon,
and K'(theta) = e + 1/theta + 1/(theta + 1) the line for it.

The period D makes both aliases small against delta, the smoothing eta spends half of the wanted relative width
(its cost is theta (theta + 1) eta^2 relative to delta), and the cutoff t_N = kappa / eta makes the tail small. The
number of frequencies is then D t_N / (2 pi), the number of panels what the quadrature bound asks for.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _atoms, _contour, _finite, _moments, _ratio
from gdpjax.accounting._numeric._line import MAX_FREQUENCIES, Contour
from gdpjax.accounting._numeric._moments import Window
from gdpjax.accounting._numeric._ratio import Step
from gdpjax.accounting._numeric._run import Run, num_steps

PLAN_PANELS = 8
LOG_CUT = np.log(1e-6)
_BELOW, _ABOVE = (0.25, 0.5, 0.75), (1.04, 1.08, 1.15, 1.3, 1.6, 2.2, 3.2)
_LOG_THETA = (np.log(1e-7), np.log(1e12))


class Plan(NamedTuple):
    """A contour, and the guess of (epsilon, log delta) it is made for."""

    contour: Contour
    window: Window
    epsilon: Array
    log_delta: Array


class Masses(NamedTuple):
    """Losses and log weights of all phases, for rough cumulants: those of the steps [J, n], of other events [F, n]."""

    steps: tuple[Array, Array]
    finite: tuple[Array, Array] | None
    atoms: tuple[Array, Array] | None


def masses(run: Run, window: Window) -> Masses:
    """A coarse quadrature of every phase."""

    def one(step: Step, window: Window) -> tuple[Array, Array]:
        pieces = [_moments.make_nodes(part, _moments.uniform_edges(window, PLAN_PANELS)) for part in _ratio.parts(step)]
        losses, log_weights = [piece.loss for piece in pieces], [piece.log_weight for piece in pieces]
        if step.symmetric:
            losses, log_weights = [*losses, jnp.zeros(1)], [*log_weights, jnp.log(_ratio.rest(step))[None]]
        return jnp.concatenate(losses), jnp.concatenate(log_weights)

    finite = None if run.finite is None else jax.vmap(_finite.distribution)(run.finite)
    atoms = None if run.atoms is None else jax.vmap(_atoms.distribution)(run.atoms)
    return jax.lax.optimization_barrier(Masses(jax.vmap(one)(run.steps, window), finite, atoms))


def cumulants(run: Run, masses: Masses, theta: Array) -> tuple[Array, Array, Array]:
    """K, K' and K'' of the composition at theta."""

    def summed(counts: Array, lines: tuple[Array, Array]) -> list[Array]:
        values = jax.vmap(lambda loss, log_weight: _moments.log_moment(loss, log_weight, theta))(*lines)
        return [jnp.sum(counts * value) for value in values]

    total = summed(run.steps.num_steps, masses.steps)
    for part, lines in ((run.finite, masses.finite), (run.atoms, masses.atoms)):
        if part is not None and lines is not None:
            more = summed(part.num_steps, lines)
            total = [a + b for a, b in zip(total, more, strict=True)]
    zeroth, first, second = total
    return zeroth, first, second


def bisect(function, low: Array, high: Array, iterations: int) -> Array:
    """The root in theta of an increasing function, on a logarithmic scale."""

    def body(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        right = function(jnp.exp(middle)) < 0
        return jnp.where(right, middle, low), jnp.where(right, high, middle)

    low, high = jax.lax.fori_loop(np.int32(0), np.int32(iterations), body, (low, high))
    return jnp.exp(0.5 * (low + high))


def chernoff_line(run: Run, masses: Masses, log_delta: Array) -> Array:
    """theta of the best Chernoff bound on epsilon at delta."""

    def slope(theta):
        k, k1, _ = cumulants(run, masses, theta)
        return theta * k1 - k + jnp.log1p(theta) + log_delta

    return bisect(slope, *_LOG_THETA, 16)


def saddle_line(run: Run, masses: Masses, epsilon: Array) -> Array:
    """theta of the saddle point of e^{K(z) - z e} / (z (z + 1))."""

    def slope(theta):
        _, k1, _ = cumulants(run, masses, theta)
        return k1 - 1.0 / theta - 1.0 / (1.0 + theta) - epsilon

    return bisect(slope, *_LOG_THETA, 16)


def saddle_log_delta(run: Run, masses: Masses, theta: Array) -> Array:
    """The saddle-point estimate of log delta(e) + theta e."""
    k, _, k2 = cumulants(run, masses, theta)
    spread = k2 + theta**-2 + (1.0 + theta) ** -2
    return k - jnp.log(theta * (1.0 + theta)) - 0.5 * jnp.log(2.0 * np.pi * spread)


def windows(run: Run, log_delta: Array) -> Window:
    """Windows that lose about e^LOG_CUT delta over the whole run."""
    target = log_delta + LOG_CUT - jnp.log(4.0 * jnp.maximum(num_steps(run), 1.0))
    return jax.vmap(lambda step: _moments.choose_window(step, target))(run.steps)


def first_guess(run: Run, window: Window, log_delta: Array) -> Array:
    """A rough epsilon at delta: the saddle-point formula on the line of the Chernoff bound."""
    coarse = masses(run, window)
    theta = chernoff_line(run, coarse, log_delta)
    return jnp.maximum((saddle_log_delta(run, coarse, theta) - log_delta) / theta, 0.0)


def make_plan(run: Run, window: Window, epsilon: Array, log_delta: Array, width: Array, *, of_delta: bool) -> Plan:
    """The plan about a guess of (epsilon, log delta), for a relative ``width`` of delta, or else of epsilon."""
    coarse = masses(run, window)
    theta = saddle_line(run, coarse, epsilon)
    scale = 1.0 if of_delta else theta * jnp.maximum(epsilon, 1e-6 / width)
    return refine(run, window, coarse, theta, epsilon, log_delta, width * scale)


def guess_log_delta(run: Run, epsilon: Array) -> Array:
    """A rough log delta at epsilon: the saddle-point formula, with a window for any delta."""
    coarse = masses(run, windows(run, jnp.asarray(-650.0)))
    theta = saddle_line(run, coarse, epsilon)
    return saddle_log_delta(run, coarse, theta) - theta * epsilon


def refine(
    run: Run, window: Window, masses: Masses, theta: Array, epsilon: Array, log_delta: Array, width: Array
) -> Plan:
    """Choose period, smoothing and cutoff for a line, a point (epsilon, log delta) and a relative width of delta."""
    slack = jnp.log(0.02 * jnp.minimum(width, 1.0))
    k = cumulants(run, masses, theta)[0]
    goal = log_delta + slack

    points = theta * jnp.asarray([*_BELOW, *_ABOVE])
    log_k = jax.vmap(lambda point: cumulants(run, masses, point)[0])(points)
    needed = jnp.maximum(_contour.log_peak(points) + log_k - points * epsilon - goal, 1.0) / jnp.abs(points - theta)
    lows, left = points[: len(_BELOW)], needed[: len(_BELOW)]
    highs, right = points[len(_BELOW) :], needed[len(_BELOW) :]
    period = jnp.maximum(jnp.minimum(jnp.min(left), -goal / theta), jnp.min(right))
    # Beyond about 1 the factor e^{eta^2 / 2} between the two parts of the lower kernel is felt.
    eta = jnp.minimum(jnp.sqrt(0.5 * width / (theta * (theta + 1.0))), 0.6)
    share = log_delta + theta * epsilon - k  # log of the sum, relative to e^K
    kappa = jnp.sqrt(2.0 * jnp.clip(np.log(0.03) - slack - share, 6.0, 60.0))
    contour = Contour(theta, period, eta, kappa / eta, _best(lows, left), _best(highs, right), slack + share)
    room = 0.999 * 2.0 * np.pi * MAX_FREQUENCIES / period
    crowding = jnp.maximum(contour.cutoff / room, 1.0)
    contour = contour._replace(eta=eta * crowding, cutoff=contour.cutoff / crowding)
    return Plan(contour, window, epsilon, log_delta)


def _best(points: Array, cost: Array) -> Array:
    """The largest of the points with the least cost."""
    return jnp.max(jnp.where(cost <= jnp.min(cost), points, -jnp.inf))
