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

The errors of M itself are derived in `_characteristic_function`.
"""

from typing import NamedTuple

import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric._characteristic_function import Contour, Transform
from gdpjax.accounting._numeric._moments import UNIT_ROUNDOFF


def kernel(name: str, z: Array, eta: float) -> tuple[Array, Array]:
    """k_U, k_L, k_P or k_Q at complex z without cancellation, and a real scale: it is exact to 64 ulp of that."""
    if name == "upper":
        value = np.exp(0.5 * eta**2 * z * (z + 1.0)) / (z * (z + 1.0))
        return value, np.abs(value)
    if name == "reject_p":
        value = np.exp(0.5 * eta**2 * z**2) / z
        return value, np.abs(value)
    if name == "reject_q":
        value = np.exp(0.5 * eta**2 * (z + 1.0) ** 2) / (z + 1.0)
        return value, np.abs(value)
    half = 0.5 * eta**2 * (2.0 * z + 1.0)
    a, b = half.real, half.imag
    expm1 = np.expm1(a) * np.cos(b) - 2.0 * np.sin(0.5 * b) ** 2 + 1j * (np.exp(a) * np.sin(b))
    gauss, first, second = np.exp(0.5 * eta**2 * z**2), 1.0 / (z * (z + 1.0)), expm1 / (z + 1.0)
    return gauss * (first - second), np.abs(gauss) * (np.abs(first) + np.abs(second))


def log_tail(name: str, contour: Contour, start: float) -> float:
    """log of a bound on (1 / pi) integral_{start}^inf |k(theta + it)| dt."""
    eta, theta = contour.eta, contour.theta
    x = eta * start
    p_part, q_part = 0.5 * (eta * theta) ** 2, 0.5 * (eta * (theta + 1.0)) ** 2
    if name == "upper":
        bound = 0.5 * eta**2 * (theta**2 + theta) - np.log(start) + min(0.0, -2.0 * np.log(x))
    else:
        both = {"lower": np.logaddexp(p_part, q_part), "reject_p": p_part, "reject_q": q_part}[name]
        bound = both - 2.0 * np.log(x)
    return bound - 0.5 * x**2 - np.log(np.pi) + 1e-9


class Sums(NamedTuple):
    """e^{theta e - log_size} F(e) for several kernels: trigonometric sums in e - origin, and bounds on their errors."""

    frequency: Array
    """t [n]"""
    real: Array
    """Coefficients of cos t (e - origin) [kernels, n]."""
    imag: Array
    """Coefficients of sin t (e - origin) [kernels, n]."""
    error: Array
    """[kernels]"""


def make_sums(names: tuple[str, ...], data: Transform, contour: Contour, origin: float) -> Sums:
    """Coefficients of the trapezoid sums about e = ``origin``; the errors hold for |e - origin| <= period."""
    inside = ~(data.frequency > contour.cutoff)
    t = data.frequency[inside]
    spacing = data.frequency[1]
    measure = np.full(t.size, spacing / np.pi)
    measure[0] *= 0.5
    modulus, angle = np.exp(data.modulus[inside]) * measure, data.angle[inside] - t * origin
    turned = modulus * (np.cos(angle) + 1j * np.sin(angle))

    # The phase to a few ulp of its size, the kernel to 64 ulp and its own exponent, the sum to one ulp per term.
    phase = 4.0 * UNIT_ROUNDOFF * t * (abs(origin) + contour.period) + data.phase_rounding
    exponent = 4.0 * contour.eta**2 * ((contour.theta + 1.0) ** 2 + t**2) + data.frequency.size
    rounding = measure * data.error[inside] + modulus * (phase + UNIT_ROUNDOFF * (64.0 + exponent))

    # One term fewer than was summed, in case the comparison with the cutoff rounded the other way.
    last = max(t.size - 2.0, 0.5) * spacing
    z = contour.theta + 1j * t
    real, imag = np.zeros((2, len(names), t.size))
    errors = np.zeros(len(names))
    for i, name in enumerate(names):
        value, scale = kernel(name, z, contour.eta)
        term = value * turned
        real[i], imag[i] = term.real, term.imag
        errors[i] = np.dot(scale, rounding) * (1.0 + 1e-9) + _exp(log_tail(name, contour, last))
    return Sums(t, real, imag, errors)


def _exp(x: float) -> float:
    return np.exp(x) if x < 700.0 else np.inf


def evaluate(sums: Sums, shift: float) -> tuple[Array, Array]:
    """The sums and their derivatives in e [kernels], at e = origin + shift."""
    phase = shift * sums.frequency
    cos, sin = np.cos(phase), np.sin(phase)
    slopes = sums.imag @ (sums.frequency * cos) - sums.real @ (sums.frequency * sin)
    return sums.real @ cos + sums.imag @ sin, slopes


def log_peak(theta: Array) -> Array:
    """log c(theta), the maximum of log (1 - e^{-x}) - theta x over x > 0.

    Both terms are negative: theta log theta - (1 + theta) log (1 + theta) cancels, by 1e-3 at theta = 1e12.
    """
    return -theta * np.log1p(1.0 / theta) - np.log1p(theta)


def log_alias(data: Transform, contour: Contour, epsilon: float) -> float:
    """log of a bound on sum_m e^{theta m D} F(e + mD) + e^{-theta m D} F(e - mD) for F below (1 - e^{e - L})_+."""
    theta, period = contour.theta, contour.period
    below = log_peak(contour.below) + data.log_below - contour.below * epsilon
    above = log_peak(contour.above) + data.log_above - contour.above * epsilon
    left = min(log_geometric(theta * period), below + log_geometric((theta - contour.below) * period))
    return np.logaddexp(left, above + log_geometric((contour.above - theta) * period)) + 1e-9


def log_geometric(rate: float) -> float:
    """log sum_{m >= 1} e^{-m rate}."""
    return -rate - np.log(-np.expm1(-rate)) if rate > 0 else np.inf


def log_upper_delta(data: Transform, contour: Contour, sums: Sums, origin: float, epsilon: float) -> float:
    """log of a certified upper bound on delta(epsilon), by the first kernel of ``sums``, "upper"."""
    if abs(epsilon - origin) > contour.period or epsilon < data.least:
        return 0.0
    value = evaluate(sums, epsilon - origin)[0][0]
    above = log_scale(data, contour, epsilon, 1.0) + _log(max(value, 0.0) + sums.error[0])
    return min(np.logaddexp(above, _log(data.lost)), 0.0)


def log_lower_delta(data: Transform, contour: Contour, sums: Sums, origin: float, epsilon: float) -> float:
    """log of a certified lower bound on delta(epsilon), by the second kernel of ``sums``, "lower"; maybe -inf."""
    if abs(epsilon - origin) > contour.period:
        return -np.inf
    value = evaluate(sums, epsilon - origin)[0][1]
    below = log_scale(data, contour, epsilon, -1.0) + _log(max(value - sums.error[1], 0.0))
    if not below > -np.inf:
        return -np.inf
    gap = -np.expm1(min(log_alias(data, contour, epsilon) - below, 0.0))
    return below + _log(gap)


def _log(x: float) -> float:
    return np.log(x) if x > 0 else (-np.inf if x == 0 else np.nan)


def log_scale(data: Transform, contour: Contour, epsilon: float, side: float) -> float:
    """K(theta) - theta epsilon, moved to the given side by its rounding and quadrature error."""
    exponent = data.log_size - contour.theta * epsilon
    size = abs(data.log_size) + abs(contour.theta * epsilon)
    return exponent + side * (data.log_size_error + 8.0 * UNIT_ROUNDOFF * (1.0 + size))
