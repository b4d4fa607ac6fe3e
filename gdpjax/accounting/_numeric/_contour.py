"""delta from the moments: a trapezoid sum on the line Re z = theta, bracketed.

Write M(z) = E_P[e^{zL}] = prod_j A_j(z)^{T_j} for the composition (of the cut measures), and c(theta) =
theta^theta / (1 + theta)^{1 + theta}, the maximum of (1 - e^{-x})_+ e^{-theta x}.

**Two smoothings.** delta(e) = E_P[(1 - e^{e - L})_+]. Let N be standard normal, eta > 0.

* Upper: h_U(x) = E(1 - e^{-x - xi})_+ with xi = eta N + eta^2 / 2. As E e^{-xi} = 1 and y -> (1 - y)_+ is convex,
  Jensen gives h_U(x) >= (1 - e^{-x})_+. (It is the composition with one more Gaussian mechanism, G_eta.)
  Its transform integral h_U(x) e^{-zx} dx is k_U(z) = e^{eta^2 z (z + 1) / 2} / (z (z + 1)).
* Lower: h_L(x) = (1 - e^{-x}) Phi(x / eta), i.e. the test "L + eta N > e"; any test bounds delta from below, and
  pointwise h_L(x) <= (1 - e^{-x})_+. Transform k_L(z) = e^{eta^2 z^2 / 2} / z - e^{eta^2 (z + 1)^2 / 2} / (z + 1).

The same test's two errors have the transforms k_P = e^{eta^2 z^2 / 2} / z for P(L + eta N > e), and for
e^e Q(L + eta N > e) = E_P[e^{e - L} 1{...}] k_Q = e^{eta^2 (z + 1)^2 / 2} / (z + 1).

**Trapezoid.** F(e) = E_P[h(L - e)] = (1 / 2 pi i) integral M(z) k(z) e^{-ze} dz. With spacing 2 pi / D, Poisson summation
gives exactly  sum = F(e) + sum_{m >= 1} e^{theta m D} F(e + mD) + sum_{m >= 1} e^{-theta m D} F(e - mD).

* Where h >= 0 (U, P, Q) all aliases are >= 0, so the sum is an *upper* bound on F as it stands.
* A lower bound subtracts upper bounds of the aliases. For U, L: F <= delta-like <= c(t) e^{K(t) - t e} at any t > 0, and
  <= 1. With t = theta_2 > theta on the right and t = theta_1 < theta (or the bound 1) on the left the sums are geometric.

**What else.** The sum stops at |t| <= t_N. Since |M(theta + it)| <= M(theta), the rest is at most
e^{K(theta) - theta e} (1 / pi) integral_{t_N} |k|, with |k_U| <= e^{eta^2 (theta^2 + theta - t^2) / 2} / t^2 and
|k_L| <= e^{-eta^2 t^2 / 2} (e^{eta^2 theta^2 / 2} + e^{eta^2 (theta + 1)^2 / 2}) / t. The integrals are below
e^{-x^2 / 2} / t_N min(1, x^-2) and e^{-x^2 / 2} / x^2, x = eta t_N.

If the computed phi_j = A_j(theta + it) / A_j(theta) is off by at most u_j(t), quadrature and rounding together, then with
m_j = |phi_j| + u_j the product prod phi_j^{T_j} is off by at most (sum_j T_j u_j / m_j) prod m_j^{T_j}: that times |k|
is summed along. K(theta) itself is off by sum_j T_j u_j(0).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _moments
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF, Nodes, Step, Window

_LEVELS = np.array([0.0, 0.125, 0.25, 0.5, 0.75, 1.0])


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
    """M on the line: e^{log_size} (coefficients +- error), per frequency, and the two alias exponents."""

    frequency: Array
    modulus: Array
    angle: Array
    error: Array
    log_size: Array
    log_size_error: Array
    log_below: Array
    log_above: Array
    lost: Array
    phase_rounding: Array


def panel_density(step: Step, window: Window, contour: Contour, u: Array, log_a: Array) -> Array:
    """Panels per unit of u that the quadrature needs: where the mass is, enough for the oscillation of e^{itL}."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    ell = _moments.log_ratio(u, sigma, p)
    slope = jnp.exp(jnp.minimum(jnp.log(p) + (u - 0.5 / sigma) / sigma - ell, 0.0)) / sigma
    exponent = jnp.where(step.sign > 0, 1.0, 0.0) + step.sign * contour.theta
    mass = exponent * ell - 0.5 * u**2 - log_a + jnp.log(step.num_steps)
    still = jnp.where(mass > contour.log_error - 3.0, slope * contour.cutoff / 42.0, 0.0)
    return jnp.maximum(still, jnp.maximum(0.5 / sigma, 0.4))


