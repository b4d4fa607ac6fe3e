"""The moment function of a composition along the line Re z = theta, with every error of it.

M(theta + it) = prod_j A_j(theta + it)^{T_j} over the phases j of a run, at t = k 2 pi / D, k < N. With the nodes of
`_moments`, A_j(theta + it) / A_j(theta) = sum_i w_i e^{i t L_i}, a non-uniform Fourier transform of positive weights.
For k = 256 f + 32 k1 + k2 the exponential is a product of three, so all the frequencies are one matrix product,
(N / 16, nodes) times (nodes, 64): some thirty times cheaper than as many sines and cosines.

**Errors.** If the computed phi_j = A_j(theta + it) / A_j(theta) is off by at most u_j(t), quadrature and rounding, then
with m_j = |phi_j| + u_j the product prod phi_j^{T_j} is off by at most (sum_j T_j u_j / m_j) prod m_j^{T_j} (telescope
the product). Both phi and the computed one are at most 1 (up to rounding), so m_j may be capped there and the
difference at 2. K(theta) itself is off by sum_j T_j u_j(0).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _atoms, _finite, _moments, _ratio
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._finite import Finite
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF, Nodes, Window
from gdpjax.accounting._numeric._ratio import Step
from gdpjax.accounting._numeric._run import Run

MAX_PANELS = 512
FREQUENCY_BLOCK = 256
MAX_FREQUENCIES = 16384
_LEVELS = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
_CELLS = 128
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
    real: Array
    imag: Array
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
        size = np.hypot(line.real, line.imag)
        most = np.maximum(np.minimum(size + line.error, 1.0 + 4.0 * line.at_zero), size)
        modulus += count * np.log(np.maximum(size, 1e-150))
        angle += count * np.arctan2(line.imag, line.real)
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
        lost=lost(run, windows),
        phase_rounding=np.pi * UNIT_ROUNDOFF * (3.0 + len(lines)) * sum(line.num_steps for line in lines),
    )


def frequencies(contour: Contour) -> Array:
    """The frequencies up to the cutoff, in whole blocks."""
    spacing = 2.0 * np.pi / contour.period
    wanted = contour.cutoff / (spacing * FREQUENCY_BLOCK) + 1e-9
    num_blocks = _whole(wanted, 1, MAX_FREQUENCIES // FREQUENCY_BLOCK)
    return spacing * np.arange(FREQUENCY_BLOCK * num_blocks)


def lost(run: Run, windows: list[Window]) -> float:
    """A bound on the P-mass that windows and events with infinite losses take out of the run."""
    missed = sum(
        step.num_steps * np.log1p(-min(window.lost, 1.0)) for step, window in zip(run.steps, windows, strict=True)
    )
    return -np.expm1(missed + _atoms.log_lost(run.atoms)) * (1.0 + 1e-9)


def _whole(wanted: float, least: int, most: int) -> int:
    """``wanted`` rounded up to a whole number within its limits."""
    return int(np.fmin(np.fmax(np.ceil(wanted), least), most))


def step_lines(steps: Sequence[Step], windows: list[Window], contour: Contour, frequency: Array) -> list[Line]:
    """The phases of subsampled Gaussian steps, each in its window."""
    return [_step_line(step, window, contour, frequency) for step, window in zip(steps, windows, strict=True)]


def _step_line(step: Step, window: Window, contour: Contour, frequency: Array) -> Line:
    """One phase of subsampled Gaussian steps: the sum over its parts, and a symmetric step's atom at loss 0."""
    theta = np.array([contour.theta, contour.below, contour.above])
    levels = contour.cutoff * _LEVELS
    parts = _ratio.parts(step)
    edges = [_panel_edges(part, window, contour) for part in parts]
    nodes = [_moments.make_nodes(part, edge) for part, edge in zip(parts, edges, strict=True)]
    sums = [
        _moments.quadrature_error(part, node, edge, theta, levels)
        for part, node, edge in zip(parts, nodes, edges, strict=True)
    ]
    log_rule, log_error, log_error_at = (
        _log_total([getattr(each, name) for each in sums]) for name in ("log_rule", "log_error", "log_error_at")
    )
    atom = np.log(_ratio.rest(step)) if step.symmetric else -np.inf
    log_rule = np.logaddexp(log_rule, atom)
    log_a = log_rule[0]

    # Rounding: at theta with its weights, which the Fourier sums take, and at the alias exponents.
    mass = np.exp(atom - log_a)
    roundings = [_rounding(parts, nodes, *point, atom) for point in zip(theta, log_rule, strict=True)]
    fixed, slope = roundings[0]
    weights = [np.exp(node.log_weight + contour.theta * node.loss - log_a) for node in nodes]
    total = mass + sum(np.sum(weight) for weight in weights)

    # The quadrature's errors, relative to A(theta), up to each level of the frequency.
    relative = np.exp(np.minimum(log_error_at - log_a, 2.0))
    at_zero = fixed + relative[0]
    quadrature = relative[1 + np.minimum(np.searchsorted(levels[1:], frequency), levels.size - 2)]

    real, imag = np.full(frequency.size, mass), np.zeros(frequency.size)
    for node, weight in zip(nodes, weights, strict=True):
        more = _fourier(node.loss, weight, frequency)
        real, imag = real + more[0], imag + more[1]
    # phi divides by the computed A(theta), itself off by at_zero.
    error = (fixed + slope * frequency + quadrature + at_zero) * (1.0 + 2.0 * at_zero)
    moved = np.array([2.0 * fixed for fixed, _ in roundings[1:]])
    alias = np.logaddexp(log_rule[1:] + moved, log_error[1:])
    return Line(step.num_steps, real / total, imag / total, error, log_a, at_zero, alias)


