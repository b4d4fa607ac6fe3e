"""The moment function of a composition along the line Re z = theta, with every error of it.

M(theta + it) = prod_j A_j(theta + it)^{T_j} over the phases j of a run, at t = k 2 pi / D, k < N. With the nodes of
`_moments`, A_j(theta + it) / A_j(theta) = sum_i w_i e^{i t L_i}, a non-uniform Fourier transform of positive weights.
For k = 256 f + 32 k1 + k2 the exponential is a product of three, so a block of 256 frequencies is one matrix product,
(16, nodes) times (nodes, 64): some thirty times cheaper than as many sines and cosines. Numbers of nodes and of
frequencies are loop counts, not shapes: one compiled program serves easy and hard configurations.

**Errors.** If the computed phi_j = A_j(theta + it) / A_j(theta) is off by at most u_j(t), quadrature and rounding, then
with m_j = |phi_j| + u_j the product prod phi_j^{T_j} is off by at most (sum_j T_j u_j / m_j) prod m_j^{T_j} (telescope
the product). Both phi and the computed one are at most 1 (up to rounding), so m_j may be capped there and the
difference at 2. K(theta) itself is off by sum_j T_j u_j(0).
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _atoms, _finite, _moments, _ratio
from gdpjax.accounting._numeric._atoms import Atoms
from gdpjax.accounting._numeric._finite import Finite
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF, Window
from gdpjax.accounting._numeric._ratio import Step
from gdpjax.accounting._numeric._run import Run

PANEL_BLOCK = 8
MAX_PANELS = 512
FREQUENCY_BLOCK = 256
MAX_FREQUENCIES = 16384
_LEVELS = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
_CELLS = 128
_ATOM_BLOCK = 256


class Contour(NamedTuple):
    """Where the line is and how finely it is sampled; any values give true bounds, good ones give tight bounds."""

    theta: Array
    period: Array
    eta: Array
    cutoff: Array
    below: Array
    above: Array
    log_error: Array


class Transform(NamedTuple):
    """M / M(theta) per frequency: log-modulus, angle, error; log M(theta) with its error; K at the alias exponents."""

    num_blocks: Array
    modulus: Array
    angle: Array
    error: Array
    log_size: Array
    log_size_error: Array
    log_below: Array
    log_above: Array
    lost: Array
    phase_rounding: Array


class _Grid(NamedTuple):
    """The frequencies: multiples of the spacing, in blocks."""

    spacing: Array
    num_blocks: Array


class _AtPoints(NamedTuple):
    """Per phase: its count, log A(theta) with its relative error, and log A at the two alias exponents."""

    num_steps: Array
    log_a: Array
    at_zero: Array
    alias: Array


_Lines = tuple[Array, ...]
_Values = Callable[[Array, Array], tuple[Array, Array, Array]]


class _Totals(NamedTuple):
    """Sums over the nodes of one phase, relative to a reference exponent."""

    log_rule: Array
    log_error: Array
    rounding: Array
    product: Array


def panel_density(step: Step, contour: Contour, u: Array, log_a: Array) -> Array:
    """Panels per unit of u that the quadrature needs: where the mass is, enough for the oscillation of e^{itL}."""
    sigma, k = step.noise_multiplier, step.group_size
    ell = _ratio.log_ratio(u, step)
    slope = _ratio.posterior_mean(u, step, ell) / sigma
    exponent = jnp.where(step.sign > 0, 1.0, 0.0) + step.sign * contour.theta
    mass = exponent * ell - 0.5 * u**2 - log_a + jnp.log(step.num_steps)
    swing = jnp.where(mass > contour.log_error - 3.0, slope * contour.cutoff / 42.0, 0.0)
    return jnp.maximum(swing, jnp.maximum(0.5 * k / sigma, 0.4))


class PanelMap(NamedTuple):
    """The increasing function u -> number of panels wanted below u, piecewise linear: cell starts, sizes and rises."""

    start: Array
    size: Array
    below: Array
    rise: Array


def panel_map(step: Step, window: Window, contour: Contour) -> tuple[PanelMap, Array, Array]:
    """The cumulated `panel_density`, its total, and log A(theta) roughly."""
    size = (window.upper - window.lower) / _CELLS
    start = window.lower + size * np.arange(_CELLS)
    coarse = _moments.make_nodes(step, _moments.uniform_edges(window, 8))
    log_a = _moments.log_moment(coarse.loss, coarse.log_weight, contour.theta)[0]
    rise = panel_density(step, contour, start + 0.5 * size, log_a) * size
    below = jnp.dot(np.tri(_CELLS, k=-1), rise, precision=jax.lax.Precision.HIGHEST)
    return PanelMap(start, size, below, rise), jnp.sum(rise), log_a


def panel_edges(panels: PanelMap, level: Array) -> Array:
    """The u at which the map reaches each ``level``: a sum of ramps, which needs no search."""
    ramps = jnp.clip((level[:, None] - panels.below) / panels.rise, 0.0, 1.0)
    return panels.start[0] + panels.size * jnp.sum(ramps, axis=1)


def transform(run: Run, window: Window, contour: Contour) -> Transform:
    """Evaluate M along the line; ``window`` has a leading axis of phases, as the steps of ``run``."""
    spacing = 2.0 * np.pi / contour.period
    wanted = jnp.ceil(contour.cutoff / (spacing * FREQUENCY_BLOCK) + 1e-9)
    num_blocks = jnp.clip(wanted, 1, MAX_FREQUENCIES // FREQUENCY_BLOCK).astype(np.int32)
    grid = _Grid(spacing, num_blocks)
    zeros = jnp.zeros(MAX_FREQUENCIES)
    empty = (zeros, zeros, zeros, zeros)

    def phase(carry: _Lines, item: tuple[Step, Window]) -> tuple[_Lines, _AtPoints]:
        return _step_line(carry, *item, contour, grid)

    carry, points = jax.lax.scan(phase, empty, (run.steps, window))
    if run.finite is not None:
        carry, more = jax.lax.scan(lambda carry, item: _finite_line(carry, item, contour, grid), carry, run.finite)
        points = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), points, more)
    if run.atoms is not None:
        carry, more = jax.lax.scan(lambda carry, item: _atoms_line(carry, item, contour, grid), carry, run.atoms)
        points = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), points, more)
    modulus, angle, largest, ratio = carry
    counts, log_a = points.num_steps, points.log_a
    size_error = 2.0 * points.at_zero + 4.0 * UNIT_ROUNDOFF * (1.0 + jnp.abs(log_a))
    size_error = jnp.where(jnp.max(points.at_zero) < 0.2, jnp.sum(counts * size_error), jnp.inf)
    alias = jnp.sum(counts[:, None] * (points.alias + 8.0 * UNIT_ROUNDOFF * jnp.abs(points.alias)), 0)
    missed = jnp.sum(run.steps.num_steps * jnp.log1p(-jnp.minimum(window.lost, 0.5))) + _atoms.log_lost(run.atoms)
    return Transform(
        num_blocks=num_blocks,
        modulus=modulus,
        angle=angle,
        error=jnp.exp(largest) * jnp.minimum(ratio, 2.0),
        log_size=jnp.sum(counts * log_a),
        log_size_error=size_error,
        log_below=alias[0],
        log_above=alias[1],
        lost=-jnp.expm1(missed) * (1.0 + 1e-9),
        phase_rounding=4.0 * np.pi * UNIT_ROUNDOFF * jnp.sum(counts),
    )


def _step_line(carry: _Lines, step: Step, window: Window, contour: Contour, grid: _Grid) -> tuple[_Lines, _AtPoints]:
    """Add one phase of subsampled Gaussian steps."""
    totals, reference, nodes = _node_sums(step, window, contour, grid)
    levels = _LEVELS.size
    log_a = totals.log_rule[0]
    weight = jnp.exp(reference - log_a)
    relative = jnp.exp(jnp.minimum(totals.log_error[:levels] - log_a, 2.0))
    slope = UNIT_ROUNDOFF * totals.rounding[1] * weight
    exponent = contour.theta + jnp.where((step.sign > 0) | step.symmetric, 1.0, 0.0)  # at least |s|
    fixed = UNIT_ROUNDOFF * (totals.rounding[0] * weight + 2.0 * nodes + 2.0 * jnp.abs(reference) + 16.0)
    fixed = fixed + exponent * slope
    at_zero = fixed + relative[0]
    total = totals.product[0, 0, 0]

    def values(f: Array, frequency: Array) -> tuple[Array, Array, Array]:
        real, imag = _unfold(totals.product[f])
        real, imag = real / total, imag / total
        quadrature = relative[-1]
        for i in range(levels - 2, 0, -1):
            quadrature = jnp.where(frequency <= contour.cutoff * _LEVELS[i], relative[i], quadrature)
        # phi divides by the computed A(theta), itself off by at_zero.
        return real, imag, (fixed + slope * frequency + quadrature + at_zero) * (1.0 + 2.0 * at_zero)

    carry = _accumulate(carry, step.num_steps, values, at_zero, grid)
    alias = jnp.logaddexp(totals.log_rule[levels:] + 4.0 * fixed, totals.log_error[levels:])
    return carry, _AtPoints(step.num_steps, log_a, at_zero, alias)


def _unfold(part: Array) -> tuple[Array, Array]:
    """Real and imaginary part at the frequencies of a block, from the products of `_fourier_block`."""
    real = part[:8, :32] - part[8:, 32:]
    imag = part[8:, :32] + part[:8, 32:]
    return real.reshape(-1), imag.reshape(-1)


def _atoms_line(carry: _Lines, event: Atoms, contour: Contour, grid: _Grid) -> tuple[_Lines, _AtPoints]:
    """Add one event of known outcomes; one that does not happen costs nothing."""
    nothing = _AtPoints(event.num_steps, jnp.zeros(()), jnp.zeros(()), jnp.zeros(2))
    return jax.lax.cond(
        event.num_steps > 0,
        lambda: _used_atoms_line(carry, event, contour, grid),
        lambda: (carry, nothing),
    )


def _used_atoms_line(carry: _Lines, event: Atoms, contour: Contour, grid: _Grid) -> tuple[_Lines, _AtPoints]:
    theta, points = contour.theta, jnp.stack([contour.theta, contour.below, contour.above])
    log_moments = _atoms.log_moment(event, points)
    log_a = log_moments[0]
    exponent = event.log_weight + theta * event.loss - log_a
    weight = jnp.exp(exponent)

    # Averages over the nodes of their relative errors and of the errors of their losses.
    node_fixed, node_slope = _atoms.rounding_terms(event, exponent)
    slope = jnp.sum(weight * node_slope)
    summing = 2.0 * (event.loss.size + jnp.max(jnp.abs(log_moments))) + 16.0
    fixed = jnp.sum(weight * node_fixed) + UNIT_ROUNDOFF * summing
    fixed = fixed + (theta + jnp.where(event.sign > 0, 1.0, 0.0)) * slope
    at_zero = fixed

    # The Fourier sums, a block of nodes at a time.
    blocks = event.loss.size // _ATOM_BLOCK
    rows = event.loss.reshape(blocks, _ATOM_BLOCK), weight.reshape(blocks, _ATOM_BLOCK)
    empty = jnp.zeros((MAX_FREQUENCIES // FREQUENCY_BLOCK, 16, 64))
    product, _ = jax.lax.scan(lambda product, row: (_fourier_block(product, *row, grid), None), empty, rows)
    total = product[0, 0, 0]

    def values(f: Array, frequency: Array) -> tuple[Array, Array, Array]:
        real, imag = _unfold(product[f])
        return real / total, imag / total, (fixed + slope * frequency + at_zero) * (1.0 + 2.0 * at_zero)

    carry = _accumulate(carry, event.num_steps, values, at_zero, grid)
    # At the two other exponents the losses may be further off, in proportion.
    room = (contour.above + 1.0) * (event.displacement + 16.0 * UNIT_ROUNDOFF * jnp.max(jnp.abs(event.loss)))
    alias = log_moments[1:] + 4.0 * fixed + event.rounding + room
    return carry, _AtPoints(event.num_steps, log_a, at_zero, alias)


def _finite_line(carry: _Lines, event: Finite, contour: Contour, grid: _Grid) -> tuple[_Lines, _AtPoints]:
    """Add one event of bounded loss."""
    theta = contour.theta
    at_zero = UNIT_ROUNDOFF * _finite.ratio_error(event, theta, jnp.zeros_like(theta))

    def values(_: Array, frequency: Array) -> tuple[Array, Array, Array]:
        real, imag = _finite.ratio(event, theta, frequency)
        return real, imag, UNIT_ROUNDOFF * _finite.ratio_error(event, theta, frequency)

    carry = _accumulate(carry, event.num_steps, values, at_zero, grid)
    points = jnp.stack([contour.below, contour.above])
    rounding = UNIT_ROUNDOFF * _finite.ratio_error(event, points, jnp.zeros(2))
    alias = _finite.log_moment(event, points) + rounding
    return carry, _AtPoints(event.num_steps, _finite.log_moment(event, theta), at_zero, alias)


def _node_sums(step: Step, window: Window, contour: Contour, grid: _Grid) -> tuple[_Totals, Array, Array]:
    """Moments, quadrature errors, rounding terms and the Fourier sums of one phase: the sum over its parts."""
    maps = [panel_map(part, window, contour) for part in _ratio.parts(step)]
    reference = functools.reduce(jnp.logaddexp, [log_a for _, _, log_a in maps])
    points = _LEVELS.size + 2
    empty = jnp.full(points, -jnp.inf)
    shape = (MAX_FREQUENCIES // FREQUENCY_BLOCK, 16, 64)
    totals = _Totals(empty, empty, jnp.zeros(2), jnp.zeros(shape))
    if step.symmetric:
        atom = jnp.log(_ratio.rest(step))
        mass = jnp.exp(atom - reference)
        cosines = jnp.where((np.arange(16)[:, None] < 8) & (np.arange(64) < 32), mass, 0.0)
        totals = totals._replace(
            log_rule=jnp.full(points, atom),
            rounding=jnp.stack([48.0 * mass, 0.0 * mass]),
            product=totals.product + cosines,
        )
    count = np.int32(0)
    for part, (panels, wanted, _) in zip(_ratio.parts(step), maps, strict=True):
        totals, nodes = _part_sums(totals, part, window, contour, grid, panels, wanted, reference)
        count = count + nodes
    return totals, reference, count


def _part_sums(
    totals: _Totals, step: Step, window: Window, contour: Contour, grid: _Grid,
    panels: PanelMap, wanted: Array, reference: Array,
) -> tuple[_Totals, Array]:  # fmt: skip
    """Loop over blocks of panels of a one-signed part."""
    blocks = jnp.clip(jnp.ceil(wanted / PANEL_BLOCK), 1, MAX_PANELS // PANEL_BLOCK).astype(np.int32)
    levels = contour.cutoff * jnp.asarray(_LEVELS)
    theta = jnp.concatenate([jnp.full_like(levels, contour.theta), jnp.stack([contour.below, contour.above])])
    frequency = jnp.concatenate([levels, jnp.zeros(2)])

    def block(b: Array, state: tuple[Array, _Totals]) -> tuple[Array, _Totals]:
        start, totals = state
        index = PANEL_BLOCK * b + np.arange(1, PANEL_BLOCK + 1, dtype=np.int32)
        edges = panel_edges(panels, index * (wanted / (PANEL_BLOCK * blocks)))
        edges = jnp.where(index == PANEL_BLOCK * blocks, window.upper, edges)
        edges = jnp.concatenate([start[None], edges])
        # Without the barrier XLA recomputes the nodes inside each of their uses.
        nodes = jax.lax.optimization_barrier(_moments.make_nodes(step, edges))
        rule, error = _moments.quadrature_error(step, nodes, edges, theta, frequency)
        weight = jnp.exp(nodes.log_weight + contour.theta * nodes.loss - reference)
        fixed, slope = _moments.rounding_terms(step, nodes)
        exponent = jnp.abs(nodes.log_weight + contour.theta * nodes.loss - reference)
        rounding = jnp.stack([jnp.sum(weight * (fixed + 2.0 * exponent)), jnp.sum(weight * slope)])
        product = _fourier_block(totals.product, nodes.loss, weight, grid)
        log_rule, log_error = jnp.logaddexp(totals.log_rule, rule), jnp.logaddexp(totals.log_error, error)
        return edges[-1], _Totals(log_rule, log_error, totals.rounding + rounding, product)

    _, totals = jax.lax.fori_loop(np.int32(0), blocks, block, (window.lower, totals))
    return totals, blocks * (PANEL_BLOCK * _moments.NODES_PER_PANEL)


def _fourier_block(product: Array, loss: Array, weight: Array, grid: _Grid) -> Array:
    """Add sum_i w_i e^{i t L_i} for the nodes of one block, as the products of cosines and sines."""
    spacing = grid.spacing
    cos, sin = _moments.rotations(spacing * loss, 32, 4)
    inner = jax.lax.optimization_barrier(jnp.concatenate([cos, sin], 0).T)
    cos, sin = _moments.rotations(32.0 * spacing * loss, 8, 2)
    cos, sin = jax.lax.optimization_barrier((cos * weight, sin * weight))

    def block(f: Array, product: Array) -> Array:
        angle = (FREQUENCY_BLOCK * f * spacing) * loss
        turn_cos, turn_sin = jnp.cos(angle), jnp.sin(angle)
        outer = jnp.concatenate([cos * turn_cos - sin * turn_sin, sin * turn_cos + cos * turn_sin], 0)
        part = jnp.dot(outer, inner, precision=jax.lax.Precision.HIGHEST)
        return product.at[f].add(part)

    return jax.lax.fori_loop(np.int32(0), grid.num_blocks, block, product)


def _accumulate(carry: _Lines, num_steps: Array, values: _Values, at_zero: Array, grid: _Grid) -> _Lines:
    """Add one phase to (log-modulus, angle, log prod m^T, sum T u / m) of the composition."""

    def block(f: Array, carry: _Lines) -> _Lines:
        frequency = grid.spacing * (FREQUENCY_BLOCK * f + np.arange(FREQUENCY_BLOCK))
        real, imag, off = values(f, frequency)
        size = jnp.sqrt(real**2 + imag**2)
        largest = jnp.maximum(jnp.minimum(size + off, 1.0 + 4.0 * at_zero), size)
        log_size, log_largest = (jnp.log(jnp.maximum(x, 1e-150)) for x in (size, largest))
        terms = log_size, jnp.arctan2(imag, real), log_largest, off / largest
        start = FREQUENCY_BLOCK * f
        return tuple(
            jax.lax.dynamic_update_slice(
                old, jax.lax.dynamic_slice(old, (start,), (FREQUENCY_BLOCK,)) + num_steps * term, (start,)
            )
            for old, term in zip(carry, terms, strict=True)
        )

    return jax.lax.fori_loop(np.int32(0), grid.num_blocks, block, carry)
