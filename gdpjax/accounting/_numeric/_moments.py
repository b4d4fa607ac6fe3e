"""One-step moments of the privacy loss by Gauss-Legendre quadrature, with proved errors.

With u ~ N(0, 1) under one of the two distributions of a step and the likelihood ratio r(u) of `_likelihood_ratio`, the two
directions are

    remove:  P = mixture, Q = N(0, 1), L = +log r,  E_P[e^{zL}] = integral phi r^{z+1}   (shift 1, sign +1)
    add:     P = N(0, 1), Q = mixture, L = -log r,  E_P[e^{zL}] = integral phi r^{-z}    (shift 0, sign -1)

so both are A(z) = integral phi(u) r(u)^{shift} e^{z L(u)} du, one formula with `sign` and `shift` as data. A symmetric
step has both as parts, over u > u0, and an atom at loss 0.

**The cut.** Outcomes outside a window [a, b] are taken out of P and Q. What is left is a pair of measures of mass at
most one, A becomes an integral over [a, b], and for every threshold test delta_cut <= delta <= delta_cut + (lost P-mass
of all steps): dropping outcomes can only hurt a test, and a test wins at most their P-mass from them. Without a cut,
A(theta) is dominated for small p by outcomes of probability e^{-100000}, and the saddle point moves to where they live.
With Phi(-x) <= e^{-x^2/2}/2 for x >= 0 the lost mass is explicit.

**Quadrature.** [a, b] is divided into panels (of any widths w) with N = 32 Gauss-Legendre nodes each. If g is analytic
and bounded by M in the ellipse with foci at the ends of a panel, semi-axes (w/4)(rho +- 1/rho), its Chebyshev
coefficients there are at most 2 M rho^{-k}; the rule is exact to degree 2N - 1 with positive weights, so its error is
at most 2 * (w/2) * 2 * sum_{k >= 2N} 2 M rho^{-k} = 4 w M rho^{-2N} / (1 - 1/rho). On the rectangle around the ellipse,
of height Y <= pi sigma / (2 k) and real parts in [x0, x1], with s = shift + sign (theta + i t):

    |phi(x + iy)| <= e^{Y^2/2} phi(smallest |x|),
    |r^s| = |r|^{Re s} e^{-sign t arg r},  |arg r(x + iy)| <= arg r(x1 + iY)  (increasing in x and in |y|),
    Re s >= 0: |r(x + iy)| <= r(x1);   Re s < 0: |r(x + iy)| >= |r(x0 + iY)|  (increasing in x, decreasing in |y|).

The best of several Y is taken for each panel, or twice the panel's own A(theta), since neither the integral nor the
rule can exceed that: panels that carry next to nothing need not resolve their oscillation. The bound grows with t, so
it is evaluated at a few levels of t. Widths follow the need: about 60 / (t |L'|) where the mass is, and at most 4 or
2 sigma / k.

**Rounding**, u = 2^-53. A relative error of the weighted node i: 2 u_i^2 + 54 for the Gaussian weight, its exponent,
the tables and up to six products of seven rotations; |s| times the error of L_i (`log_ratio_error`) inside e^{s L_i};
and the displacement of the node, at most 3 u (|u_i| + w + k/sigma), times the slope of the log-integrand, |u_i| + |s|
pi_i / sigma, where pi_i = sum_j j w_j e^{v_j} / r; a factor 2 is kept on the last. Sums of n terms add 2 (n + 8).
Everything is an average over the (positive) weights, so it costs two dot products. It assumes exp, log, sin and cos
good to 4 ulp (tested). The end u0 of a symmetric step's parts is off by one rounding of u0 <= x phi(x) <= 0.25 of the
mass, against A >= 1.
"""

from typing import NamedTuple

import numpy as np

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _likelihood_ratio
from gdpjax.accounting._numeric._likelihood_ratio import Step