def choose_edges(step: Step, window: Window, contour: Contour, panels: int) -> tuple[Array, Array]:
    """Edges that equidistribute `panel_density`, and how many panels it asks for."""
    grid = window.lower + (window.upper - window.lower) / 128 * jnp.arange(129)
    nodes = _moments.make_nodes(step, grid[::16])
    log_a = _moments.log_moment(nodes, contour.theta)[0]
    middle = panel_density(step, window, contour, 0.5 * (grid[1:] + grid[:-1]), log_a)
    total = jnp.concatenate([jnp.zeros(1), jnp.cumsum(middle * jnp.diff(grid))])
    edges = jnp.interp(total[-1] / panels * jnp.arange(panels + 1), total, grid)
    return edges.at[0].set(window.lower).at[-1].set(window.upper), total[-1]


def log_moments(step: Step, nodes: Nodes, edges: Array, theta: Array) -> Array:
    """A certified upper bound on K(theta) = sum_j T_j log A_j(theta); all arguments per phase, theta a scalar."""

    def one(step: Step, nodes: Nodes, edges: Array) -> Array:
        value, _, _ = _moments.log_moment(nodes, theta)
        quadrature = _moments.quadrature_error(step, nodes, edges, theta, jnp.zeros(1))[0]
        fixed, _ = _moments.rounding_error(step, nodes, theta)
        return jnp.logaddexp(value + fixed, quadrature)

    values = step.num_steps * jax.vmap(one)(step, nodes, edges)
    return jnp.sum(values) + 8.0 * UNIT_ROUNDOFF * jnp.sum(jnp.abs(values))


def transform(step: Step, window: Window, contour: Contour, panels: int, num_frequencies: int) -> Transform:
    """Evaluate M along the line, with every error of it; ``step`` has a leading axis of phases."""
    edges = jax.vmap(lambda s, w: choose_edges(s, w, contour, panels)[0])(step, window)
    nodes = jax.vmap(_moments.make_nodes)(step, edges)
    spacing = 2.0 * np.pi / contour.period
    levels = contour.cutoff * jnp.asarray(_LEVELS)
    frequency = spacing * jnp.arange(num_frequencies)
    at_level = jnp.clip(jnp.searchsorted(levels, frequency), 0, levels.shape[0] - 1)

    def phase(step: Step, nodes: Nodes, edges: Array) -> tuple[Array, ...]:
        log_a, modulus, angle = _moments.characteristic(nodes, contour.theta, spacing, num_frequencies)
        quadrature = _moments.quadrature_error(step, nodes, edges, contour.theta, levels)
        relative = jnp.exp(jnp.minimum(quadrature - log_a, 2.0))
        fixed, slope = _moments.rounding_error(step, nodes, contour.theta)
        at_zero = fixed + relative[0]
        # phi divides by the computed A(theta), itself off by at_zero; 16 ulp for the logarithm and the angle.
        off = (fixed + slope * frequency + relative[at_level] + at_zero + 16.0 * UNIT_ROUNDOFF) * (1.0 + 2.0 * at_zero)
        return log_a, modulus, angle, off, at_zero

    log_a, modulus, angle, off, at_zero = jax.vmap(phase)(step, nodes, edges)
    steps = step.num_steps[:, None]
    # Both phi and the computed one are at most 1 (+ rounding), so m_j may be capped there, and the difference at 2.
    largest = jnp.minimum(jnp.exp(modulus) + off, 1.0 + 4.0 * at_zero[:, None])
    largest = jnp.maximum(largest, jnp.exp(modulus))
    error = jnp.exp(jnp.sum(steps * jnp.log(largest), 0)) * jnp.minimum(jnp.sum(steps * off / largest, 0), 2.0)
    size = jnp.sum(step.num_steps * log_a)
    size_error = jnp.sum(step.num_steps * (2.0 * at_zero + 4.0 * UNIT_ROUNDOFF * (1.0 + jnp.abs(log_a))))
    return Transform(
        frequency,
        jnp.sum(steps * modulus, 0),
        jnp.sum(steps * angle, 0),
        error,
        size,
        jnp.where(jnp.max(at_zero) < 0.25, size_error, jnp.inf),
        log_moments(step, nodes, edges, contour.below),
        log_moments(step, nodes, edges, contour.above),
        -jnp.expm1(jnp.sum(step.num_steps * jnp.log1p(-jnp.minimum(window.lost, 0.5)))) * (1.0 + 1e-9),
        4.0 * np.pi * UNIT_ROUNDOFF * jnp.sum(step.num_steps),
    )


