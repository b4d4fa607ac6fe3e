"""The moment function of a composition along the line Re z = theta, with every error of it.

M(theta + it) = prod_j A_j(theta + it)^{T_j} over the phases j of a run, at t = k 2 pi / D, k < N. With the nodes of
`_moments`, A_j(theta + it) / A_j(theta) = sum_i w_i e^{i t L_i}, a non-uniform Fourier transform of positive weights.
For k = 64 k1 + k2, k2 < 64, the exponential is a product of two, so all the frequencies are one product of complex
matrices, (N / 64, nodes) times (nodes, 64): some thirty times cheaper than as many sines and cosines.

**Errors.** If the computed phi_j = A_j(theta + it) / A_j(theta) is off by at most u_j(t), quadrature and rounding, then
with m_j = |phi_j| + u_j the product prod phi_j^{T_j} is off by at most (sum_j T_j u_j / m_j) prod m_j^{T_j} (telescope
the product). Both phi and the computed one are at most 1 (up to rounding), so m_j may be capped there and the
difference at 2. K(theta) itself is off by sum_j T_j u_j(0).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _atoms, _bounded_losses, _likelihood_ratio, _moments
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._bounded_losses import Finite
from gdpjax.accounting._numeric._likelihood_ratio import Step
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF, Nodes, Window
from gdpjax.accounting._numeric._run_description import Run

MAX_PANELS = 512
FREQUENCY_BLOCK = 256
MAX_FREQUENCIES = 16384
_LEVELS = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
_CELLS = 128
_FINE = -40.0
_INNER = 64
_RADIX = 4
_NODES_AT_ONCE = 1024


class Contour(NamedTuple):
    """Where the line is and how finely it is sampled; any values give true bounds, good ones give tight bounds."""

    theta: float
    period: float
    eta: float
    cutoff: float
    below: float
    above: float
    log_error: float


class Transform(NamedTuple):
    """M / M(theta) per frequency: log-modulus, angle, error; log M(theta) with its error; K at the alias exponents."""

    frequency: Array
    modulus: Array
    angle: Array
    error: Array
    log_size: float
    log_size_error: float
    log_below: float
    log_above: float
    lost: float
    phase_rounding: float
    least: float = -np.inf
    """The epsilon from which on upper bounds hold."""


class Line(NamedTuple):
    """One kind of event: A / A(theta) per frequency with its error, log A(theta), and log A at the alias exponents."""

    num_steps: float
    ratio: Array
    error: Array
    log_a: float
    at_zero: float
    alias: Array


def transform(run: Run, windows: list[Window], contour: Contour) -> Transform:
    """Evaluate M along the line; ``windows`` are those of the steps of ``run``."""
    frequency = frequencies(contour)
    lines = [
        *step_lines(run.steps, windows, contour, frequency),
        *(_finite_line(event, contour, frequency) for event in run.finite),
        *(_atoms_line(event, contour, frequency) for event in run.atoms),
    ]

    # The product: (log-modulus, angle, log prod m^T, sum T u / m).
    modulus, angle, largest, ratio = np.zeros((4, frequency.size))
    log_size = size_error = 0.0
    alias = np.zeros(2)
    for line in lines:
        count = line.num_steps
        size = np.abs(line.ratio)
        most = np.maximum(np.minimum(size + line.error, 1.0 + 4.0 * line.at_zero), size)
        modulus += count * np.log(np.maximum(size, 1e-150))
        angle += count * np.angle(line.ratio)
        largest += count * np.log(np.maximum(most, 1e-150))
        ratio += count * (line.error / most)
        log_size += count * line.log_a
        size_error += count * (2.0 * line.at_zero + 4.0 * UNIT_ROUNDOFF * (1.0 + abs(line.log_a)))
        alias += count * (line.alias + 8.0 * UNIT_ROUNDOFF * np.abs(line.alias))

    trusted = max((line.at_zero for line in lines), default=0.0) < 0.2
    return Transform(
        frequency=frequency,
        modulus=modulus,
        angle=angle,
        error=np.exp(largest) * np.minimum(ratio, 2.0),
        log_size=log_size,
        log_size_error=size_error if trusted else np.inf,
        log_below=alias[0],
        log_above=alias[1],
        lost=lost_mass(run, windows),
        phase_rounding=np.pi * UNIT_ROUNDOFF * (3.0 + len(lines)) * sum(line.num_steps for line in lines),
    )


def frequencies(contour: Contour) -> Array:
    """The frequencies up to the cutoff, in whole blocks."""
    spacing = 2.0 * np.pi / contour.period
    wanted = contour.cutoff / (spacing * FREQUENCY_BLOCK) + 1e-9
    num_blocks = _whole(wanted, 1, MAX_FREQUENCIES // FREQUENCY_BLOCK)
    return spacing * np.arange(FREQUENCY_BLOCK * num_blocks)


def lost_mass(run: Run, windows: list[Window]) -> float:
    """The P-mass that the windows of the steps and the infinite losses of atoms take out of the composition."""
    kept = sum(
        step.num_steps * np.log1p(-min(window.lost, 1.0)) for step, window in zip(run.steps, windows, strict=True)
    )
    return -np.expm1(kept + _atoms.log_lost(run.atoms)) * (1.0 + 1e-9)


def log_moments_above(steps: Sequence[Step], windows: list[Window], theta: float) -> Array:
    """Upper bounds on log A(theta) of each of the steps [steps], without a line."""
    still = Contour(theta, np.inf, 0.0, 0.0, theta, theta, _FINE)
    rules = [_step_rule(step, window, still) for step, window in zip(steps, windows, strict=True)]
    bounds = np.array([rule.alias[0] for rule in rules])
    return bounds + 8.0 * UNIT_ROUNDOFF * np.abs(bounds)


def _whole(wanted: float, least: int, most: int) -> int:
    """``wanted`` rounded up to a whole number within its limits."""
    return int(np.fmin(np.fmax(np.ceil(wanted), least), most))


class _Rule(NamedTuple):
    """The quadrature of a step, relative to its own A(theta): nodes and weights of the parts, and what it is off by."""

    nodes: list[Nodes]
    weights: list[Array]
    mass: float
    """The weight of an atom at loss 0."""
    log_a: float
    fixed: float
    slope: float
    """Rounding: the error at frequency t is at most fixed + slope t."""
    quadrature: Array
    """[levels]"""
    alias: Array
    """Upper bounds on log A at the two alias exponents."""


def step_lines(steps: Sequence[Step], windows: list[Window], contour: Contour, frequency: Array) -> list[Line]:
    """The phases of subsampled Gaussian steps, each in its window."""
    return [_step_line(step, window, contour, frequency) for step, window in zip(steps, windows, strict=True)]


def _step_rule(step: Step, window: Window, contour: Contour) -> _Rule:
    """One phase of subsampled Gaussian steps: the sum over its parts, and a symmetric step's atom at loss 0."""
    theta = np.array([contour.theta, contour.below, contour.above])
    levels = contour.cutoff * _LEVELS
    parts = _likelihood_ratio.parts(step)
    edges = [_panel_edges(part, window, contour) for part in parts]
    nodes = [_moments.make_nodes(part, edge) for part, edge in zip(parts, edges, strict=True)]
    exponents = [node.log_weight + theta[:, None] * node.loss for node in nodes]
    sums = [
        _moments.quadrature_error(part, edge, theta, levels, exponent)
        for part, edge, exponent in zip(parts, edges, exponents, strict=True)
    ]
    log_rule, log_error, log_error_at = (
        _log_total([getattr(each, name) for each in sums]) for name in ("log_rule", "log_error", "log_error_at")
    )
    atom = np.log(_likelihood_ratio.rest(step)) if step.symmetric else -np.inf
    log_rule = np.logaddexp(log_rule, atom)

    # The weights at theta and at the alias exponents, and the errors that rounding makes there.
    exponents = [exponent - log_rule[:, None] for exponent in exponents]
    weights = [np.exp(exponent) for exponent in exponents]
    mass = np.exp(atom - log_rule)
    fixed, slope = _rounding(parts, nodes, theta, log_rule, mass, exponents, weights)
    return _Rule(
        nodes=nodes,
        weights=[weight[0] for weight in weights],
        mass=mass[0],
        log_a=log_rule[0],
        fixed=fixed[0],
        slope=slope[0],
        quadrature=np.exp(np.minimum(log_error_at - log_rule[0], 2.0)),
        alias=np.logaddexp(log_rule[1:] + 2.0 * fixed[1:], log_error[1:]),
    )


