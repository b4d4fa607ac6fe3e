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

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _moments
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF, Step, Window

PANEL_BLOCK = 8
MAX_PANELS = 512
FREQUENCY_BLOCK = 256
MAX_FREQUENCIES = 16384
_LEVELS = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])
_CELLS = 128


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


class _Totals(NamedTuple):
    """Sums over the nodes of one phase, relative to a reference exponent."""

    log_rule: Array
    log_error: Array
    rounding: Array
    product: Array


def panel_density(step: Step, contour: Contour, u: Array, log_a: Array) -> Array:
    """Panels per unit of u that the quadrature needs: where the mass is, enough for the oscillation of e^{itL}."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    ell = _moments.log_ratio(u, sigma, p)
    slope = jnp.exp(jnp.minimum(jnp.log(p) + (u - 0.5 / sigma) / sigma - ell, 0.0)) / sigma
    exponent = jnp.where(step.sign > 0, 1.0, 0.0) + step.sign * contour.theta
    mass = exponent * ell - 0.5 * u**2 - log_a + jnp.log(step.num_steps)
    swing = jnp.where(mass > contour.log_error - 3.0, slope * contour.cutoff / 42.0, 0.0)
    return jnp.maximum(swing, jnp.maximum(0.5 / sigma, 0.4))


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
    log_a = _moments.log_moment(coarse, contour.theta)[0]
    rise = panel_density(step, contour, start + 0.5 * size, log_a) * size
    below = jnp.dot(np.tri(_CELLS, k=-1), rise, precision=jax.lax.Precision.HIGHEST)
    return PanelMap(start, size, below, rise), jnp.sum(rise), log_a


def panel_edges(panels: PanelMap, level: Array) -> Array:
    """The u at which the map reaches each ``level``: a sum of ramps, which needs no search."""
    ramps = jnp.clip((level[:, None] - panels.below) / panels.rise, 0.0, 1.0)
    return panels.start[0] + panels.size * jnp.sum(ramps, axis=1)


def transform(step: Step, window: Window, contour: Contour) -> Transform:
    """Evaluate M along the line; ``step`` and ``window`` have a leading axis of phases."""
    spacing = 2.0 * np.pi / contour.period
    wanted = jnp.ceil(contour.cutoff / (spacing * FREQUENCY_BLOCK) + 1e-9)
    num_blocks = jnp.clip(wanted, 1, MAX_FREQUENCIES // FREQUENCY_BLOCK).astype(np.int32)
    zeros = jnp.zeros(MAX_FREQUENCIES)

    def phase(carry: tuple[Array, ...], item: tuple[Step, Window]) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
        step, window = item
        totals, reference, nodes = _node_sums(step, window, contour, spacing, num_blocks)
        levels = _LEVELS.size
        log_a = totals.log_rule[0]
        weight = jnp.exp(reference - log_a)
        relative = jnp.exp(jnp.minimum(totals.log_error[:levels] - log_a, 2.0))
        slope = UNIT_ROUNDOFF * totals.rounding[1] * weight
        exponent = jnp.where(step.sign > 0, 1.0, 0.0) + step.sign * contour.theta
        fixed = UNIT_ROUNDOFF * (totals.rounding[0] * weight + 2.0 * nodes + 2.0 * jnp.abs(reference) + 16.0)
        fixed = fixed + jnp.abs(exponent) * slope
        carry = _accumulate(carry, step, totals.product, (relative, fixed, slope), contour, spacing, num_blocks)
        at_zero = fixed + relative[0]
        sums = jnp.logaddexp(totals.log_rule[levels:] + 4.0 * fixed, totals.log_error[levels:])
        return carry, (log_a, at_zero, sums)

    carry, (log_a, at_zero, sums) = jax.lax.scan(phase, (zeros, zeros, zeros, zeros), (step, window))
    modulus, angle, largest, ratio = carry
    size_error = 2.0 * at_zero + 4.0 * UNIT_ROUNDOFF * (1.0 + jnp.abs(log_a))
    size_error = jnp.where(jnp.max(at_zero) < 0.2, jnp.sum(step.num_steps * size_error), jnp.inf)
    alias = jnp.sum(step.num_steps[:, None] * (sums + 8.0 * UNIT_ROUNDOFF * jnp.abs(sums)), 0)
    missed = -jnp.expm1(jnp.sum(step.num_steps * jnp.log1p(-jnp.minimum(window.lost, 0.5)))) * (1.0 + 1e-9)
    return Transform(
        num_blocks=num_blocks,
        modulus=modulus,
        angle=angle,
        error=jnp.exp(largest) * jnp.minimum(ratio, 2.0),
        log_size=jnp.sum(step.num_steps * log_a),
        log_size_error=size_error,
        log_below=alias[0],
        log_above=alias[1],
        lost=missed,
        phase_rounding=4.0 * np.pi * UNIT_ROUNDOFF * jnp.sum(step.num_steps),
    )


def _node_sums(
    step: Step, window: Window, contour: Contour, spacing: Array, num_blocks: Array
) -> tuple[_Totals, Array, Array]:
    """Loop over blocks of panels: moments, quadrature errors, rounding terms and the Fourier sums of one phase."""
    panels, total, reference = panel_map(step, window, contour)
    blocks = jnp.clip(jnp.ceil(total / PANEL_BLOCK), 1, MAX_PANELS // PANEL_BLOCK).astype(np.int32)
    levels = contour.cutoff * jnp.asarray(_LEVELS)
    theta = jnp.concatenate([jnp.full_like(levels, contour.theta), jnp.stack([contour.below, contour.above])])
    frequency = jnp.concatenate([levels, jnp.zeros(2)])

    def block(b: Array, state: tuple[Array, _Totals]) -> tuple[Array, _Totals]:
        start, totals = state
        index = PANEL_BLOCK * b + np.arange(1, PANEL_BLOCK + 1, dtype=np.int32)
        edges = panel_edges(panels, index * (total / (PANEL_BLOCK * blocks)))
        edges = jnp.where(index == PANEL_BLOCK * blocks, window.upper, edges)
        edges = jnp.concatenate([start[None], edges])
        # Without the barrier XLA recomputes the nodes inside each of their uses.
        nodes = jax.lax.optimization_barrier(_moments.make_nodes(step, edges))
        rule, error = _moments.quadrature_error(step, nodes, edges, theta, frequency)
        weight = jnp.exp(nodes.log_weight + contour.theta * nodes.loss - reference)
        fixed, slope = _moments.rounding_terms(step, nodes, contour.theta)
        exponent = jnp.abs(nodes.log_weight + contour.theta * nodes.loss - reference)
        rounding = jnp.stack([jnp.sum(weight * (fixed + 2.0 * exponent)), jnp.sum(weight * slope)])
        product = _fourier_block(totals.product, nodes.loss, weight, spacing, num_blocks)
        log_rule, log_error = jnp.logaddexp(totals.log_rule, rule), jnp.logaddexp(totals.log_error, error)
        return edges[-1], _Totals(log_rule, log_error, totals.rounding + rounding, product)

    empty = jnp.full(theta.shape, -jnp.inf)
    shape = (MAX_FREQUENCIES // FREQUENCY_BLOCK, 16, 64)
    start = window.lower, _Totals(empty, empty, jnp.zeros(2), jnp.zeros(shape))
    _, totals = jax.lax.fori_loop(np.int32(0), blocks, block, start)
    return totals, reference, blocks * (PANEL_BLOCK * _moments.NODES_PER_PANEL)


def _fourier_block(product: Array, loss: Array, weight: Array, spacing: Array, num_blocks: Array) -> Array:
    """Add sum_i w_i e^{i t L_i} for the nodes of one block, as the products of cosines and sines."""
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

    return jax.lax.fori_loop(np.int32(0), num_blocks, block, product)


def _accumulate(carry, step, product, errors, contour, spacing, num_blocks):
    """Add one phase to (log-modulus, angle, log prod m^T, sum T u / m) of the composition."""
    relative, fixed, slope = errors
    levels = contour.cutoff * jnp.asarray(_LEVELS)
    total = product[0, 0, 0]
    at_zero = fixed + relative[0]

    def block(f: Array, carry):
        part = product[f]
        real = (part[:8, :32] - part[8:, 32:]).reshape(-1) / total
        imag = (part[8:, :32] + part[:8, 32:]).reshape(-1) / total
        frequency = spacing * (FREQUENCY_BLOCK * f + np.arange(FREQUENCY_BLOCK))
        size = jnp.sqrt(real**2 + imag**2)
        log_size = jnp.log(jnp.maximum(size, 1e-150))
        quadrature = relative[-1]
        for i in range(_LEVELS.size - 2, 0, -1):
            quadrature = jnp.where(frequency <= levels[i], relative[i], quadrature)
        # phi divides by the computed A(theta), itself off by at_zero.
        off = (fixed + slope * frequency + quadrature + at_zero) * (1.0 + 2.0 * at_zero)
        largest = jnp.maximum(jnp.minimum(size + off, 1.0 + 4.0 * at_zero), size)
        terms = log_size, jnp.arctan2(imag, real), jnp.log(jnp.maximum(largest, 1e-150)), off / largest
        start = FREQUENCY_BLOCK * f
        return tuple(
            jax.lax.dynamic_update_slice(
                old, jax.lax.dynamic_slice(old, (start,), (FREQUENCY_BLOCK,)) + step.num_steps * term, (start,)
            )
            for old, term in zip(carry, terms, strict=True)
        )

    return jax.lax.fori_loop(np.int32(0), num_blocks, block, carry)