def kernel(name: str, z: Array, eta: Array) -> tuple[Array, Array]:
    """k_U, k_L, k_P or k_Q at complex z without cancellation, and a real scale: it is exact to 64 ulp of that."""
    if name == "upper":
        value = jnp.exp(0.5 * eta**2 * z * (z + 1.0)) / (z * (z + 1.0))
        return value, jnp.abs(value)
    if name == "reject_p":
        value = jnp.exp(0.5 * eta**2 * z**2) / z
        return value, jnp.abs(value)
    if name == "reject_q":
        value = jnp.exp(0.5 * eta**2 * (z + 1.0) ** 2) / (z + 1.0)
        return value, jnp.abs(value)
    half = 0.5 * eta**2 * (2.0 * z + 1.0)
    a, b = jnp.real(half), jnp.imag(half)
    expm1 = jax.lax.complex(jnp.expm1(a) * jnp.cos(b) - 2.0 * jnp.sin(0.5 * b) ** 2, jnp.exp(a) * jnp.sin(b))
    gauss, first, second = jnp.exp(0.5 * eta**2 * z**2), 1.0 / (z * (z + 1.0)), expm1 / (z + 1.0)
    return gauss * (first - second), jnp.abs(gauss) * (jnp.abs(first) + jnp.abs(second))


def log_tail(name: str, contour: Contour, start: Array) -> Array:
    """log of a bound on (1 / pi) integral_{start}^inf |k(theta + it)| dt."""
    eta, theta = contour.eta, contour.theta
    x = eta * start
    p_part, q_part = 0.5 * (eta * theta) ** 2, 0.5 * (eta * (theta + 1.0)) ** 2
    if name == "upper":
        bound = 0.5 * eta**2 * (theta**2 + theta) - jnp.log(start) + jnp.minimum(0.0, -2.0 * jnp.log(x))
    else:
        both = {"lower": jnp.logaddexp(p_part, q_part), "reject_p": p_part, "reject_q": q_part}[name]
        bound = both - 2.0 * jnp.log(x)
    return bound - 0.5 * x**2 - np.log(np.pi) + 1e-9


class Sum(NamedTuple):
    """e^{-log_size} F(e) e^{theta e} as a trigonometric sum in e - origin, and the bound on its error."""

    frequency: Array
    real: Array
    imag: Array
    error: Array


