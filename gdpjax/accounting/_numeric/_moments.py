"""One-step moments of the privacy loss by Gauss-Legendre quadrature, with proved errors.

With u ~ N(0, 1) under one of the two distributions of a step and the likelihood ratio r(u) of `_ratio`, the two
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
it is evaluated at a few levels of t. Widths follow the need: about 38 / (t |L'|) where the mass is, and 2 sigma.

**Rounding**, u = 2^-53. A relative error of the weighted node i: 2 u_i^2 + 40 for the Gaussian weight, its exponent,
the tables and three rotations; |s| times the error of L_i (`log_ratio_error`) inside e^{s L_i}; and the displacement of
the node, at most 3 u (|u_i| + w + k/sigma), times the slope of the log-integrand, |u_i| + |s| pi_i / sigma, where
pi_i = sum_j j w_j e^{v_j} / r; a factor 2 is kept on the last. Sums of n terms add 2 (n + 8).
Everything is an average over the (positive) weights, so it costs two dot products. It assumes exp, log, sin and cos
good to 4 ulp (tested). The end u0 of a symmetric step's parts is off by one rounding of u0 <= x phi(x) <= 0.25 of the
mass, against A >= 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from gdpjax._core.types import Array
from gdpjax.accounting._numeric import _ratio
from gdpjax.accounting._numeric._ratio import Step

UNIT_ROUNDOFF = 2.0**-53
NODES_PER_PANEL = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
_HEIGHTS = np.array([1.0, 0.8, 0.62, 0.46, 0.32, 0.22, 0.14, 0.07])


class Window(NamedTuple):
    """The outcomes that are kept, in units of the noise, and the P-mass lost by one step."""

    lower: Array
    upper: Array
    lost: Array


class Nodes(NamedTuple):
    """A quadrature rule for E_P[.]: privacy losses L_i, log weights (both [n]), and the panels' geometry."""

    position: Array
    loss: Array
    log_weight: Array
    width: Array


def choose_window(step: Step, log_target: Array) -> Window:
    """A window outside of which one step has P-mass of about exp(log_target), and a proved bound on that mass."""
    sigma, k = step.noise_multiplier, step.group_size
    log_w, _ = _ratio.exponents(jnp.zeros(()), step)
    centres = np.arange(step.largest_group + 1.0) / sigma
    needed = log_w > log_target
    reach = jnp.sqrt(2.0 * jnp.maximum(-log_target, 2.0))
    reaches = jnp.where(needed, centres + jnp.sqrt(2.0 * jnp.maximum(log_w - log_target, 2.0)), -jnp.inf)
    remove = (step.sign > 0) | step.symmetric
    upper = jnp.where(remove, jnp.max(reaches), reach)
    lower = jnp.where(remove & (step.sampling_prob == 1.0), k / sigma - reach, -reach)
    start = 0.5 / sigma
    if step.symmetric:  # all that is above u0 may be negligible, and a window needs a width
        upper = jnp.maximum(upper, start + 1.0)
    below, above = _tail(-lower), _tail(upper)
    # With p = 1 the mixture is the moved component alone; the other weights are then exactly zero.
    mixed_below = jnp.sum(jnp.exp(log_w) * _tail(centres - lower))
    mixed_above = jnp.sum(jnp.exp(log_w) * _tail(upper - centres))
    if step.symmetric:
        return Window(start, upper, (mixed_above + above) * (1.0 + 1e-12))
    lost = jnp.where(remove, mixed_below + mixed_above, below + above)
    return Window(lower, upper, lost * (1.0 + 1e-12))


def _tail(x: Array) -> Array:
    """A bound on P(N(0, 1) > x)."""
    return jnp.where(x >= 0, 0.5 * jnp.exp(-0.5 * x**2), 1.0)


def uniform_edges(window: Window, panels: int) -> Array:
    """Edges of equal panels."""
    return window.lower + (window.upper - window.lower) / panels * np.arange(panels + 1)


def make_nodes(step: Step, edges: Array) -> Nodes:
    """The composite Gauss-Legendre rule on the panels between ``edges``, phi r^shift folded into the weights."""
    width, centre = jnp.diff(edges)[:, None], 0.5 * (edges[1:] + edges[:-1])[:, None]
    u = (centre + 0.5 * width * jnp.asarray(_NODES)).reshape(-1)
    ell = _ratio.log_ratio(u, step)
    rule = (jnp.asarray(np.log(_WEIGHTS)) + jnp.log(0.5 * width / np.sqrt(2.0 * np.pi))).reshape(-1)
    shift = jnp.where(step.sign > 0, 1.0, 0.0)
    return Nodes(u, step.sign * ell, rule - 0.5 * u**2 + shift * ell, jnp.max(width))


