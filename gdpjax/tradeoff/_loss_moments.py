r"""Moments of the privacy loss: kl, kappa2, kappa3, kappa3bar.

    kl(Gaussian(1.0))               # the expected loss, 0.5

With L = log |f'(alpha)| for alpha uniform on [0, 1], i.e. the log-likelihood ratio under the null,

    kl = -E L,   kappa2 = E L^2,   kappa3 = E |L|^3,   kappa3bar = E |L + kl|^3.

A symmetric curve is its own mirror image: an outcome with loss l >= 0, null mass n and alternative mass a = n e^l has
a twin with loss -l, null mass a and alternative mass n. So the law of L is kept as nodes (l, n, a) of the left half
alone, and what remains of the total mass has L = 0. Subsampling maps the nodes: a becomes p a + (1 - p) n, n stays.

Nodes are exact for polygons, and Gauss-Legendre rules elsewhere: in x = -Phi^-1(alpha) for the Gaussian, in l for
Laplace noise, each to about 1e-13. Any other curve is replaced by a fine polygon, to about 1e-5.
"""

import functools
from typing import NamedTuple

import numpy as np
import scipy

from gdpjax._core.checks import is_traced
from gdpjax.tradeoff._abstract import Curve, check_symmetric
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
    """Return the law of the privacy loss of a symmetric curve with concrete parameters."""
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

    # Any other curve, by a fine polygon.
    quantile = np.linspace(-9.0, 9.0, 8193)
    alpha = np.concatenate([[0.0], scipy.special.ndtr(quantile), [1.0]])
    beta = np.append(np.asarray(curve(alpha[:-1])), 0.0)
    return _law_of_polygon(alpha, beta)


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


def is_precise(curve: Curve) -> bool:
    """Return whether the moments are those of the curve itself, not of a polygon in its place."""
    if isinstance(curve, Subsampled):
        return is_precise(curve.curve)
    return isinstance(curve, Identity | Gaussian | Laplace | ApproximateDP | PiecewiseLinear)


def _checked_law(f: Curve, moment: str) -> LossLaw:
    """Return the law of a symmetric, concrete, single curve; else raise ValueError."""
    f = check_symmetric("f", f, moment)
    if is_traced(f):
        raise ValueError(f"{moment} is computed on the host: call it outside compiled code")
    for value in f.shapes().values():
        if np.ndim(value):
            raise ValueError(f"{moment} takes one curve; call it for each")
    return loss_law(f)


def kl(f: Curve) -> float:
    """Return the expected privacy loss of a symmetric curve.

    Formula: kl(f) = -int_0^1 log|f'(x)| dx, the Kullback-Leibler divergence of the two laws.

    Args:
        f: symmetric trade-off curve with concrete parameters.

    Returns:
        kl in nats, >= 0; an estimate by quadrature, relative error about 1e-13 for Gaussian, Laplace, polygonal curves
        and their subsamplings, 1e-5 for others. inf if f(0) < 1.

    Raises:
        ValueError: f not symmetric, or traced, or many curves.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 3.2.

    >>> from gdpjax.tradeoff import Gaussian
    >>> print(f"{kl(Gaussian(1.0)):.10f}")
    0.5000000000
    """
    law = _checked_law(f, "kl")
    if law.unbounded:
        return np.inf
    return _mean(law)


def kappa2(f: Curve) -> float:
    """Return the second moment of the privacy loss of a symmetric curve.

    Formula: kappa2(f) = int_0^1 log^2|f'(x)| dx.

    Args:
        f: symmetric trade-off curve with concrete parameters.

    Returns:
        kappa2 >= 0; standing as `kl`.

    Raises:
        ValueError: f not symmetric, or traced, or many curves.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 3.2.

    >>> from gdpjax.tradeoff import ApproximateDP
    >>> print(f"{kappa2(ApproximateDP(0.5)):.10f}")
    0.2500000000
    """
    law = _checked_law(f, "kappa2")
    return _absolute_moment(law, 2)


def kappa3(f: Curve) -> float:
    """Return the third absolute moment of the privacy loss of a symmetric curve.

    Formula: kappa3(f) = int_0^1 |log|f'(x)||^3 dx.

    Args:
        f: symmetric trade-off curve with concrete parameters.

    Returns:
        kappa3 >= 0; standing as `kl`.

    Raises:
        ValueError: f not symmetric, or traced, or many curves.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 3.2.

    >>> from gdpjax.tradeoff import ApproximateDP
    >>> print(f"{kappa3(ApproximateDP(0.5)):.10f}")
    0.1250000000
    """
    law = _checked_law(f, "kappa3")
    return _absolute_moment(law, 3)


def kappa3bar(f: Curve) -> float:
    """Return the third absolute central moment of the privacy loss of a symmetric curve.

    Formula: kappa3bar(f) = int_0^1 |log|f'(x)| + kl(f)|^3 dx.

    Args:
        f: symmetric trade-off curve with concrete parameters.

    Returns:
        kappa3bar >= 0; an estimate, standing as `kl` but relative error about 1e-7: the integrand has a kink.

    Raises:
        ValueError: f not symmetric, or traced, or many curves.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 3.2.

    >>> from gdpjax.tradeoff import Gaussian
    >>> print(f"{kappa3bar(Gaussian(1.0)):.6f}")
    1.595769
    """
    law = _checked_law(f, "kappa3bar")
    if law.unbounded:
        return np.inf
    mean = _mean(law)
    # The left half, its mirror image, and the rest of the mass, which has no loss.
    left = law.null * (law.loss + mean) ** 3
    right = law.alternative * np.abs(law.loss - mean) ** 3
    mass_of_sides = float(np.sum(law.null + law.alternative))
    mass_of_middle = max(0.0, 1.0 - mass_of_sides)
    return float(np.sum(left + right)) + mass_of_middle * mean**3


def _absolute_moment(law: LossLaw, order: int) -> float:
    """Return E |L|^order; the left half and its mirror image have the same absolute losses."""
    if law.unbounded:
        return np.inf
    mass = law.null + law.alternative
    return float(np.sum(mass * law.loss**order))


def _mean(law: LossLaw) -> float:
    """Return the expected loss: the mirror image has the opposite losses."""
    excess = law.alternative - law.null
    return float(np.sum(excess * law.loss))