def make_sum(name: str, data: Transform, contour: Contour, origin: Array) -> Sum:
    """Coefficients of the trapezoid sum about e = ``origin``; the error holds for |e - origin| <= period."""
    t = data.frequency
    spacing = t[1]
    keep = t <= contour.cutoff
    last = (jnp.sum(keep) - 1.0) * spacing
    value, scale = kernel(name, jax.lax.complex(jnp.full_like(t, contour.theta), t), contour.eta)
    measure = jnp.where(keep, jnp.where(t == 0, 0.5, 1.0) * spacing / np.pi, 0.0)
    angle = data.angle - t * origin
    turn = jax.lax.complex(jnp.cos(angle), jnp.sin(angle))
    coefficient = jnp.where(keep, jnp.exp(data.modulus) * measure * value * turn, 0.0)
    # The phase to a few ulp of its size, the kernel to 64 ulp and its own exponent, the sum to one ulp per term.
    phase = 4.0 * UNIT_ROUNDOFF * t * (jnp.abs(origin) + contour.period) + data.phase_rounding
    exponent = 4.0 * (contour.eta**2) * ((contour.theta + 1.0) ** 2 + t**2)
    rounding = phase + UNIT_ROUNDOFF * (64.0 + exponent + t.shape[0])
    scale = jnp.where(keep, measure * scale, 0.0)
    error = jnp.sum(scale * (data.error + jnp.exp(data.modulus) * rounding)) * (1.0 + 1e-9)
    return Sum(t, jnp.real(coefficient), jnp.imag(coefficient), error + jnp.exp(log_tail(name, contour, last)))


def evaluate(total: Sum, shift: Array) -> tuple[Array, Array]:
    """The sum and its derivative in e, at e = origin + shift."""
    phase = total.frequency * shift
    cos, sin = jnp.cos(phase), jnp.sin(phase)
    value = total.real * cos + total.imag * sin
    slope = total.frequency * (total.imag * cos - total.real * sin)
    return jnp.sum(value), jnp.sum(slope)


def log_peak(theta: Array) -> Array:
    """log c(theta), the maximum of log (1 - e^{-x}) - theta x over x > 0."""
    return theta * jnp.log(theta) - (1.0 + theta) * jnp.log1p(theta)


def log_alias(data: Transform, contour: Contour, epsilon: Array) -> Array:
    """log of a bound on sum_m e^{theta m D} F(e + mD) + e^{-theta m D} F(e - mD) for F below (1 - e^{e - L})_+."""
    theta, period = contour.theta, contour.period
    trivial = -theta * period - jnp.log(-jnp.expm1(-theta * period))
    below = log_peak(contour.below) + data.log_below - contour.below * epsilon
    above = log_peak(contour.above) + data.log_above - contour.above * epsilon

    def geometric(rate: Array) -> Array:
        return -rate - jnp.log(-jnp.expm1(-rate))

    left = jnp.minimum(trivial, below + geometric((theta - contour.below) * period))
    return jnp.logaddexp(left, above + geometric((contour.above - theta) * period)) + 1e-9


def log_delta_upper(data: Transform, contour: Contour, total: Sum, origin: Array, epsilon: Array) -> Array:
    """log of a certified upper bound on delta(epsilon), from the sum for k_U."""
    value, _ = evaluate(total, epsilon - origin)
    scale = _log_scale(data, contour, epsilon, 1.0)
    inside = scale + jnp.log(jnp.maximum(value, 0.0) + total.error)
    return jnp.minimum(jnp.logaddexp(inside, jnp.log(data.lost)), 0.0)


def log_delta_lower(data: Transform, contour: Contour, total: Sum, origin: Array, epsilon: Array) -> Array:
    """log of a certified lower bound on delta(epsilon), from the sum for k_L; -inf where it says nothing."""
    value, _ = evaluate(total, epsilon - origin)
    inside = _log_scale(data, contour, epsilon, -1.0) + jnp.log(jnp.maximum(value - total.error, 0.0))
    gap = jnp.expm1(jnp.minimum(log_alias(data, contour, epsilon) - inside, 0.0))
    return jnp.where(inside > -jnp.inf, inside + jnp.log(-gap), -jnp.inf)


def _log_scale(data: Transform, contour: Contour, epsilon: Array, side: float) -> Array:
    exponent = data.log_size - contour.theta * epsilon
    size = jnp.abs(data.log_size) + jnp.abs(contour.theta * epsilon)
    return exponent + side * (data.log_size_error + 8.0 * UNIT_ROUNDOFF * (1.0 + size))
