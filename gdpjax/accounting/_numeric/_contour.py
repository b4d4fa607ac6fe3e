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

**Trapezoid.** F(e) = E_P[h(L - e)] = (1 / 2 pi i) integral M(z) k(z) e^{-ze} dz. With spacing 2 pi / D, Poisson
summation gives exactly  sum = F(e) + sum_{m >= 1} e^{theta m D} F(e + mD) + sum_{m >= 1} e^{-theta m D} F(e - mD).

* Where h >= 0 (U, P, Q) all aliases are >= 0, so the sum is an *upper* bound on F as it stands.
* A lower bound subtracts upper bounds of the aliases. For L: F <= delta of the cut measures <= c(t) e^{K(t) - t e} at
  any t > 0, and <= 1. With t = theta_2 > theta on the right and t = theta_1 < theta (or the bound 1) on the left the
  sums are geometric.

**What else.** The sum stops at |t| <= t_N. Since |M(theta + it)| <= M(theta), the rest is at most
e^{K(theta) - theta e} (1 / pi) integral_{t_N} |k|, with |k_U| <= e^{eta^2 (theta^2 + theta - t^2) / 2} / t^2 and
|k_L| <= e^{-eta^2 t^2 / 2} (e^{eta^2 theta^2 / 2} + e^{eta^2 (theta + 1)^2 / 2}) / t. The integrals are below
e^{-x^2 / 2} / t_N min(1, x^-2) and e^{-x^2 / 2} / x^2, x = eta t_N.

The errors of M itself are derived in `_line`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric._line import FREQUENCY_BLOCK, MAX_FREQUENCIES, Contour, Transform
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF


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


class Sums(NamedTuple):
    """e^{theta e - log_size} F(e) for several kernels: trigonometric sums in e - origin, and bounds on their errors."""

    num_blocks: Array
    spacing: Array
    real: Array
    imag: Array
    error: Array


def make_sums(names: tuple[str, ...], data: Transform, contour: Contour, origin: Array) -> Sums:
    """Coefficients of the trapezoid sums about e = ``origin``; the errors hold for |e - origin| <= period."""
    spacing = 2.0 * np.pi / contour.period
    size = FREQUENCY_BLOCK

    def block(f: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        real, imag, error = carry
        start = jnp.asarray(size * f, np.int32)
        modulus, angle, off = (
            jax.lax.dynamic_slice(x, (start,), (size,)) for x in (data.modulus, data.angle, data.error)
        )
        t = spacing * (size * f + np.arange(size))
        inside = t <= contour.cutoff
        z = jax.lax.complex(jnp.full_like(t, contour.theta), t)
        values, scales = (jnp.stack(x) for x in zip(*(kernel(name, z, contour.eta) for name in names), strict=True))
        measure = jnp.where(inside, jnp.where(t == 0, 0.5, 1.0) * spacing / np.pi, 0.0)
        modulus, angle = jnp.exp(modulus) * measure, angle - t * origin
        cos, sin = modulus * jnp.cos(angle), modulus * jnp.sin(angle)
        k_real, k_imag = jnp.real(values), jnp.imag(values)
        # The phase to a few ulp of its size, the kernel to 64 ulp and its own exponent, the sum to one ulp per term.
        phase = 4.0 * UNIT_ROUNDOFF * t * (jnp.abs(origin) + contour.period) + data.phase_rounding
        exponent = 4.0 * contour.eta**2 * ((contour.theta + 1.0) ** 2 + t**2) + size * data.num_blocks
        rounding = measure * off + modulus * (phase + UNIT_ROUNDOFF * (64.0 + exponent))
        put = jax.lax.dynamic_update_slice
        real = put(real, jnp.where(inside, k_real * cos - k_imag * sin, 0.0), (np.int32(0), start))
        imag = put(imag, jnp.where(inside, k_real * sin + k_imag * cos, 0.0), (np.int32(0), start))
        return real, imag, error + jnp.sum(jnp.where(inside, scales * rounding, 0.0), axis=1)

    zeros = jnp.zeros((len(names), MAX_FREQUENCIES))
    real, imag, error = jax.lax.fori_loop(np.int32(0), data.num_blocks, block, (zeros, zeros, jnp.zeros(len(names))))
    # One term fewer than was summed, in case the comparison with the cutoff rounded the other way.
    last = (
        jnp.maximum(jnp.minimum(jnp.floor(contour.cutoff / spacing), size * data.num_blocks - 1.0) - 1.0, 0.5) * spacing
    )
    tails = jnp.exp(jnp.stack([log_tail(name, contour, last) for name in names]))
    return Sums(data.num_blocks, spacing, real, imag, error * (1.0 + 1e-9) + tails)


def evaluate(sums: Sums, shift: Array) -> tuple[Array, Array]:
    """The sums and their derivatives in e, each at its own e = origin + shift; all [kernels]."""
    size = FREQUENCY_BLOCK

    def block(f: Array, carry: tuple[Array, Array]) -> tuple[Array, Array]:
        t = sums.spacing * (size * f + np.arange(size))
        start = (np.int32(0), jnp.asarray(size * f, np.int32))
        real, imag = (jax.lax.dynamic_slice(x, start, (shift.shape[0], size)) for x in (sums.real, sums.imag))
        phase = shift[:, None] * t
        cos, sin = jnp.cos(phase), jnp.sin(phase)
        slope = t * (imag * cos - real * sin)
        return carry[0] + jnp.sum(real * cos + imag * sin, 1), carry[1] + jnp.sum(slope, 1)

    return jax.lax.fori_loop(np.int32(0), sums.num_blocks, block, (jnp.zeros_like(shift), jnp.zeros_like(shift)))


def log_peak(theta: Array) -> Array:
    """log c(theta), the maximum of log (1 - e^{-x}) - theta x over x > 0.

    Both terms are negative: theta log theta - (1 + theta) log (1 + theta) cancels, by 1e-3 at theta = 1e12.
    """
    return -theta * jnp.log1p(1.0 / theta) - jnp.log1p(theta)


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


def log_delta_bounds(data: Transform, contour: Contour, sums: Sums, origin: Array, epsilon: Array) -> Array:
    """log of certified bounds [2] on delta: upper at epsilon[0], lower at epsilon[1] (-inf where it says nothing).

    ``sums`` holds the kernels ("upper", "lower").
    """
    value, _ = evaluate(sums, epsilon - origin)
    above = log_scale(data, contour, epsilon[0], 1.0) + jnp.log(jnp.maximum(value[0], 0.0) + sums.error[0])
    upper = jnp.minimum(jnp.logaddexp(above, jnp.log(data.lost)), 0.0)
    below = log_scale(data, contour, epsilon[1], -1.0) + jnp.log(jnp.maximum(value[1] - sums.error[1], 0.0))
    gap = jnp.expm1(jnp.minimum(log_alias(data, contour, epsilon[1]) - below, 0.0))
    lower = jnp.where(below > -jnp.inf, below + jnp.log(-gap), -jnp.inf)
    return jnp.where(jnp.abs(epsilon - origin) <= contour.period, jnp.stack([upper, lower]), jnp.array([0.0, -jnp.inf]))


def log_scale(data: Transform, contour: Contour, epsilon: Array, side: float) -> Array:
    """K(theta) - theta epsilon, moved to the given side by its rounding and quadrature error."""
    exponent = data.log_size - contour.theta * epsilon
    size = jnp.abs(data.log_size) + jnp.abs(contour.theta * epsilon)
    return exponent + side * (data.log_size_error + 8.0 * UNIT_ROUNDOFF * (1.0 + size))
