"""Moments of the privacy loss of single steps by Gauss-Legendre quadrature, with proved errors.

The moments of both directions are one integral, with `Steps.shift` and `Steps.sign` as data:

    A(z) = E_P[e^{zL}] = integral phi(u) r(u)^{shift} e^{z L(u)} du,        L = sign * log r,

where u ~ N(0, 1) and r is the likelihood ratio of `_likelihood_ratio`. Where a row is replaced the integrand has two
such factors, phi(u) r(u)^{1 + z} r(-u)^{-z} (`Steps.factors`). Two choices make a quadrature rule:

* `choose_windows` cuts the outcomes to an interval, and bounds the P-mass outside;
* edges divide this window into panels, and `make_nodes` puts a Gauss-Legendre rule on each.

`quadrature_error` bounds the error of that rule and `rounding_terms` the rounding of its sums, and `log_variation` says
how fast a moment falls with the frequency. The proofs are in docs/theory/contour.md ("The window", "Quadrature",
"Rounding of a moment", "Moments at large frequencies").
"""

from typing import NamedTuple

import numpy as np

from gdpjax._composition import _likelihood_ratio
from gdpjax._composition._likelihood_ratio import Steps
from gdpjax._core.types import Array

UNIT_ROUNDOFF = 2.0**-53
NODES_PER_PANEL = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
_LOG_WEIGHTS = np.log(_WEIGHTS)
_HEIGHTS = np.array([1.0, 0.8, 0.62, 0.46, 0.32, 0.22, 0.14, 0.07])
"""Heights of the ellipses that are tried, relative to the largest one."""


_VARIATION_CELLS = 128
"""The number of cells of a window in which the variation of a density is bounded."""


class Windows(NamedTuple):
    """An interval of outcomes of each kind of step, in units of the noise.

    Attributes:
        lower: The lower ends [steps].
        upper: The upper ends [steps].
        lost: Bounds on the P-mass of one step outside its interval [steps].
    """

    lower: Array
    upper: Array
    lost: Array


class QuadratureNodes(NamedTuple):
    """A quadrature rule for E_P[.].

    Attributes:
        position: The nodes u_i [steps, n].
        log_ratios: log r(side u_i) of each of the factors [steps, n].
        loss: The privacy losses L_i [steps, n].
        log_weight: The logarithms of the weights [steps, n].
        width: The width of the widest panel [steps, 1].
    """

    position: Array
    log_ratios: tuple[Array, ...]
    loss: Array
    log_weight: Array
    width: Array


def choose_windows(steps: Steps, log_target: Array) -> Windows:
    """Return windows outside of which one step has P-mass of about exp(log_target), with a proved bound on it.

    The target is one number, or one for each kind of step [steps].
    """
    log_target = np.reshape(log_target, (-1, 1))
    group_size = steps.group_size
    log_w = _likelihood_ratio.log_weights(steps)
    centres = np.arange(group_size + 1.0) / steps.noise_multiplier
    reach = np.sqrt(2.0 * np.maximum(-log_target, 2.0))
    remove = steps.sign > 0 or steps.symmetric

    # The window covers every component of the mixture that has enough mass. All ends are [steps, 1].
    lower = np.zeros(steps.noise_multiplier.shape) - reach
    upper = -lower
    if remove:
        log_excess = np.maximum(log_w - log_target, 2.0)
        ends = centres + np.sqrt(2.0 * log_excess)
        ends = np.where(log_w > log_target, ends, -np.inf)
        upper = ends.max(axis=1, keepdims=True)
        lower = np.where(steps.sampling_prob == 1.0, centres[:, -1:] - reach, lower)
    if steps.symmetric:
        # Its parts lie above u0. All the mass there may be negligible, and a window needs a width.
        lower = 0.5 / steps.noise_multiplier
        upper = np.maximum(upper, lower + 1.0)

    # With p = 1 the mixture is the moved component alone. The other weights are then exactly zero.
    weights = np.exp(log_w)
    mixture_above = np.sum(weights * _normal_tail(upper, centres), axis=1)
    if steps.symmetric:
        lost = mixture_above + _normal_tail(upper, 0.0)[:, 0]
    elif remove:
        mixture_below = np.sum(weights * _normal_tail(centres, lower), axis=1)
        lost = mixture_above + mixture_below
    else:
        lost = (_normal_tail(0.0, lower) + _normal_tail(upper, 0.0))[:, 0]
    # Outcomes of more rows than are looked at are taken out of the mixture, too.
    if remove:
        lost = lost + steps.missed
    return Windows(lower[:, 0], upper[:, 0], lost * (1.0 + 1e-12))


