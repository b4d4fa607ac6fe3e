"""A bracket on delta from the moments: a trapezoid sum on the line Re z = theta.

With M(z) = E_P[e^{zL}] the moments of the whole run, the expectation of any function h of the privacy loss is

    F(epsilon) = E_P[h(L - epsilon)] = (1 / 2 pi i) integral M(z) k(z) e^{-z epsilon} dz,

where the kernel is k(z) = integral h(x) e^{-zx} dx. `kernel` has four of them. "upper" belongs to a smooth function
above (1 - e^{-x})_+ and "lower" to one below it, so that their F lie above and below delta. "reject_p" and "reject_q"
give the two errors of the test behind "lower". A line is evaluated in two steps:

* `make_sums` turns the moments on the line into the coefficients of trigonometric sums, with bounds on their errors;
* `log_upper_delta` and `log_lower_delta` evaluate these sums at any epsilon nearby, and add what else is off.

Of runs side by side every number is an array [runs], and every array has the axis of runs first.

The kernels, the aliases of the trapezoid sum and its tail are derived in docs/theory/contour.md ("Two smoothings",
"The trapezoid sum", "The bracket on delta"), the errors of M in its section "The product along the line".
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gdpjax._composition._bounded_losses import complex_expm1
from gdpjax._composition._characteristic_function import Contour, RunOnLine, last_frequency
from gdpjax._composition._moments import UNIT_ROUNDOFF
from gdpjax._core.types import Array


def kernel(name: str, z: Array, eta: Array) -> tuple[Array, Array]:
    """Return the kernel of this name at complex z, and the real scale of its error.

    Args:
        name: "upper", "lower", "reject_p" or "reject_q".
        z: Points off the poles 0 and -1 [n].
        eta: The smoothing, a number or an array that broadcasts to z.

    Returns:
        The kernel [n], right to 64 ulp of the scale [n].
    """
    half_variance = 0.5 * eta**2
    if name == "upper":
        gauss = np.exp(half_variance * z * (z + 1.0))
        value = gauss / (z * (z + 1.0))
        return value, np.abs(value)
    if name == "reject_p":
        gauss = np.exp(half_variance * z**2)
        value = gauss / z
        return value, np.abs(value)
    if name == "reject_q":
        gauss = np.exp(half_variance * (z + 1.0) ** 2)
        value = gauss / (z + 1.0)
        return value, np.abs(value)

    # "lower" is the difference of the last two. With q = e^{eta^2 (2z + 1) / 2} - 1 it does not cancel:
    # e^{eta^2 z^2 / 2} (1 / z - (1 + q) / (z + 1)) = e^{eta^2 z^2 / 2} (1 / (z (z + 1)) - q / (z + 1)).
    exponent = half_variance * (2.0 * z + 1.0)
    q = complex_expm1(exponent.real, exponent.imag)
    gauss = np.exp(half_variance * z**2)
    first = 1.0 / (z * (z + 1.0))
    second = q / (z + 1.0)
    size = np.abs(first) + np.abs(second)
    scale = np.abs(gauss) * size
    return gauss * (first - second), scale


def log_tail(name: str, contour: Contour, start: Array) -> Array:
    """Return the log of a bound on (1 / pi) integral_{start}^inf |k(theta + it)| dt."""
    eta = contour.eta
    theta = contour.theta
    x = eta * start
    if name == "upper":
        growth = 0.5 * eta**2 * (theta**2 + theta)
        decay = np.minimum(0.0, -2.0 * np.log(x))
        bound = growth - np.log(start) + decay
    else:
        p_growth = 0.5 * (eta * theta) ** 2
        q_growth = 0.5 * (eta * (theta + 1.0)) ** 2
        growths = {
            "lower": np.logaddexp(p_growth, q_growth),
            "reject_p": p_growth,
            "reject_q": q_growth,
        }
        bound = growths[name] - 2.0 * np.log(x)
    return bound - 0.5 * x**2 - np.log(np.pi) + 1e-9


_ROW = 64
"""How many frequencies share a rotation."""


class TrapezoidSums(NamedTuple):
    """e^{theta epsilon - log_size} F(epsilon) for several kernels, as trigonometric sums in epsilon - origin.

    Attributes:
        spacing: The distance of the frequencies.
        terms: The coefficients of e^{-i t (epsilon - origin)}, whose real parts count: of the sums, and of their
            derivatives in epsilon, in rows of frequencies [2, kernels, rows, `_ROW`].
        error: Bounds on the errors of the sums [kernels].
    """

    spacing: Array
    terms: Array
    error: Array


def make_sums(names: tuple[str, ...], data: RunOnLine, contour: Contour, origin: Array) -> TrapezoidSums:
    """Return the trapezoid sums about epsilon = ``origin``.

    The errors hold for |epsilon - origin| <= period.
    """
    theta, cutoff, period, eta, origin = (
        np.asarray(number)[..., None] for number in (contour.theta, contour.cutoff, contour.period, contour.eta, origin)
    )
    t = data.frequency
    spacing = t[..., 1]
    inside = ~(t > cutoff)

    # The trapezoid rule on t >= 0: its two halves are conjugate, and t = 0 belongs to both.
    measure = np.where(inside, spacing[..., None] / np.pi, 0.0)
    measure[..., 0] *= 0.5
    modulus = np.exp(data.modulus) * measure
    angle = data.angle - t * origin
    rotation = np.cos(angle) + 1j * np.sin(angle)
    turned = modulus * rotation

    # The phase is right to a few ulp of its size, the kernel and the rotations to 80 ulp and the kernel's own exponent,
    # and the sums over a row and over the rows add two ulp for each term.
    farthest = np.abs(origin) + period
    phase = 4.0 * UNIT_ROUNDOFF * t * farthest + np.asarray(data.phase_rounding)[..., None]
    squared_size = (theta + 1.0) ** 2 + t**2
    kernel_exponent = 4.0 * eta**2 * squared_size
    num_terms_inside = t.shape[-1]
    num_rows = -(-num_terms_inside // _ROW)
    num_terms = 2.0 * (_ROW + num_rows)
    term_rounding = phase + UNIT_ROUNDOFF * (80.0 + (kernel_exponent + num_terms))
    error = measure * data.error + modulus * term_rounding

    last = last_frequency(t, contour)
    z = theta + 1j * t
    terms = np.zeros((*t.shape[:-1], 2, len(names), num_rows * _ROW), complex)
    errors = np.zeros((*t.shape[:-1], len(names)))
    for i, name in enumerate(names):
        value, scale = kernel(name, z, eta)
        product = value * turned
        terms[..., 0, i, :num_terms_inside] = product
        terms[..., 1, i, :num_terms_inside] = -1j * t * product
        tail = _exp(log_tail(name, contour, last) + data.log_beyond)
        rounding = np.sum(scale * error, axis=-1) * (1.0 + 1e-9)
        errors[..., i] = rounding + tail
    return TrapezoidSums(spacing, terms.reshape(*terms.shape[:-1], num_rows, _ROW), errors)


def _exp(x: Array) -> Array:
    """Return e^x, and inf where it would overflow or x is NaN."""
    return np.where(x < 700.0, np.exp(np.minimum(x, 700.0)), np.inf)


def evaluate(sums: TrapezoidSums, shift: Array) -> tuple[Array, Array]:
    """Return the sums at epsilon = origin + shift, and their derivatives in epsilon, each [kernels].

    The axis of runs side by side comes last here.
    """
    # e^{i k angle} is the product of the rotations by k's place in its row and by the row.
    angle = np.asarray(-1j * shift * sums.spacing)[..., None]
    in_row = np.exp(angle * np.arange(_ROW))
    of_row = np.exp(angle * _ROW * np.arange(sums.terms.shape[-2]))
    of_rows = sums.terms @ in_row[..., None, None, :, None]
    of_all = np.swapaxes(of_rows, -1, -2) @ of_row[..., None, None, :, None]
    values, slopes = np.moveaxis(of_all[..., 0, 0].real, (-2, -1), (0, 1))
    return values, slopes


def log_peak(theta: Array) -> Array:
    """Return log c(theta), the maximum of log (1 - e^{-x}) - theta x over x > 0.

    Both terms are negative. The formula theta log theta - (1 + theta) log (1 + theta) cancels, by 1e-3 at theta = 1e12.
    """
    return -theta * np.log1p(1.0 / theta) - np.log1p(theta)


def log_alias(data: RunOnLine, contour: Contour, epsilon: Array, log_top: Callable[[Array], Array] = log_peak) -> Array:
    """Return the log of a bound on the aliases of a function F <= 1, that of an h nowhere above (1 - e^{-x})_+.

    These are sum_{m >= 1} e^{theta m D} F(epsilon + mD) + e^{-theta m D} F(epsilon - mD). For another h
    log_top(t) is a bound on log h(x) - tx.
    """
    theta = contour.theta
    period = contour.period

    # F(e) <= c(t) e^{K(t) - te} for every t > 0. One t below theta serves the left, one above it the right.
    below = log_top(contour.below) + data.log_below - contour.below * epsilon
    above = log_top(contour.above) + data.log_above - contour.above * epsilon
    left = below + log_geometric((theta - contour.below) * period)
    right = above + log_geometric((contour.above - theta) * period)

    # On the left F <= 1 may be the better bound.
    left = np.minimum(log_geometric(theta * period), left)
    return np.logaddexp(left, right) + 1e-9


def log_geometric(rate: Array) -> Array:
    """Return log sum_{m >= 1} e^{-m rate}."""
    return np.where(rate > 0, -rate - np.log(np.abs(np.expm1(-rate))), np.inf)


def log_upper_delta(data: RunOnLine, contour: Contour, sums: TrapezoidSums, origin: Array, epsilon: Array) -> Array:
    """Return the log of a certified upper bound on delta(epsilon).

    The first kernel of ``sums`` is "upper".
    """
    values, _ = evaluate(sums, epsilon - origin)
    largest = np.maximum(values[0], 0.0) + sums.error[..., 0]
    above = log_scale(data, contour, epsilon, 1.0) + _log(largest)
    # What the windows lose may all be in delta.
    bound = np.minimum(np.logaddexp(above, _log(data.lost)), 0.0)
    is_outside = (np.abs(epsilon - origin) > contour.period) | (epsilon < data.least)
    return np.where(is_outside, 0.0, bound)[()]


def log_lower_delta(data: RunOnLine, contour: Contour, sums: TrapezoidSums, origin: Array, epsilon: Array) -> Array:
    """Return the log of a certified lower bound on delta(epsilon), which may be -inf.

    The second kernel of ``sums`` is "lower".
    """
    values, _ = evaluate(sums, epsilon - origin)
    smallest = np.maximum(values[1] - sums.error[..., 1], 0.0)
    below = log_scale(data, contour, epsilon, -1.0) + _log(smallest)
    is_known = (below > -np.inf) & ~(np.abs(epsilon - origin) > contour.period)

    # The aliases may take some of it.
    safe_below = np.where(is_known, below, 0.0)
    log_alias_share = log_alias(data, contour, epsilon) - safe_below
    remaining_share = -np.expm1(np.minimum(log_alias_share, 0.0))
    return np.where(is_known, safe_below + _log(remaining_share), -np.inf)[()]


def _log(x: Array) -> Array:
    """Return log x: -inf at 0, NaN below."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.log(x)


def log_scale(data: RunOnLine, contour: Contour, epsilon: Array, side: float) -> Array:
    """Return K(theta) - theta epsilon, moved to the given side by its rounding and quadrature error."""
    shift = contour.theta * epsilon
    exponent = data.log_size - shift
    size = np.abs(data.log_size) + np.abs(shift)
    rounding = 8.0 * UNIT_ROUNDOFF * (1.0 + size)
    return exponent + side * (data.log_size_error + rounding)
