r"""Composition by the central limit theorem: a Gaussian curve, and a certified band around the truth.

    limit = central_limit(Laplace(0.1), times=100)
    limit.bounds(0.2)               # Bounds(lower, upper) on the composition at alpha = 0.2

For symmetric f_1 ... f_n the privacy loss of the composition is a sum of independent losses. With

    mu = 2 sum kl / sqrt(sum kappa2 - sum kl^2),    gamma = 0.56 sum kappa3bar / (sum kappa2 - sum kl^2)^{3/2},

if gamma < 1/2, the Berry-Esseen theorem gives for alpha in [gamma, 1 - gamma]

    G_mu(alpha + gamma) - gamma <= f_1 (x) ... (x) f_n (alpha) <= G_mu(alpha - gamma) + gamma.

The composition is non-increasing, so that the lower bound extends as a constant to alpha < gamma; above 1 - gamma it is
0. The upper one is 1 - alpha on the left, and its value at 1 - gamma (or 1 - alpha) on the right. For arrays of curves
with sum kl -> K, sum kappa2 -> s^2, max kl -> 0 and sum E |L|^3 -> 0 the limit is G_{2K/s}.

The moments are computed to a relative 1e-7 or better; gamma is enlarged by 1e-6 of itself and by 1e-9 (1 + mu) for the
rounding of mu, since moving mu by d moves G_mu by at most d phi(0).

*Moments.* With L = log |f'(alpha)| for alpha uniform on [0, 1], i.e. the log-likelihood ratio under the null, they are
those of Dong, Roth and Su, arXiv:1905.02383, Section 3.2:

    kl = -E L,   kappa2 = E L^2,   kappa3bar = E |L + kl|^3.

A symmetric curve is its own mirror image: an outcome with loss l >= 0, null mass n and alternative mass a = n e^l has
a twin with loss -l, null mass a and alternative mass n. So the law of L is kept as nodes (l, n, a) of the left half
alone, and what remains of the total mass has L = 0. Subsampling maps the nodes: a becomes p a + (1 - p) n, n stays.

Nodes are exact for polygons, and Gauss-Legendre rules elsewhere: in x = -Phi^-1(alpha) for the Gaussian, in l for
Laplace noise, each to about 1e-13; kappa3bar, whose integrand has a kink, is right to about 1e-7.
"""

import functools
from typing import NamedTuple

import numpy as np
from jax import numpy as jnp

from gdpjax._core.checks import COUNT, NONNEGATIVE, UNIT, check_scalar, is_traced
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Bounds, Floats, Numbers
from gdpjax.tradeoff._abstract import Curve, check_symmetric
from gdpjax.tradeoff._closed_forms import ApproximateDP, Gaussian, Identity, Laplace
from gdpjax.tradeoff._derived_curves import Subsampled
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear


@float64_function(alpha=UNIT, mu=NONNEGATIVE, gamma=NONNEGATIVE)
def _band(alpha: Array, mu: Array, gamma: Array) -> Bounds:
    """Return the Berry-Esseen bounds at alpha; trivial ones where gamma >= 1/2."""
    curve = Gaussian(0.0).replaced(mu=mu)
    inside = jnp.clip(alpha, gamma, 1.0 - gamma)

    # G_mu(alpha + gamma) - gamma, constant to the left, and 0 beyond 1 - gamma.
    to_the_right = jnp.clip(inside + gamma, 0.0, 1.0)
    lower = curve.value(to_the_right) - gamma
    lower = jnp.where(alpha > 1.0 - gamma, 0.0, lower)

    # G_mu(alpha - gamma) + gamma, constant to the right, and nothing to the left of gamma.
    to_the_left = jnp.clip(inside - gamma, 0.0, 1.0)
    upper = curve.value(to_the_left) + gamma
    upper = jnp.where(alpha < gamma, 1.0, upper)

    # No curve is above 1 - alpha.
    largest = 1.0 - alpha
    is_usable = gamma < 0.5
    lower = jnp.where(is_usable, jnp.clip(lower, 0.0, largest), 0.0)
    upper = jnp.where(is_usable, jnp.minimum(upper, largest), largest)
    return Bounds(lower, upper)


