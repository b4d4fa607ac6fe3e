"""One-step moments of the privacy loss by Gauss-Legendre quadrature, with proved errors.

One step compares N(0, sigma^2) with (1 - p) N(0, sigma^2) + p N(1, sigma^2). In units of sigma, u ~ N(0, 1) under the
first, and the likelihood ratio is r(u) = 1 - p + p e^v with v = u/sigma - 1/(2 sigma^2). The two directions are

    remove:  P = mixture, Q = N(0, 1), L = +log r,  E_P[e^{zL}] = integral phi r^{z+1}   (shift 1, sign +1)
    add:     P = N(0, 1), Q = mixture, L = -log r,  E_P[e^{zL}] = integral phi r^{-z}    (shift 0, sign -1)

so both are A(z) = integral phi(u) r(u)^{shift} e^{z L(u)} du, one formula with `sign` and `shift` as data.

**The cut.** Outcomes outside a window [a, b] are taken out of P and Q. What is left is a pair of measures of mass at
most one, A becomes an integral over [a, b], and for every threshold test delta_cut <= delta <= delta_cut + (lost P-mass
of all steps): dropping outcomes can only hurt a test, and a test wins at most their P-mass from them. Without a cut,
A(theta) is dominated for small p by outcomes of probability e^{-100000}, and the saddle point moves to where they live.
With Phi(-x) <= e^{-x^2/2}/2 for x >= 0 the lost mass is explicit.

**Quadrature.** [a, b] is divided into panels (of any widths w) with N = 32 Gauss-Legendre nodes each. If g is analytic
and bounded by M in the ellipse with foci at the ends of a panel, semi-axes (w/4)(rho +- 1/rho), its Chebyshev
coefficients there are at most 2 M rho^{-k}; the rule is exact to degree 2N - 1 with positive weights, so its error is
at most 2 * (w/2) * 2 * sum_{k >= 2N} 2 M rho^{-k} = 4 w M rho^{-2N} / (1 - 1/rho). On the rectangle around the ellipse,
of height Y <= pi sigma / 2 and real parts in [x0, x1], with s = shift + sign (theta + i t):

    |phi(x + iy)| <= e^{Y^2/2} phi(smallest |x|),
    |r^s| = |r|^{Re s} e^{-sign t arg r},  |arg r(x + iy)| <= arg r(x1 + iY)  (increasing in x and in |y|),
    Re s >= 0: |r(x + iy)| <= r(x1);   Re s < 0: |r(x + iy)| >= |r(x0 + iY)|  (increasing in x, decreasing in |y|).

The best of several Y is taken for each panel, or twice the panel's own A(theta), since neither the integral nor the
rule can exceed that: panels that carry next to nothing need not resolve their oscillation. The bound grows with t, so
it is evaluated at a few levels of t. Widths follow the need: about 38 / (t |L'|) where the mass is, and 2 sigma.

**Rounding**, u = 2^-53. A relative error of the weighted node i: 2 u_i^2 + 40 for the Gaussian weight, its exponent,
the tables and three rotations; 12 |s| |L_i| for L_i (relative error 10 u) inside e^{s L_i}; and the displacement of the
node, at most 3 u (|u_i| + w + 1/sigma), times the slope of the log-integrand, |u_i| + |s| pi_i / sigma, where
pi_i = p e^v / r is the derivative of log r in v; a factor 2 is kept on the last. Sums of n terms add 2 (n + 8).
Everything is an average over the (positive) weights, so it costs two dot products. It assumes exp, log, sin and cos
good to 4 ulp (tested).
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp

from gdpjax._core.types import Array

UNIT_ROUNDOFF = 2.0**-53
NODES_PER_PANEL = 32
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(NODES_PER_PANEL)
_HEIGHTS = np.array([1.0, 0.8, 0.62, 0.46, 0.32, 0.22, 0.14, 0.07])


class Step(NamedTuple):
    """One kind of step, per phase of the run, in one direction. Fields are scalars, or [J] arrays for J phases."""

    noise_multiplier: Array
    sampling_prob: Array
    num_steps: Array
    sign: Array


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


def log_ratio(u: Array, noise_multiplier: Array, sampling_prob: Array) -> Array:
    """log(1 - p + p e^v), to a relative error of 10 ulp: log1p near zero, a sum of positive terms elsewhere."""
    v = (u - 0.5 / noise_multiplier) / noise_multiplier
    moderate = jnp.minimum(v, 300.0)
    excess = sampling_prob * jnp.expm1(moderate)
    near = jnp.abs(excess) < 0.25  # XLA's log1p loses digits below -0.4
    direct = jnp.log((1.0 - sampling_prob) + sampling_prob * jnp.exp(moderate))
    value = jnp.where(near, jnp.log1p(jnp.where(near, excess, 0.0)), direct)
    return jnp.where(v > 300.0, v + jnp.log(sampling_prob), value)


def choose_window(step: Step, log_target: Array) -> Window:
    """A window outside of which one step has P-mass of about exp(log_target), and a proved bound on that mass."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    remove = step.sign > 0
    reach = jnp.sqrt(2.0 * jnp.maximum(-log_target, 2.0))
    shifted = 1.0 / sigma + jnp.sqrt(2.0 * jnp.maximum(jnp.log(p) - log_target, 2.0))
    unshifted = jnp.sqrt(2.0 * jnp.maximum(jnp.log(jnp.maximum(1.0 - p, 1e-300)) - log_target, 2.0))
    upper = jnp.where(remove, jnp.maximum(shifted, unshifted), reach)
    lower = jnp.where(remove & (p == 1.0), 1.0 / sigma - reach, -reach)
    centre = jnp.exp(-0.5 * lower**2) + jnp.exp(-0.5 * upper**2)
    moved = jnp.exp(-0.5 * (lower - 1.0 / sigma) ** 2) + jnp.exp(-0.5 * (upper - 1.0 / sigma) ** 2)
    # With p = 1 the mixture is the moved component alone; 1 - p is then exactly zero.
    lost = 0.5 * jnp.where(remove, (1.0 - p) * centre + p * moved, centre)
    return Window(lower, upper, lost * (1.0 + 1e-12))


