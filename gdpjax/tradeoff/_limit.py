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

*Moments.* With L = log |f'(alpha)| for alpha uniform on [0, 1], i.e. the log-likelihood ratio under the null, they are
those of Dong, Roth and Su, arXiv:1905.02383, Section 3.2:

    kl = -E L,   kappa2 = E L^2,   kappa3bar = E |L + kl|^3.

A symmetric curve is its own mirror image: an outcome with loss l >= 0, null mass n and alternative mass a = n e^l has
a twin with loss -l, null mass a and alternative mass n. So the law of L is kept as nodes (l, n) of the left half
alone, and what remains of the total mass has L = 0. Subsampling maps the nodes: e^l becomes p e^l + 1 - p, n stays.

The nodes are cells of nearly constant loss (`_loss_cells`), at the middle of their losses. Those of the inner curve are
taken, since its subsampled losses may be tiny. With w the widest cell and kappa2 that of the inner curve, moments are
then right to c = w^2 (1 + 1 / kappa2), relative to themselves, and s^2 = sum kappa2 - sum kl^2 to e = c sum kappa2 /
s^2. So gamma is enlarged by 4 e of itself, by e mu and 1e-9 (1 + mu) for mu, since moving mu by d moves G_mu by at most
d phi(0), and by what rounding takes from a polygon's mass.
"""

from typing import NamedTuple

import numpy as np
from jax import numpy as jnp

from gdpjax._core.checks import COUNT, NONNEGATIVE, UNIT, check_scalar, is_traced
from gdpjax._core.precision import float64_function
from gdpjax._core.types import Array, Bounds, Floats, Numbers
from gdpjax.tradeoff._abstract import Curve, check_symmetric
from gdpjax.tradeoff._closed_forms import ApproximateDP, Gaussian, Identity, Laplace
from gdpjax.tradeoff._derived_curves import Subsampled
from gdpjax.tradeoff._loss_cells import CellRule, cells_of, loss_range
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear

_NUM_CELLS = 2**16
_ROUNDING = 1e-12
"""The most of a polygon's mass that rounding may have taken."""


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
    laws = []
    rows = []
    for i, curve in enumerate(curves):
        law = _loss_law(_checked(f"curve {i}", curve))
        kl, kappa2, kappa3bar = _moments(law)
        laws.append(law)
        rows.append([kl, kl * kl, kappa2, kappa3bar])
    kl, kl_squared, kappa2, kappa3bar = (times * np.sum(rows, axis=0)).tolist()

    variance = kappa2 - kl_squared
    if not variance > 0:
        raise ValueError("no curve has any privacy loss: the composition is the identity")
    band_mu = 2.0 * kl / np.sqrt(variance)
    gamma = 0.56 * kappa3bar / variance**1.5

    # What the moments, and the mass, are off by.
    error = max(law.error for law in laws) * kappa2 / variance
    lost = times * sum(law.lost for law in laws)
    gamma = gamma * (1.0 + 4.0 * error) + error * band_mu + 1e-9 * (1.0 + band_mu) + lost
    return NormalApproximation(Gaussian(2.0 * kl / np.sqrt(kappa2)), band_mu, gamma)


def _checked(name: str, curve: Curve) -> Curve:
    """Return one symmetric curve that is known; else raise ValueError."""
    curve = check_symmetric(name, curve, "a limit theorem")
    if is_traced(curve) or any(np.ndim(value) for value in curve.shapes().values()):
        raise ValueError("a limit theorem takes one curve at a time, known before compiling")
    return curve


class _LossLaw(NamedTuple):
    """Losses l >= 0 of the left half, their null masses, the relative error of moments, and the mass without a loss."""

    loss: np.ndarray
    null: np.ndarray
    error: float
    lost: float


def _loss_law(curve: Curve) -> _LossLaw:
    """Return the law of the privacy loss of one symmetric curve; ValueError of kinds of which it is not known."""
    if isinstance(curve, Subsampled):
        # The loss l becomes log(1 - p + p e^l).
        inner = _loss_law(curve.curve)
        loss = np.log1p(float(curve.sampling_prob) * np.expm1(inner.loss))
        return inner._replace(loss=loss)
    if not isinstance(curve, Identity | Gaussian | Laplace | ApproximateDP | PiecewiseLinear):
        raise ValueError(
            f"the moments of {type(curve).__name__} are not known precisely enough for a certified band; "
            "compose it numerically, or give the piecewise-linear curve of its bounds"
        )

    low, high = loss_range(curve)
    spacing = max(high - low, 1e-300) / _NUM_CELLS
    cells = cells_of(curve, CellRule(spacing, below=True))
    lost = max(cells.infinite, cells.negative)
    if lost > (_ROUNDING if isinstance(curve, PiecewiseLinear) else 0.0):
        # The cells of nearly no privacy, such as mu = 25, are those of none.
        raise ValueError(
            "a curve with f(0) < 1, or next to it, has infinite moments: no limit theorem; compose it numerically"
        )

    # The left half. Beyond its last cell there is no mass that counts.
    is_left = (cells.low >= 0) & (cells.high > 0)
    low, high, null = cells.low[is_left], cells.high[is_left], cells.null[is_left]
    high = np.where(high < np.inf, high, low)
    law = _LossLaw(0.5 * (low + high), null, 0.0, lost)

    # Squares of losses are off by w^2 / 12 in the mean, however small they are.
    widest = float(np.max(high - low, initial=0.0))
    _, square, _ = _moments(law)
    return law._replace(error=widest**2 * (1.0 + 1.0 / square)) if square > 0 else law


def _moments(law: _LossLaw) -> tuple[float, float, float]:
    """Return kl, kappa2 and kappa3bar."""
    # The mirror image has the alternative's masses, n e^l, and the opposite losses.
    growth = np.expm1(law.loss)
    mirrored = law.null * (1.0 + growth)
    mean = float(np.sum(law.null * growth * law.loss))
    square = float(np.sum((law.null + mirrored) * law.loss**2))

    # The left half, its mirror image, and the rest of the mass, which has no loss.
    cubes = law.null * (law.loss + mean) ** 3 + mirrored * np.abs(law.loss - mean) ** 3
    mass_of_middle = max(0.0, 1.0 - float(np.sum(law.null + mirrored)))
    return mean, square, float(np.sum(cubes)) + mass_of_middle * mean**3
