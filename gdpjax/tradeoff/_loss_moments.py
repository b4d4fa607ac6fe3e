r"""Moments of the privacy loss of a symmetric curve: kl, kappa2, kappa3bar.

    moments(loss_law(Gaussian(1.0))).kl         # the expected loss, 0.5

With L = log |f'(alpha)| for alpha uniform on [0, 1], i.e. the log-likelihood ratio under the null, they are those of
Dong, Roth and Su, arXiv:1905.02383, Section 3.2:

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

from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._approximate_dp import ApproximateDP
from gdpjax.tradeoff._derived_curves import Subsampled
from gdpjax.tradeoff._gaussian import Gaussian, Identity
from gdpjax.tradeoff._laplace import Laplace
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear


class LossLaw(NamedTuple):
    """Losses l >= 0 of the left half with their masses; ``unbounded`` if a positive mass has |L| = inf."""

    loss: np.ndarray
    null: np.ndarray
    alternative: np.ndarray
    unbounded: bool = False


_NO_LOSS = LossLaw(np.zeros(1), np.zeros(1), np.zeros(1))


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


def loss_law(curve: Curve) -> LossLaw:
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
            return _subsampled_law(loss_law(curve.curve), float(curve.sampling_prob))
        case PiecewiseLinear():
            return _law_of_polygon(np.asarray(curve.alpha), np.asarray(curve.beta))
    raise ValueError(
        f"the moments of {type(curve).__name__} are not known precisely enough for a certified band; "
        "compose it numerically, or give the piecewise-linear curve of its bounds"
    )


def _law_of_gaussian(mu: float) -> LossLaw:
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
    return LossLaw(loss, null, alternative)


def _law_of_laplace(theta: float) -> LossLaw:
    loss, weight = _composite_rule(0.0, theta, 16 + int(0.2 * theta))
    # alpha = e^{-(theta + l)/2} / 2 in between, with an atom of e^-theta / 2 at the top
    null = 0.25 * weight * np.exp(-0.5 * (theta + loss))
    alternative = 0.25 * weight * np.exp(-0.5 * (theta - loss))
    atom = 0.5 * np.exp(-theta)
    return LossLaw(np.append(loss, theta), np.append(null, atom), np.append(alternative, 0.5))


def _law_of_approximate_dp(epsilon: float, delta: float) -> LossLaw:
    decay = np.exp(-epsilon)
    null = (1.0 - delta) * decay / (1.0 + decay)
    alternative = 1.0 - delta - null
    is_unbounded = delta > 0 or np.isinf(epsilon)
    return LossLaw(np.array([epsilon]), np.array([null]), np.array([alternative]), is_unbounded)


def _subsampled_law(inner: LossLaw, sampling_prob: float) -> LossLaw:
    # The loss l becomes log(1 - p + p e^l), which is l + log p where e^l overflows.
    growth = np.expm1(np.minimum(inner.loss, 700.0))
    moderate = np.log1p(sampling_prob * growth)
    large = inner.loss + np.log(max(sampling_prob, 1e-300))
    loss = np.where(inner.loss < 700.0, moderate, large)
    alternative = sampling_prob * inner.alternative + (1.0 - sampling_prob) * inner.null
    is_unbounded = inner.unbounded and sampling_prob > 0
    return LossLaw(np.maximum(loss, 0.0), inner.null, alternative, is_unbounded)


def _law_of_polygon(alpha: np.ndarray, beta: np.ndarray) -> LossLaw:
    null = np.diff(alpha)
    alternative = -np.diff(beta)
    is_unbounded = bool(beta[0] < 1.0 - 1e-12 or alternative[-1] <= 0.0)
    # The left half.
    is_left = alternative > null
    null = null[is_left]
    alternative = alternative[is_left]
    loss = np.log(alternative) - np.log(null)
    return LossLaw(loss, null, alternative, is_unbounded)


def _density(x: np.ndarray) -> np.ndarray:
    """Return the standard normal density."""
    return np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)


class Moments(NamedTuple):
    """The moments of the module docstring that a limit theorem needs."""

    kl: float
    kappa2: float
    kappa3bar: float


def moments(law: LossLaw) -> Moments:
    """Return the moments of a law: estimates by quadrature, inf if the loss is unbounded."""
    if law.unbounded:
        return Moments(np.inf, np.inf, np.inf)
    # The mirror image has the opposite losses.
    mean = float(np.sum((law.alternative - law.null) * law.loss))
    square = float(np.sum((law.alternative + law.null) * law.loss**2))

    # The left half, its mirror image, and the rest of the mass, which has no loss.
    left = law.null * (law.loss + mean) ** 3
    right = law.alternative * np.abs(law.loss - mean) ** 3
    mass_of_sides = float(np.sum(law.null + law.alternative))
    mass_of_middle = max(0.0, 1.0 - mass_of_sides)
    return Moments(mean, square, float(np.sum(left + right)) + mass_of_middle * mean**3)