def uniform_edges(window: Window, panels: int) -> Array:
    """Edges of equal panels."""
    return window.lower + (window.upper - window.lower) / panels * np.arange(panels + 1)


def make_nodes(step: Step, edges: Array) -> Nodes:
    """The composite Gauss-Legendre rule on the panels between ``edges``, phi r^shift folded into the weights."""
    width, centre = jnp.diff(edges)[:, None], 0.5 * (edges[1:] + edges[:-1])[:, None]
    u = (centre + 0.5 * width * jnp.asarray(_NODES)).reshape(-1)
    ell = log_ratio(u, step.noise_multiplier, step.sampling_prob)
    rule = (jnp.asarray(np.log(_WEIGHTS)) + jnp.log(0.5 * width / np.sqrt(2.0 * np.pi))).reshape(-1)
    shift = jnp.where(step.sign > 0, 1.0, 0.0)
    return Nodes(u, step.sign * ell, rule - 0.5 * u**2 + shift * ell, jnp.max(width))


def log_moment(nodes: Nodes, theta: Array) -> tuple[Array, Array, Array]:
    """log A(theta), and its first and second derivatives, by the rule (no error added)."""
    exponent = nodes.log_weight + theta * nodes.loss
    value = logsumexp(exponent)
    weight = jnp.exp(exponent - value)
    mean = jnp.sum(weight * nodes.loss)
    return value, mean, jnp.sum(weight * (nodes.loss - mean) ** 2)