UNIT_ROUNDOFF = 2.0**-53
NODES_PER_PANEL = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
_LOG_WEIGHTS = np.log(_WEIGHTS)
_HEIGHTS = np.array([1.0, 0.8, 0.62, 0.46, 0.32, 0.22, 0.14, 0.07])


class Window(NamedTuple):
    """The outcomes that are kept, in units of the noise, and the P-mass lost by one step."""

    lower: float
    upper: float
    lost: float


class Nodes(NamedTuple):
    """A quadrature rule for E_P[.]: privacy losses L_i, log weights (both [n]), and the width of the widest panel."""

    position: Array
    loss: Array
    log_weight: Array
    width: float


def choose_window(step: Step, log_target: float) -> Window:
    """A window outside of which one step has P-mass of about exp(log_target), and a proved bound on that mass."""
    sigma, k = step.noise_multiplier, step.group_size
    log_w = _likelihood_ratio.log_weights(step.sampling_prob, k)
    centres = np.arange(k + 1.0) / sigma
    reach = np.sqrt(2.0 * max(-log_target, 2.0))
    remove = step.sign > 0 or step.symmetric

    # Every component of the mixture that has enough mass is kept.
    lower = upper = reach
    if remove:
        reaches = centres + np.sqrt(2.0 * np.maximum(log_w - log_target, 2.0))
        upper = np.max(reaches[log_w > log_target], initial=-np.inf)
    lower = k / sigma - reach if remove and step.sampling_prob == 1.0 else -reach
    if step.symmetric:  # all that is above u0 may be negligible, and a window needs a width
        lower, upper = 0.5 / sigma, max(upper, 0.5 / sigma + 1.0)

    # With p = 1 the mixture is the moved component alone; the other weights are then exactly zero.
    weights = np.exp(log_w)
    mixed_above = np.sum(weights * _tail(upper, centres))
    if step.symmetric:
        lost = mixed_above + _tail(upper, 0.0)
    elif remove:
        lost = mixed_above + np.sum(weights * _tail(centres, lower))
    else:
        lost = _tail(0.0, lower) + _tail(upper, 0.0)
    return Window(lower, upper, lost * (1.0 + 1e-12))


def _tail(high: Array, low: Array) -> Array:
    """A bound on P(N(0, 1) > high - low), where both are right to four roundings."""
    x = high - low - 8.0 * UNIT_ROUNDOFF * (np.abs(high) + np.abs(low))
    return np.where(x >= 0, 0.5 * np.exp(-0.5 * np.maximum(x, 0.0) ** 2), 1.0)


def uniform_edges(window: Window, panels: int) -> Array:
    """Edges of equal panels."""
    return window.lower + (window.upper - window.lower) / panels * np.arange(panels + 1)


def make_nodes(step: Step, edges: Array) -> Nodes:
    """The composite Gauss-Legendre rule on the panels between ``edges``, phi r^shift folded into the weights."""
    width, centre = (edges[1:] - edges[:-1])[:, None], 0.5 * (edges[1:] + edges[:-1])[:, None]
    u = (centre + 0.5 * width * _NODES).reshape(-1)
    ell = _likelihood_ratio.log_ratio(u, step)
    rule = (_LOG_WEIGHTS + np.log(width * (0.5 / np.sqrt(2.0 * np.pi)))).reshape(-1)
    log_weight = rule - 0.5 * u**2
    if step.sign > 0:
        return Nodes(u, ell, log_weight + ell, np.max(width))
    return Nodes(u, -ell, log_weight, np.max(width))


class Totals(NamedTuple):
    """Sums over the panels: log A at several exponents, and logs of bounds on the rule's errors."""

    log_rule: Array
    """[points]"""
    log_error: Array
    """[points], at frequency 0."""
    log_error_at: Array
    """[levels], at the first exponent, for all |t| up to each level; the first level is 0."""