class NormalApproximation(NamedTuple):
    """G_mu in place of a composition, with a certified band around the truth.

    ``curve`` is asymptotic: it may lie above the truth. ``band_mu`` and ``gamma`` are of the Berry-Esseen theorem.
    """

    curve: Gaussian
    band_mu: Floats
    gamma: Floats

    def bounds(self, alpha: Numbers) -> Bounds:
        """Certified bracket on the composition at ``alpha`` in [0, 1]; trivial where gamma >= 1/2."""
        return _band(alpha, self.band_mu, self.gamma)


def central_limit(*curves: Curve, times: int = 1) -> NormalApproximation:
    """Return the Gaussian limit of a composition of many curves of small privacy loss, with a certified band.

    Formula: G_mu with mu = 2 sum kl / sqrt(sum kappa2); the band is that of the Berry-Esseen theorem,
    G_m(alpha + gamma) - gamma <= f_1 (x) ... (x) f_n (alpha) <= G_m(alpha - gamma) + gamma, with
    m = 2 sum kl / sqrt(sum kappa2 - sum kl^2), gamma = 0.56 sum kappa3bar / (sum kappa2 - sum kl^2)^{3/2}.

    Args:
        curves: symmetric trade-off curves with concrete parameters (host-side).
        times: how often the whole list is composed, a whole number >= 1.

    Returns:
        The limit, whose ``.curve`` is asymptotic and may overstate privacy. ``.bounds(alpha)`` is certified: a band
        around G_m, ``.band_mu``, of half width ``.gamma``.

    Raises:
        ValueError: a curve that is not symmetric, is traced, has f(0) < 1 or moments that are not known precisely; no
            privacy loss at all.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorems 3.4 (band) and 3.5 (limit).

    >>> from gdpjax.tradeoff import Laplace
    >>> limit = central_limit(Laplace(0.1), times=100)
    >>> print(f"{limit.curve.mu:.4f} {limit.gamma:.4f} {limit.bounds(0.2).lower:.4f}")
    0.9832 0.0569 0.3133
    """
    check_scalar("times", times, COUNT)
    rows = []
    for i, curve in enumerate(curves):
        kl, kappa2, kappa3bar = _moments(f"curve {i}", curve)
        rows.append([kl, kl * kl, kappa2, kappa3bar])
    kl, kl_squared, kappa2, kappa3bar = (times * np.sum(rows, axis=0)).tolist()

    variance = kappa2 - kl_squared
    if not variance > 0:
        raise ValueError("no curve has any privacy loss: the composition is the identity")
    band_mu = 2.0 * kl / np.sqrt(variance)
    gamma = 0.56 * kappa3bar / variance**1.5
    # The moments are right to 1e-7 of themselves, and mu is rounded.
    gamma = gamma * (1.0 + 1e-6) + 1e-9 * (1.0 + band_mu)
    return NormalApproximation(Gaussian(2.0 * kl / np.sqrt(kappa2)), band_mu, gamma)


def _moments(name: str, curve: Curve) -> tuple[float, float, float]:
    """Return kl, kappa2 and kappa3bar of one symmetric curve, known and finite; else raise ValueError."""
    curve = check_symmetric(name, curve, "a limit theorem")
    if is_traced(curve) or any(np.ndim(value) for value in curve.shapes().values()):
        raise ValueError("a limit theorem takes one curve at a time, known before compiling")
    law = _loss_law(curve)

    # The mirror image has the opposite losses.
    mean = float(np.sum((law.alternative - law.null) * law.loss))
    square = float(np.sum((law.alternative + law.null) * law.loss**2))

    # The left half, its mirror image, and the rest of the mass, which has no loss.
    left = law.null * (law.loss + mean) ** 3
    right = law.alternative * np.abs(law.loss - mean) ** 3
    mass_of_sides = float(np.sum(law.null + law.alternative))
    mass_of_middle = max(0.0, 1.0 - mass_of_sides)
    cube = float(np.sum(left + right)) + mass_of_middle * mean**3
    if law.unbounded or not np.isfinite([mean, square, cube]).all():
        raise ValueError("a curve with f(0) < 1 has infinite moments: no limit theorem; compose it numerically")
    return mean, square, cube


class _LossLaw(NamedTuple):
    """Losses l >= 0 of the left half with their masses; ``unbounded`` if a positive mass has |L| = inf."""

    loss: np.ndarray
    null: np.ndarray
    alternative: np.ndarray
    unbounded: bool = False


_NO_LOSS = _LossLaw(np.zeros(1), np.zeros(1), np.zeros(1))