def _step_line(step: Step, window: Window, contour: Contour, frequency: Array) -> Line:
    """One phase of subsampled Gaussian steps."""
    rule = _step_rule(step, window, contour)
    at_zero = rule.fixed + rule.quadrature[0]
    levels = contour.cutoff * _LEVELS[1:]
    quadrature = rule.quadrature[1 + np.minimum(np.searchsorted(levels, frequency), levels.size - 1)]
    # phi divides by the computed A(theta), itself off by at_zero.
    error = (rule.fixed + rule.slope * frequency + quadrature + at_zero) * (1.0 + 2.0 * at_zero)
    sums = sum(_fourier(node.loss, weight, frequency) for node, weight in zip(rule.nodes, rule.weights, strict=True))
    total = rule.mass + sum(weight.sum() for weight in rule.weights)
    return Line(step.num_steps, (rule.mass + sums) / total, error, rule.log_a, at_zero, rule.alias)


def _rounding(
    parts: tuple[Step, ...],
    nodes: list[Nodes],
    theta: Array,
    log_a: Array,
    mass: Array,
    exponents: list[Array],
    weights: list[Array],
) -> tuple[Array, Array]:
    """The relative rounding error of A(theta), and that of the losses, which errors at a frequency grow with.

    At each theta [points] they are averages, with the ``weights`` e^exponents [points, n], of the relative errors of
    the nodes' weights and of the errors of their losses; ``mass`` is the weight of an atom at loss 0.
    """
    fixed, slope = 64.0 * mass, np.zeros(theta.size)
    for part, node, exponent, weight in zip(parts, nodes, exponents, weights, strict=True):
        node_fixed, node_slope = _moments.rounding_terms(part, node)
        fixed = fixed + weight @ node_fixed + 2.0 * np.einsum("ij,ij->i", weight, np.abs(exponent))
        slope = slope + weight @ node_slope
    slope = UNIT_ROUNDOFF * slope
    count = sum(node.loss.size for node in nodes)
    fixed = UNIT_ROUNDOFF * (fixed + 2.0 * count + 2.0 * np.abs(log_a) + 16.0)
    at_most = theta + max(part.shift for part in parts)  # at least |s|
    return fixed + at_most * slope, slope


