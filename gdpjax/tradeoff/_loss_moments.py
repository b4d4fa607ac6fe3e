r"""Moments of the privacy loss: kl, kappa2, kappa3, kappa3bar.

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
def _legendre(order: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(order)
    return 0.5 * (nodes + 1.0), 0.5 * weights


def _panels(low: float, high: float, num_panels: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights of a composite rule of order 24 on [low, high]."""
    nodes, weights = _legendre(24)
    width = (high - low) / num_panels
    starts = low + width * np.arange(num_panels)
    return (starts[:, None] + width * nodes).ravel(), np.tile(width * weights, num_panels)


def loss_law(curve: Curve) -> LossLaw:
    """The law of the privacy loss of a symmetric curve with concrete parameters."""
    match curve:
        case Identity():
            return _NO_LOSS
        case Gaussian():
            mu = float(curve.mu)
            if np.isinf(mu):
                return _NO_LOSS._replace(unbounded=True)
            # a panel ends at x = mu, where the loss is kl and the integrand of kappa3bar has a kink
            pieces = _panels(0.5 * mu, mu, 12 + int(0.5 * mu)), _panels(mu, mu + 40.0, 24)
            x, weight = (np.concatenate(part) for part in zip(*pieces, strict=True))
            return LossLaw(mu * (x - 0.5 * mu), weight * _density(x), weight * _density(x - mu))
        case Laplace():
            theta = float(curve.epsilon)
            loss, weight = _panels(0.0, theta, 16 + int(0.2 * theta))
            # alpha = e^{-(theta + l)/2} / 2 in between, with an atom of e^-theta / 2 at the top
            null, alternative = (0.25 * weight * np.exp(-0.5 * (theta + sign * loss)) for sign in (1.0, -1.0))
            return LossLaw(np.append(loss, theta), np.append(null, 0.5 * np.exp(-theta)), np.append(alternative, 0.5))
        case ApproximateDP():
            epsilon, delta = float(curve.epsilon), float(curve.delta)
            null = (1.0 - delta) * np.exp(-epsilon) / (1.0 + np.exp(-epsilon))
            masses = np.array([null]), np.array([1.0 - delta - null])
            return LossLaw(np.array([epsilon]), *masses, unbounded=delta > 0 or np.isinf(epsilon))
        case Subsampled():
            inner, p = loss_law(curve.curve), float(curve.sampling_prob)
            growth = np.expm1(np.minimum(inner.loss, 700.0))
            loss = np.where(inner.loss < 700.0, np.log1p(p * growth), inner.loss + np.log(max(p, 1e-300)))
            alternative = p * inner.alternative + (1.0 - p) * inner.null
            return LossLaw(np.maximum(loss, 0.0), inner.null, alternative, inner.unbounded and p > 0)
        case PiecewiseLinear():
            return _of_polygon(np.asarray(curve.alpha), np.asarray(curve.beta))
    t = np.linspace(-9.0, 9.0, 8193)
    alpha = np.concatenate([[0.0], scipy.special.ndtr(t), [1.0]])
    return _of_polygon(alpha, np.append(np.asarray(curve(alpha[:-1])), 0.0))


def _of_polygon(alpha: np.ndarray, beta: np.ndarray) -> LossLaw:
    null, alternative = np.diff(alpha), -np.diff(beta)
    left = alternative > null
    loss = np.log(alternative[left]) - np.log(null[left])
    return LossLaw(loss, null[left], alternative[left], bool(beta[0] < 1.0 - 1e-12 or alternative[-1] <= 0.0))


def _density(x: np.ndarray) -> np.ndarray:
    return np.exp(-0.5 * x * x) / np.sqrt(2.0 * np.pi)


def is_precise(curve: Curve) -> bool:
    """Whether the moments are those of the curve itself, not of a polygon in its place."""
    if isinstance(curve, Subsampled):
        return is_precise(curve.curve)
    return isinstance(curve, Identity | Gaussian | Laplace | ApproximateDP | PiecewiseLinear)


def _law(f: Curve, what: str) -> LossLaw:
    f = check_symmetric("f", f, what)
    if is_traced(f):
        raise ValueError(f"{what} is computed on the host: call it outside compiled code")
    if any(np.ndim(value) for value in f.shapes().values()):
        raise ValueError(f"{what} takes one curve; call it for each")
    return loss_law(f)


def kl(f: Curve) -> float:
    """The expected privacy loss of a symmetric curve.

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
    law = _law(f, "kl")
    return np.inf if law.unbounded else _mean(law)


def kappa2(f: Curve) -> float:
    """The second moment of the privacy loss of a symmetric curve.

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
    return _absolute_moment(_law(f, "kappa2"), 2)


def kappa3(f: Curve) -> float:
    """The third absolute moment of the privacy loss of a symmetric curve.

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
    return _absolute_moment(_law(f, "kappa3"), 3)


def kappa3bar(f: Curve) -> float:
    """The third absolute central moment of the privacy loss of a symmetric curve.

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
    law = _law(f, "kappa3bar")
    if law.unbounded:
        return np.inf
    mean = _mean(law)
    middle = max(0.0, 1.0 - float(np.sum(law.null + law.alternative)))
    sides = law.null * (law.loss + mean) ** 3 + law.alternative * np.abs(law.loss - mean) ** 3
    return float(np.sum(sides)) + middle * mean**3


def _absolute_moment(law: LossLaw, order: int) -> float:
    return np.inf if law.unbounded else float(np.sum((law.null + law.alternative) * law.loss**order))


def _mean(law: LossLaw) -> float:
    return float(np.sum((law.alternative - law.null) * law.loss))