def _normal_tail(high: Array, low: Array) -> Array:
    """Bound P(N(0, 1) > high - low) from above, where both ends are right to four roundings."""
    size = np.abs(high) + np.abs(low)
    rounding = 8.0 * UNIT_ROUNDOFF * size
    x = high - low - rounding
    # Phi(-x) <= e^{-x^2 / 2} / 2 for x >= 0.
    positive = np.maximum(x, 0.0)
    bound = 0.5 * np.exp(-0.5 * positive**2)
    return np.where(x >= 0, bound, 1.0)


def uniform_edges(windows: Windows, panels: int) -> Array:
    """Return the edges of equal panels [steps, panels + 1]."""
    width = (windows.upper - windows.lower) / panels
    return windows.lower[:, None] + width[:, None] * np.arange(panels + 1)


def _widths_and_centres(edges: Array) -> tuple[Array, Array]:
    """Return the widths and the centres of the panels between ``edges``, each [steps, panels, 1]."""
    left = edges[:, :-1]
    right = edges[:, 1:]
    width = (right - left)[..., None]
    centre = 0.5 * (right + left)[..., None]
    return width, centre


def make_nodes(steps: Steps, edges: Array) -> QuadratureNodes:
    """Return the composite Gauss-Legendre rule on the panels between ``edges`` [steps, panels + 1].

    The weights contain the factor phi r^shift of the integrand.
    """
    num_steps = len(edges)
    width, centre = _widths_and_centres(edges)
    u = (centre + 0.5 * width * _NODES).reshape(num_steps, -1)

    # log of: Gauss-Legendre weight, half the width, phi(u).
    scale = 0.5 / np.sqrt(2.0 * np.pi)
    log_width = np.log(width * scale)
    log_rule = (_LOG_WEIGHTS + log_width).reshape(num_steps, -1)
    log_weight = log_rule - 0.5 * u**2
    widest = width.max(axis=1)
    log_ratios = tuple(_likelihood_ratio.log_ratio(side * u, factor) for side, factor in steps.factors)
    loss: Array = 0.0
    for (_, factor), ell in zip(steps.factors, log_ratios, strict=True):
        loss = loss + factor.sign * ell
        log_weight = log_weight + factor.shift * ell
    return QuadratureNodes(u, log_ratios, loss, log_weight, widest)


class QuadratureTotals(NamedTuple):
    """Moments by a quadrature rule, and bounds on their errors, both as logarithms.

    Attributes:
        log_rule: log A at each exponent theta [steps, points].
        log_error: The error at each exponent, at frequency 0 [steps, points].
        log_error_at: The error at the first exponent, for all |t| up to each level [steps, levels]. The first level
            is 0.
    """

    log_rule: Array
    log_error: Array
    log_error_at: Array


class _Ellipses(NamedTuple):
    """Ellipses with their foci at the ends of a panel, several for each panel, and the rectangles around them.

    All arrays are [steps, panels * heights].

    Attributes:
        rho: The semi-axes are (w / 4) (rho +- 1 / rho).
        height: The height of the rectangle above the real axis.
        left: Its smallest real part.
        right: Its largest real part.
    """

    rho: Array
    height: Array
    left: Array
    right: Array

    def at(self, side: float) -> "_Ellipses":
        """Return the ellipses, or for the side -1 their mirror images."""
        return self if side > 0 else self._replace(left=-self.right, right=-self.left)


def _make_ellipses(steps: Steps, width: Array, centre: Array) -> _Ellipses:
    """Return ellipses of the heights `_HEIGHTS` for panels of these widths and centres, each [steps, panels, 1]."""
    largest_height = _likelihood_ratio.largest_height(steps)[..., None]
    largest_height = np.minimum(largest_height, 2.0 * width)
    height = largest_height * _HEIGHTS

    # In units of half a panel the semi-axes are beta = (rho - 1 / rho) / 2 and stretch = (rho + 1 / rho) / 2.
    beta = 2.0 * height / width
    stretch = np.sqrt(1.0 + beta**2)
    rho = beta + stretch
    reach = 0.5 * width * stretch
    shape = (len(width), -1)
    return _Ellipses(
        rho=rho.reshape(shape),
        height=height.reshape(shape),
        left=(centre - reach).reshape(shape),
        right=(centre + reach).reshape(shape),
    )