def quadrature_error(step: Step, nodes: Nodes, edges: Array, theta: Array, frequency: Array) -> tuple[Array, Array]:
    """(log rule, log error bound) at ``theta`` and for all |t| <= ``frequency``, both [points]; sums over panels."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    width, centre = jnp.diff(edges)[:, None], 0.5 * (edges[1:] + edges[:-1])[:, None]
    height = jnp.minimum(0.499 * np.pi * sigma, 2.0 * width) * jnp.asarray(_HEIGHTS)
    beta = 2.0 * height / width
    rho = beta + jnp.sqrt(1.0 + beta**2)
    reach = 0.5 * width * jnp.sqrt(1.0 + beta**2)
    left, right = centre - reach, centre + reach
    nearest = jnp.where((left < 0) & (right > 0), 0.0, jnp.minimum(jnp.abs(left), jnp.abs(right)))
    log_r = jnp.where(step.sign > 0, log_ratio(right, sigma, p), _log_modulus(left, height, sigma, p))
    rate = -2.0 * NODES_PER_PANEL * jnp.log(rho) - jnp.log1p(-1.0 / rho) + 0.5 * (height**2 - nearest**2)
    rate = rate + jnp.log(4.0 * width / np.sqrt(2.0 * np.pi))
    exponent = jnp.where(step.sign > 0, 1.0, 0.0) + step.sign * theta
    still = rate[..., None] + log_r[..., None] * exponent
    moving = still + _argument(right, height, sigma, p)[..., None] * frequency
    still, moving = jnp.min(still, axis=1), jnp.min(moving, axis=1)
    exponents = nodes.log_weight[:, None] + nodes.loss[:, None] * theta
    mass = logsumexp(exponents.reshape(-1, NODES_PER_PANEL, exponents.shape[-1]), axis=1)
    trivial = np.log(2.0) + jnp.logaddexp(mass + 1e-9, still)
    error = jnp.where(frequency > 0, jnp.minimum(moving, trivial), still)
    return logsumexp(mass, axis=0), logsumexp(error, axis=0) + 1e-9


def _argument(x: Array, y: Array, sigma: Array, p: Array) -> Array:
    """arg r(x + iy) for 0 <= y <= pi sigma / 2, divided through by the larger term so that nothing overflows."""
    v = (x - 0.5 / sigma) / sigma
    scale = jnp.exp(-jnp.abs(v))
    one, ev = jnp.where(v > 0, scale, 1.0), jnp.where(v > 0, 1.0, scale)
    return jnp.arctan2(p * ev * jnp.sin(y / sigma), (1.0 - p) * one + p * ev * jnp.cos(y / sigma))


def _log_modulus(x: Array, y: Array, sigma: Array, p: Array) -> Array:
    """log |r(x + iy)| for 0 <= y <= pi sigma / 2: r^2 less 2 (1 - p) p e^v (1 - cos)."""
    ell = log_ratio(x, sigma, p)
    v = (x - 0.5 / sigma) / sigma
    loss = 4.0 * (1.0 - p) * p * jnp.exp(v - 2.0 * ell) * jnp.sin(0.5 * y / sigma) ** 2
    return ell + 0.5 * jnp.log(jnp.maximum(1.0 - loss, 1e-300))


def rounding_terms(step: Step, nodes: Nodes, theta: Array) -> tuple[Array, Array]:
    """Per node, in units of 2^-53: the relative error (c0, c1) that stands for c0 + |s| c1 in the docstring."""
    sigma, p = step.noise_multiplier, step.sampling_prob
    size = jnp.abs(nodes.position)
    v = (nodes.position - 0.5 / sigma) / sigma
    posterior = jnp.exp(jnp.minimum(jnp.log(p) + v - step.sign * nodes.loss, 0.0))
    moved = 6.0 * (size + nodes.width + 1.0 / sigma)
    return 40.0 + 2.0 * size**2 + moved * size, 12.0 * jnp.abs(nodes.loss) + moved * posterior / sigma


def rotations(angle: Array, count: int, inner: int) -> tuple[Array, Array]:
    """cos and sin of k * angle for k < count, on a new leading axis, from inner + count / inner of each."""
    fine = np.arange(inner)[:, None] * angle
    coarse = np.arange(count // inner)[:, None] * (inner * angle)
    cos0, sin0, cos1, sin1 = jnp.cos(fine), jnp.sin(fine), jnp.cos(coarse)[:, None], jnp.sin(coarse)[:, None]
    cos, sin = cos1 * cos0 - sin1 * sin0, sin1 * cos0 + cos1 * sin0
    return cos.reshape(count, -1), sin.reshape(count, -1)