def _log_total(terms: list[Array]) -> Array:
    return np.logaddexp(*terms) if len(terms) == 2 else terms[0]


def _panel_edges(step: Step, window: Window, contour: Contour) -> Array:
    """The edges of the panels, as close as `_panel_density` asks for."""
    size = (window.upper - window.lower) / _CELLS
    middle = window.lower + size * (np.arange(_CELLS) + 0.5)
    rise = _panel_density(step, contour, middle, size) * size
    reached = np.append(0.0, np.cumsum(rise))
    panels = _whole(reached[-1] + 1.0, 2, MAX_PANELS)
    edges = np.interp(
        reached[-1] / panels * np.arange(panels + 1), reached, window.lower + size * np.arange(_CELLS + 1)
    )
    edges[0], edges[-1] = window.lower, window.upper
    return edges


def _panel_density(step: Step, contour: Contour, u: Array, size: float) -> Array:
    """Panels per unit of u that the quadrature needs.

    Where the mass is, that is enough for the oscillation of e^{itL} and for the slope of the weights; see `_turn`.
    """
    sigma, k = step.noise_multiplier, step.group_size
    ell = _likelihood_ratio.log_ratio(u, step)
    slope = _likelihood_ratio.posterior_mean(u, step, ell) / sigma
    exponent = step.shift + step.sign * contour.theta
    mass = exponent * ell - 0.5 * u**2
    log_a = _moments.log_sum(mass, axis=0) + np.log(size)  # roughly
    matters = mass - log_a + np.log(step.num_steps) > contour.log_error - 3.0
    turns = slope * (0.5 * contour.cutoff / _turn(np.log(step.num_steps) - contour.log_error))
    steepness = 0.06 * (np.abs(u) + abs(exponent) * slope)
    return np.maximum(np.where(matters, turns + steepness, 0.0), max(0.5 * k / sigma, 0.25))