def _log_ratio_in(steps: Steps, ellipses: _Ellipses) -> Array:
    """Return log r or log |r| where |r|^{Re s} is largest on each rectangle, rounded to that side."""
    if steps.sign > 0:
        # Re s >= 0: |r| is largest at the right end of the real axis.
        log_r = _likelihood_ratio.log_ratio(ellipses.right, steps)
        error = _likelihood_ratio.log_ratio_error(ellipses.right, steps, log_r)
        return log_r + 1e-15 * error
    # Re s < 0: |r| is smallest at the upper left corner.
    return _likelihood_ratio.log_modulus(ellipses.left, ellipses.height, steps)


def quadrature_error(steps: Steps, edges: Array, theta: Array, levels: Array, exponents: Array) -> QuadratureTotals:
    """Return the moments of rules at several exponents, and bounds on their errors.

    Args:
        steps: The steps.
        edges: The edges of the panels [steps, panels + 1].
        theta: The exponents, the same for all steps or not [1 or steps, points].
        levels: Frequencies up to which errors are bounded [1 or steps, levels]. The first is 0.
        exponents: The logarithms of the weighted nodes at each exponent [steps, points, n].
    """
    num_steps, num_points, _ = exponents.shape
    width, centre = _widths_and_centres(edges)
    num_panels = width.shape[1]
    ellipses = _make_ellipses(steps, width, centre)

    # |phi(x + iy)| <= e^{y^2 / 2} phi(smallest |x|), without 1 / sqrt(2 pi).
    contains_zero = (ellipses.left < 0) & (ellipses.right > 0)
    left_size = np.abs(ellipses.left)
    right_size = np.abs(ellipses.right)
    nearer_end = np.minimum(left_size, right_size)
    smallest_size = np.where(contains_zero, 0.0, nearer_end)
    log_phi = 0.5 * (ellipses.height**2 - smallest_size**2)

    # The error of the rule is 4 w M rho^{-2N} / (1 - 1 / rho). These are its logs without the factor |r^s| of M, for
    # each ellipse.
    rho = ellipses.rho
    log_power = -2.0 * NODES_PER_PANEL * np.log(rho)
    log_geometric_sum = -np.log1p(-1.0 / rho)
    log_factor = np.log(4.0 / np.sqrt(2.0 * np.pi) * width)
    log_rate = log_power + log_geometric_sum + log_phi
    log_rate = log_rate.reshape(num_steps, num_panels, -1) + log_factor

    # |r^s| is |r|^{Re s} at frequency 0, for each exponent, and factors multiply. Up to the frequency t it is at most
    # e^{t arg r} times that, for the first exponent. Both arrays are [steps, ., panels, heights], and the best height
    # counts.
    still = log_rate[:, None]
    angle = np.zeros(log_rate.shape)
    for side, factor in steps.factors:
        mirrored = ellipses.at(side)
        powers = factor.shift + factor.sign * theta
        log_r = _log_ratio_in(factor, mirrored).reshape(log_rate.shape)
        still = still + log_r[:, None] * powers[..., None, None]
        argument = _likelihood_ratio.argument(mirrored.right, mirrored.height, factor)
        angle = angle + argument.reshape(log_rate.shape)
    growth = angle[:, None] * levels[:, 1:, None, None]
    moving = still[:, :1] + growth
    errors = np.concatenate([still, moving], axis=1)
    errors = errors.min(axis=3)
    still_errors = errors[:, 0]
    moving_errors = errors[:, num_points:]

    # Neither the integral nor the rule exceeds what a panel carries at frequency 0.
    by_panel = exponents.reshape(num_steps, num_points, num_panels, NODES_PER_PANEL)
    log_mass = log_sum(by_panel, axis=3)
    log_largest = np.logaddexp(log_mass[:, 0] + 1e-9, still_errors)
    trivial = np.log(2.0) + log_largest
    errors[:, num_points:] = np.minimum(moving_errors, trivial[:, None])

    log_errors = log_sum(errors, axis=2) + 1e-9
    log_error_at = np.concatenate([log_errors[:, :1], log_errors[:, num_points:]], axis=1)
    return QuadratureTotals(
        log_rule=log_sum(log_mass, axis=2),
        log_error=log_errors[:, :num_points],
        log_error_at=log_error_at,
    )