def _rounding(
    parts: tuple[Step, ...], nodes: list[Nodes], theta: float, log_a: float, atom: float
) -> tuple[float, float]:
    """The relative rounding error of A(theta), and that of the losses, which errors at a frequency grow with.

    They are averages over the nodes of the relative errors of their weights, and of the errors of their losses.
    """
    mass = np.exp(atom - log_a)
    fixed, slope = 48.0 * mass, 0.0
    for part, node in zip(parts, nodes, strict=True):
        exponent = node.log_weight + theta * node.loss - log_a
        weight = np.exp(exponent)
        node_fixed, node_slope = _moments.rounding_terms(part, node)
        fixed += np.dot(weight, node_fixed + 2.0 * np.abs(exponent))
        slope += np.dot(weight, node_slope)
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
    panels = _whole(1.25 * reached[-1] + 1.0, 4, MAX_PANELS)
    edges = np.interp(
        reached[-1] / panels * np.arange(panels + 1), reached, window.lower + size * np.arange(_CELLS + 1)
    )
    edges[0], edges[-1] = window.lower, window.upper
    return edges


def _panel_density(step: Step, contour: Contour, u: Array, size: float) -> Array:
    """Panels per unit of u that the quadrature needs: where the mass is, enough for the oscillation of e^{itL}."""
    sigma, k = step.noise_multiplier, step.group_size
    ell = _ratio.log_ratio(u, step)
    slope = _ratio.posterior_mean(u, step, ell) / sigma
    mass = (step.shift + step.sign * contour.theta) * ell - 0.5 * u**2
    log_a = _moments.log_sum(mass, axis=0) + np.log(size)  # roughly
    swing = slope * (contour.cutoff / 42.0)
    swing = np.where(mass - log_a + np.log(step.num_steps) > contour.log_error - 3.0, swing, 0.0)
    return np.maximum(swing, max(0.5 * k / sigma, 0.4))


def _fourier(loss: Array, weight: Array, frequency: Array) -> tuple[Array, Array]:
    """sum_i w_i e^{i t L_i} as real and imaginary part, as the products of cosines and sines."""
    spacing = frequency[1]
    blocks = frequency.size // FREQUENCY_BLOCK
    product = np.zeros((16 * blocks, 64))
    for start in range(0, loss.size, _NODES_AT_ONCE):
        some = slice(start, start + _NODES_AT_ONCE)
        product += _fourier_product(loss[some], weight[some], spacing, blocks)
    half = 8 * blocks
    real = product[:half, :32] - product[half:, 32:]
    imag = product[half:, :32] + product[:half, 32:]
    return real.reshape(-1), imag.reshape(-1)


def _fourier_product(loss: Array, weight: Array, spacing: float, blocks: int) -> Array:
    """The products of cosines and sines of the frequencies 256 f + 32 k1 with those of k2, summed over the nodes."""
    inner = np.concatenate(_moments.rotations(spacing * loss, 32, 4))
    cos, sin = _moments.rotations(32.0 * spacing * loss, 8, 2)
    cos, sin = cos * weight, sin * weight
    if blocks == 1:
        return np.concatenate([cos, sin]) @ inner.T
    angle = ((FREQUENCY_BLOCK * spacing * np.arange(blocks))[:, None] * loss)[:, None]
    turn_cos, turn_sin = np.cos(angle), np.sin(angle)
    outer = np.concatenate([cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin])
    return outer.reshape(16 * blocks, -1) @ inner.T


def _finite_line(event: Finite, contour: Contour, frequency: Array) -> Line:
    """Events of bounded loss of one kind."""
    theta = contour.theta
    at_zero = UNIT_ROUNDOFF * _finite.ratio_error(event, theta, 0.0)
    real, imag = _finite.ratio(event, theta, frequency)
    error = UNIT_ROUNDOFF * _finite.ratio_error(event, theta, frequency)
    points = np.array([theta, contour.below, contour.above])
    log_a = _finite.log_moment(event, points)
    alias = log_a[1:] + UNIT_ROUNDOFF * _finite.ratio_error(event, points[1:], np.zeros(2))
    return Line(event.num_steps, real, imag, error, log_a[0], at_zero, alias)


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

    real, imag = _fourier(event.loss, weight, frequency)
    total = np.sum(weight)
    error = (fixed + slope * frequency + at_zero) * (1.0 + 2.0 * at_zero)
    # At the two other exponents the losses may be further off, in proportion.
    room = (contour.above + 1.0) * (event.displacement + 16.0 * UNIT_ROUNDOFF * np.max(np.abs(event.loss)))
    alias = log_moments[1:] + 4.0 * fixed + event.rounding + room
    return Line(event.num_steps, real / total, imag / total, error, log_a, at_zero, alias)