def log_moment(loss: Array, log_weight: Array, theta: Array) -> tuple[Array, Array, Array]:
    """log A(theta), and its first and second derivatives, by the rule (no error added)."""
    exponent = log_weight + theta * loss
    value = logsumexp(exponent)
    weight = jnp.exp(exponent - value)
    mean = jnp.sum(weight * loss)
    return value, mean, jnp.sum(weight * (loss - mean) ** 2)


def quadrature_error(step: Step, nodes: Nodes, edges: Array, theta: Array, frequency: Array) -> tuple[Array, Array]:
    """(log rule, log error bound) at ``theta`` and for all |t| <= ``frequency``, both [points]; sums over panels."""
    width, centre = jnp.diff(edges)[:, None], 0.5 * (edges[1:] + edges[:-1])[:, None]
    height = jnp.minimum(_ratio.largest_height(step), 2.0 * width) * jnp.asarray(_HEIGHTS)
    beta = 2.0 * height / width
    rho = beta + jnp.sqrt(1.0 + beta**2)
    reach = 0.5 * width * jnp.sqrt(1.0 + beta**2)
    left, right = centre - reach, centre + reach
    nearest = jnp.where((left < 0) & (right > 0), 0.0, jnp.minimum(jnp.abs(left), jnp.abs(right)))
    most = _ratio.log_ratio(right, step)
    most = most + 1e-15 * _ratio.log_ratio_error(right, step, most)
    log_r = jnp.where(step.sign > 0, most, _ratio.log_modulus(left, height, step))
    rate = -2.0 * NODES_PER_PANEL * jnp.log(rho) - jnp.log1p(-1.0 / rho) + 0.5 * (height**2 - nearest**2)
    rate = rate + jnp.log(4.0 * width / np.sqrt(2.0 * np.pi))
    exponent = jnp.where(step.sign > 0, 1.0, 0.0) + step.sign * theta
    still = rate[..., None] + log_r[..., None] * exponent
    moving = still + _ratio.argument(right, height, step)[..., None] * frequency
    still, moving = jnp.min(still, axis=1), jnp.min(moving, axis=1)
    exponents = nodes.log_weight[:, None] + nodes.loss[:, None] * theta
    mass = logsumexp(exponents.reshape(-1, NODES_PER_PANEL, exponents.shape[-1]), axis=1)
    trivial = np.log(2.0) + jnp.logaddexp(mass + 1e-9, still)
    error = jnp.where(frequency > 0, jnp.minimum(moving, trivial), still)
    return logsumexp(mass, axis=0), logsumexp(error, axis=0) + 1e-9


def rounding_terms(step: Step, nodes: Nodes) -> tuple[Array, Array]:
    """Per node, in units of 2^-53: the relative error (c0, c1) that stands for c0 + |s| c1 in the docstring."""
    size, ell = jnp.abs(nodes.position), step.sign * nodes.loss
    moved = 6.0 * (size + nodes.width + step.group_size / step.noise_multiplier)
    slope = _ratio.posterior_mean(nodes.position, step, ell) / step.noise_multiplier
    return 40.0 + 2.0 * size**2 + moved * size, _ratio.log_ratio_error(nodes.position, step, ell) + moved * slope


def rotations(angle: Array, count: int, inner: int) -> tuple[Array, Array]:
    """cos and sin of k * angle for k < count, on a new leading axis, from inner + count / inner of each."""
    fine = np.arange(inner)[:, None] * angle
    coarse = np.arange(count // inner)[:, None] * (inner * angle)
    cos0, sin0 = jnp.cos(fine), jnp.sin(fine)

    def rotated(_: None, row: tuple[Array, Array]) -> tuple[None, tuple[Array, Array]]:
        cos1, sin1 = row
        return None, (cos1 * cos0 - sin1 * sin0, sin1 * cos0 + cos1 * sin0)

    # A loop takes its inputs ready-made. Outside of one XLA computes each cosine and sine anew for every product that
    # it is in, several times the cost of all the rest; an optimization_barrier does not keep it from that.
    _, (cos, sin) = jax.lax.scan(rotated, None, (jnp.cos(coarse), jnp.sin(coarse)))
    return cos.reshape(count, -1), sin.reshape(count, -1)