def _turn(nats: float) -> float:
    """The angle by which e^{itL} may turn in half a panel, for an error of the rule of about e^-nats.

    Over an ellipse of semi-axes (w/4)(rho +- 1/rho) the bound on e^{itL} grows as e^{a sinh x}, a the angle, x = log
    rho, and the rule's error is e^{a sinh x - 2 N x}. That is least at a = 2 N / cosh x, with 2 N (x - tanh x) nats.
    """
    order = 2.0 * _moments.NODES_PER_PANEL
    goal = min(max(nats, 1.0), 200.0) / order
    x = np.cbrt(3.0 * goal)
    for _ in range(4):
        x -= (x - np.tanh(x) - goal) / np.tanh(x) ** 2
    return order / np.cosh(x)


def _fourier(loss: Array, weight: Array, frequency: Array) -> Array:
    """sum_i w_i e^{i t L_i}, as the product of the matrices of e^{i 64 k1 h L_i} w_i and of e^{i k2 h L_i}."""
    rows = frequency.size // _INNER
    product = np.zeros((rows, _INNER), complex)
    for start in range(0, loss.size, _NODES_AT_ONCE):
        some = slice(start, start + _NODES_AT_ONCE)
        angle = frequency[1] * loss[some]
        outer = _moments.rotations(_INNER * angle, *_radices(rows))[:rows]
        product += (outer * weight[some]) @ _moments.rotations(angle, *_radices(_INNER)).T
    return product.reshape(-1)


def _radices(count: int) -> list[int]:
    """Fours, and a last one that is smaller, whose product is at least ``count``."""
    digits = max(math.ceil(math.log(count, _RADIX) - 1e-9), 1)
    return [_RADIX] * (digits - 1) + [math.ceil(count / _RADIX ** (digits - 1))]


def _finite_line(event: Finite, contour: Contour, frequency: Array) -> Line:
    """Events of bounded loss of one kind."""
    theta = contour.theta
    at_zero = UNIT_ROUNDOFF * _bounded_losses.ratio_error(event, theta, 0.0)
    ratio = _bounded_losses.ratio(event, theta, frequency)
    error = UNIT_ROUNDOFF * _bounded_losses.ratio_error(event, theta, frequency)
    points = np.array([theta, contour.below, contour.above])
    log_a = _bounded_losses.log_moment(event, points)
    alias = log_a[1:] + UNIT_ROUNDOFF * _bounded_losses.ratio_error(event, points[1:], np.zeros(2))
    return Line(event.num_steps, ratio, error, log_a[0], at_zero, alias)


def _atoms_line(event: Atoms, contour: Contour, frequency: Array) -> Line:
    """Events of known outcomes of one kind."""
    theta, points = contour.theta, np.array([contour.theta, contour.below, contour.above])
    log_moments = _atoms.log_moment(event, points)
    log_a = log_moments[0]
    exponent = event.log_weight + theta * event.loss - log_a
    weight = np.exp(exponent)

    # Averages over the nodes of their relative errors and of the errors of their losses.
    node_fixed, node_slope = _atoms.rounding_terms(event, exponent)
    slope = np.dot(weight, node_slope)
    summing = 2.0 * (event.loss.size + np.max(np.abs(log_moments))) + 16.0
    fixed = np.dot(weight, node_fixed) + UNIT_ROUNDOFF * summing
    fixed = fixed + (theta + (1.0 if event.sign > 0 else 0.0)) * slope
    at_zero = fixed

    ratio = _fourier(event.loss, weight, frequency) / np.sum(weight)
    error = (fixed + slope * frequency + at_zero) * (1.0 + 2.0 * at_zero)
    # At the two other exponents the losses may be further off, in proportion.
    room = (contour.above + 1.0) * (event.displacement + 16.0 * UNIT_ROUNDOFF * np.max(np.abs(event.loss)))
    alias = log_moments[1:] + 4.0 * fixed + event.rounding + room
    return Line(event.num_steps, ratio, error, log_a, at_zero, alias)