def log_sum(exponent: Array, axis: int) -> Array:
    """Return log sum exp along an axis, and -inf where all terms are zero."""
    top = exponent.max(axis=axis, keepdims=True)
    top[~(top > -np.inf)] = 0.0
    total = np.exp(exponent - top).sum(axis=axis)
    return np.log(total) + top.squeeze(axis)


def log_variation(steps: Steps, windows: Windows, theta: Array) -> Array:
    """Return log V of each of the steps [steps], where |A(theta + it)| <= V / |t| for every t; inf: not known.

    V is the variation of g = phi r^s / |L'|, the density of the loss, over the window and its two ends.

    Args:
        steps: The steps.
        windows: Their windows.
        theta: The same for all steps, or one for each [steps].
    """
    if steps.group_size > 1 or steps.symmetric or steps.replaced:
        return np.full(steps.num_steps.shape, np.inf)
    u = uniform_edges(windows, _VARIATION_CELLS)
    ell = _likelihood_ratio.log_ratio(u, steps)
    mean = _likelihood_ratio.posterior_mean(u, steps, ell)
    power = steps.shift + steps.sign * np.reshape(theta, (-1, 1))
    log_tilt = power * ell
    log_g = log_tilt - 0.5 * u**2 - np.log(mean / steps.noise_multiplier * np.sqrt(2.0 * np.pi))

    # The slope of log g is the difference of two functions that are monotone in each cell.
    rise = (power + 1.0) * mean / steps.noise_multiplier
    fall = u + 1.0 / steps.noise_multiplier
    highest = np.maximum(rise[:, 1:], rise[:, :-1]) - fall[:, :-1]
    lowest = np.minimum(rise[:, 1:], rise[:, :-1]) - fall[:, 1:]
    # The mean is the exponential of u / sigma, 1 / (2 sigma^2) and smaller terms, each rounded at its own size.
    largest_exponent = (np.abs(u) + 1.0 / steps.noise_multiplier) / steps.noise_multiplier
    rounding = (1e-12 + 1e-14 * largest_exponent) * (np.abs(rise) + np.abs(fall))
    steepest = np.maximum(highest, -lowest) + np.maximum(rounding[:, 1:], rounding[:, :-1])
    change = steepest * np.diff(u, axis=1)

    # From both ends of a cell log g rises to at most half the change above their mean.
    log_top = 0.5 * (log_g[:, 1:] + log_g[:, :-1] + change)
    log_terms = np.concatenate([log_top + np.log(change), log_g[:, :1], log_g[:, -1:]], axis=1)
    size = np.max(np.abs(log_tilt) + np.abs(log_g), axis=1)
    return log_sum(log_terms, axis=1) + 1e-9 + 1e-13 * size


def rounding_terms(steps: Steps, nodes: QuadratureNodes) -> tuple[Array, Array]:
    """Bound the rounding of each weighted node by c0 + |s| c1, in units of 2^-53 of the node.

    Returns:
        c0 [steps, n] and c1 [steps, n]; s is the largest of the exponents shift + sign * z of the factors.
    """
    size = np.abs(nodes.position)

    # A node is moved by rounding, by 3 (|u| + w + k / sigma) ulp at most. A factor of 2 is added to that.
    centre = steps.group_size / steps.noise_multiplier
    moved = 6.0 * (size + nodes.width + centre)
    fixed = 54.0 + 2.0 * size**2 + moved * size
    of_ratio: Array = 0.0
    for (side, factor), ell in zip(steps.factors, nodes.log_ratios, strict=True):
        position = side * nodes.position
        slope = _likelihood_ratio.posterior_mean(position, factor, ell) / factor.noise_multiplier
        log_ratio_error = _likelihood_ratio.log_ratio_error(position, factor, ell)
        # The place of a loss on the grid of a Fourier sum is right to 4 ulp.
        of_ratio = of_ratio + log_ratio_error + 4.0 * np.abs(ell) + moved * slope
    return fixed, of_ratio