@functools.cache
def _unit_rule(order: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and weights of the Gauss-Legendre rule on [0, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def _composite_rule(low: float, high: float, num_panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes and weights of a composite rule of order 24 on [low, high]."""
    nodes, weights = _unit_rule(24)
    width = (high - low) / num_panels
    starts = low + width * np.arange(num_panels)
    all_nodes = starts[:, None] + width * nodes
    all_weights = np.tile(width * weights, num_panels)
    return all_nodes.ravel(), all_weights


def _loss_law(curve: Curve) -> _LossLaw:
    """Return the law of the privacy loss of one symmetric curve with concrete parameters; ValueError of other kinds."""
    match curve:
        case Identity():
            return _NO_LOSS
        case Gaussian():
            return _law_of_gaussian(float(curve.mu))
        case Laplace():
            return _law_of_laplace(float(curve.epsilon))
        case ApproximateDP():
            return _law_of_approximate_dp(float(curve.epsilon), float(curve.delta))
        case Subsampled():
            return _subsampled_law(_loss_law(curve.curve), float(curve.sampling_prob))
        case PiecewiseLinear():
            return _law_of_polygon(np.asarray(curve.alpha), np.asarray(curve.beta))
    raise ValueError(
        f"the moments of {type(curve).__name__} are not known precisely enough for a certified band; "
        "compose it numerically, or give the piecewise-linear curve of its bounds"
    )


def _law_of_gaussian(mu: float) -> _LossLaw:
    if np.isinf(mu):
        return _NO_LOSS._replace(unbounded=True)
    # A panel ends at x = mu, where the loss is kl and the integrand of kappa3bar has a kink.
    lower_x, lower_weight = _composite_rule(0.5 * mu, mu, 12 + int(0.5 * mu))
    upper_x, upper_weight = _composite_rule(mu, mu + 40.0, 24)
    x = np.concatenate([lower_x, upper_x])
    weight = np.concatenate([lower_weight, upper_weight])
    loss = mu * (x - 0.5 * mu)
    null = weight * _density(x)
    alternative = weight * _density(x - mu)
    return _LossLaw(loss, null, alternative)


def _law_of_laplace(theta: float) -> _LossLaw:
    loss, weight = _composite_rule(0.0, theta, 16 + int(0.2 * theta))
    # alpha = e^{-(theta + l)/2} / 2 in between, with an atom of e^-theta / 2 at the top
    null = 0.25 * weight * np.exp(-0.5 * (theta + loss))
    alternative = 0.25 * weight * np.exp(-0.5 * (theta - loss))
    atom = 0.5 * np.exp(-theta)
    return _LossLaw(np.append(loss, theta), np.append(null, atom), np.append(alternative, 0.5))


def _law_of_approximate_dp(epsilon: float, delta: float) -> _LossLaw:
    decay = np.exp(-epsilon)
    null = (1.0 - delta) * decay / (1.0 + decay)
    alternative = 1.0 - delta - null
    is_unbounded = delta > 0 or np.isinf(epsilon)
    return _LossLaw(np.array([epsilon]), np.array([null]), np.array([alternative]), is_unbounded)


def _subsampled_law(inner: _LossLaw, sampling_prob: float) -> _LossLaw:
    # The loss l becomes log(1 - p + p e^l), which is l + log p where e^l overflows.
    growth = np.expm1(np.minimum(inner.loss, 700.0))
    moderate = np.log1p(sampling_prob * growth)
    large = inner.loss + np.log(max(sampling_prob, 1e-300))
    loss = np.where(inner.loss < 700.0, moderate, large)
    alternative = sampling_prob * inner.alternative + (1.0 - sampling_prob) * inner.null
    is_unbounded = inner.unbounded and sampling_prob > 0
    return _LossLaw(np.maximum(loss, 0.0), inner.null, alternative, is_unbounded)


def _law_of_polygon(alpha: np.ndarray, beta: np.ndarray) -> _LossLaw:
    null = np.diff(alpha)
    alternative = -np.diff(beta)
    is_unbounded = bool(beta[0] < 1.0 - 1e-12 or alternative[-1] <= 0.0)
    # The left half.
    is_left = alternative > null
    null = null[is_left]
    alternative = alternative[is_left]
    loss = np.log(alternative) - np.log(null)
    return _LossLaw(loss, null, alternative, is_unbounded)


def _density(x: np.ndarray) -> np.ndarray:
    """Return the standard normal density."""
    return np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)