def quadrature_error(step: Step, edges: Array, theta: Array, levels: Array, exponents: Array) -> Totals:
    """The moments at the exponents ``theta`` [points], and what the rule is off by, at frequencies up to ``levels``.

    ``exponents`` [points, n] are the logarithms of the weighted nodes at each theta.
    """
    width, centre = (edges[1:] - edges[:-1])[:, None], 0.5 * (edges[1:] + edges[:-1])[:, None]

    # The ellipses [panels, heights], and the rectangles around them.
    height = np.minimum(_likelihood_ratio.largest_height(step), 2.0 * width) * _HEIGHTS
    beta = 2.0 * height / width
    stretch = np.sqrt(1.0 + beta**2)
    rho = beta + stretch
    reach = 0.5 * width * stretch
    left, right = centre - reach, centre + reach
    nearest = np.where((left < 0) & (right > 0), 0.0, np.minimum(np.abs(left), np.abs(right)))

    # The bound on the integrand there, and the rule's error; of the heights the best for each panel and exponent.
    if step.sign > 0:
        log_r = _likelihood_ratio.log_ratio(right, step)
        log_r = log_r + 1e-15 * _likelihood_ratio.log_ratio_error(right, step, log_r)
    else:
        log_r = _likelihood_ratio.log_modulus(left, height, step)
    rate = -2.0 * NODES_PER_PANEL * np.log(rho) - np.log1p(-1.0 / rho) + 0.5 * (height**2 - nearest**2)
    rate = rate + np.log(4.0 / np.sqrt(2.0 * np.pi) * width)
    still = rate[..., None] + log_r[..., None] * (step.shift + step.sign * theta)
    moving = still[..., :1] + _likelihood_ratio.argument(right, height, step)[..., None] * levels[1:]
    errors = np.concatenate([still, moving], axis=2).min(axis=1)

    # Neither the integral nor the rule exceeds what a panel carries.
    mass = log_sum(exponents.reshape(theta.size, -1, NODES_PER_PANEL), axis=2)
    trivial = np.log(2.0) + np.logaddexp(mass[0] + 1e-9, errors[:, 0])
    errors[:, theta.size :] = np.minimum(errors[:, theta.size :], trivial[:, None])
    log_errors = log_sum(errors, axis=0) + 1e-9
    return Totals(
        log_rule=log_sum(mass, axis=1),
        log_error=log_errors[: theta.size],
        log_error_at=np.append(log_errors[0], log_errors[theta.size :]),
    )


def log_sum(exponent: Array, axis: int) -> Array:
    """log sum exp along an axis; -inf where there is nothing."""
    top = exponent.max(axis=axis, keepdims=True)
    top[~(top > -np.inf)] = 0.0
    return np.log(np.exp(exponent - top).sum(axis=axis)) + top.squeeze(axis)


def rounding_terms(step: Step, nodes: Nodes) -> tuple[Array, Array]:
    """Per node, in units of 2^-53: the relative error (c0, c1) that stands for c0 + |s| c1 in the docstring."""
    size, ell = np.abs(nodes.position), step.sign * nodes.loss
    moved = 6.0 * (size + nodes.width + step.group_size / step.noise_multiplier)
    slope = _likelihood_ratio.posterior_mean(nodes.position, step, ell) / step.noise_multiplier
    return 54.0 + 2.0 * size**2 + moved * size, _likelihood_ratio.log_ratio_error(
        nodes.position, step, ell
    ) + moved * slope


def rotations(angle: Array, *radices: int) -> Array:
    """e^{i k angle} for k below the product of ``radices``, on a new leading axis.

    k is written in these radices, the lowest digit first, and the rotations by its digits are multiplied.
    """
    turned, count = np.ones((1, angle.size)), 1
    for radix in radices:
        digits = np.arange(1.0, radix)[:, None] * (count * angle)
        turn = np.ones((radix, 1, angle.size), np.complex128)
        np.cos(digits, out=turn.real[1:, 0])
        np.sin(digits, out=turn.imag[1:, 0])
        count *= radix
        turned = (turn * turned).reshape(count, -1)
    return turned
