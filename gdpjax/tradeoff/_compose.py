r"""Composition of trade-off curves: closed forms where they exist, else certified curves on both sides.

The composition of mechanisms with curves f_1 ... f_n is the curve f_1 (x) ... (x) f_n of the product laws.

* Gaussians: mus add in squares. The identity changes nothing.
* (epsilon, delta_i) pairs with one epsilon: the deltas are separate events, and the losses of n coins with odds
  e^epsilon are (2 j - n) epsilon with binomial weights: the optimal composition theorem. A polygon with n + 2 vertices.
* Otherwise numerically, see `_grid`: two polygons between which the truth lies.

Neighbours come in both orders. Where a curve is not symmetric, the order matters: f_1 (x) ... (x) f_n is the truth for
one order of all the pairs, and the product of the inverses for the other, so the two are composed one by one and then
symmetrised. (Composing symmetrised curves is valid but can be much looser.)
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.checks import COUNT, Domain, check_scalar, is_traced
from gdpjax.tradeoff._abstract import Curve, check_curve
from gdpjax.tradeoff._approximate_dp import ApproximateDP
from gdpjax.tradeoff._curve_bounds import CurveBounds
from gdpjax.tradeoff._exact_curve import ExactCurve
from gdpjax.tradeoff._gaussian import Gaussian, Identity
from gdpjax.tradeoff._grid import _U
from gdpjax.tradeoff._numeric import NUM_CELLS, numerically
from gdpjax.tradeoff._operators import symmetrize
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, from_vertices

_NUM_CELLS = Domain("a whole number from 64 to 65536", lambda x: (x >= 64) & (x <= 65536) & (x == x // 1))


def compose(*curves: Curve, times: int = 1, num_cells: int = NUM_CELLS) -> ExactCurve | CurveBounds:
    """The trade-off curve of several mechanisms together.

    Formula: f_1 (x) ... (x) f_n = T(N_1 x ... x N_n, A_1 x ... x A_n), symmetrised if a curve is not symmetric.

    Args:
        curves: trade-off curves, at least one; an `ExactCurve` stands for its ``exact``.
        times: how often the whole list is composed, a whole number >= 1, static.
        num_cells: static; size of the grids of the numeric method, 64 to 65536. Width falls like its inverse square,
            time grows like its square.

    Returns:
        A `CertifiedCurve`, which unpacks into a lower and an upper curve: the truth, in exact arithmetic, lies in
        between. In the closed cases it is an `ExactCurve`, whose ``exact`` is a symmetric curve and both of these:
        Gaussians (parameters may be traced or arrays), identities, (epsilon, delta) pairs with one epsilon (what 1e-16
        hides near beta = 1 is rounded down: there the epsilon of a tiny delta is an upper bound, maybe inf), a single
        curve. Otherwise it is `CurveBounds` of two piecewise-linear curves.

    Raises:
        ValueError: no curve, something else, or traced or array parameters where there is no closed form.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Theorem 3.2 and Corollary 3.3; Kairouz, Oh and Viswanath,
    arXiv:1311.0776, Theorem 3.3; Doroshenko et al., arXiv:2207.04380 (the discretisation from below).

    >>> from gdpjax.tradeoff import Laplace
    >>> print(compose(Gaussian(3.0), Gaussian(4.0)).exact.mu)
    5.0
    >>> lower, upper = compose(Laplace(0.5), times=8)
    >>> print(f"{lower(0.1):.4f} {upper(0.1):.4f}")
    0.4863 0.4863
    """
    check_scalar("times", times, COUNT)
    check_scalar("num_cells", num_cells, _NUM_CELLS)
    if not curves:
        raise ValueError("compose needs at least one curve, got none")
    times = int(times)
    parts = [check_curve(f"curve {i}", curve) for i, curve in enumerate(curves)]
    parts = [curve for curve in parts if not isinstance(curve, Identity)]
    if not parts:
        return ExactCurve(Identity())
    gaussians = [curve for curve in parts if isinstance(curve, Gaussian)]
    others = [curve for curve in parts if not isinstance(curve, Gaussian)]
    merged = [_compose_gaussians(gaussians, times)] if gaussians else []
    if not others:
        return ExactCurve(merged[0], error=_rounding_of_mu(len(gaussians), times))
    if len(others) == 1 and not merged and times == 1:
        return ExactCurve(symmetrize(others[0]))
    _check_numeric(others + merged)
    pairs = [curve for curve in others if isinstance(curve, ApproximateDP)]
    epsilons = {float(curve.epsilon) for curve in pairs}
    if not merged and len(pairs) == len(others) and len(epsilons) == 1:
        return _compose_pairs(epsilons.pop(), pairs, times)
    distinct, counts = _counted(others, times)
    return numerically(distinct + merged, counts + [1] * len(merged), int(num_cells))


def _compose_gaussians(curves: list[Gaussian], times: int) -> Gaussian:
    if len(curves) == 1 and times == 1:
        return curves[0]
    if is_traced(curves):
        squares = jnp.asarray(sum(jnp.square(curve.mu) for curve in curves))
        safe = jnp.where(squares > 0, squares, 1.0)  # keeps the derivative at mu = 0 finite
        return curves[0].replaced(mu=math.sqrt(times) * jnp.where(squares > 0, jnp.sqrt(safe), 0.0))
    mus = [np.asarray(curve.mu, np.float64) for curve in curves]
    largest = np.maximum.reduce(mus)
    scale = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    return Gaussian((np.sqrt(times) * scale * np.sqrt(sum((mu / scale) ** 2 for mu in mus)))[()])


def _rounding_of_mu(num_curves: int, times: int) -> float:
    """The relative rounding of the root of a sum of squares: half of each term's and sum's, and some more."""
    return 0.0 if num_curves * times == 1 else (num_curves + 8.0) * _U


def _check_numeric(curves: list[Curve]) -> None:
    for curve in curves:
        if is_traced(curve):
            raise ValueError(
                f"composing {type(curve).__name__} is numeric and runs on the host: give concrete parameters"
            )
        batch = [value for value in curve.shapes().values() if np.ndim(value)]
        if batch or (isinstance(curve, PiecewiseLinear) and np.ndim(curve.alpha) > 1):
            raise ValueError(
                f"composing {type(curve).__name__} is numeric: give one curve at a time, not an array of them"
            )


def _compose_pairs(epsilon: float, curves: list[ApproximateDP], times: int) -> ExactCurve:
    with np.errstate(divide="ignore"):  # a product of 1 - delta would lose what is below 1e-16 in each
        log_survives = times * sum(float(np.log1p(-float(curve.delta))) for curve in curves)
    survives = math.exp(log_survives)
    if epsilon == 0 or np.isinf(epsilon) or survives == 0:
        pair = ApproximateDP(epsilon if survives else 0.0, -math.expm1(log_survives))
        return ExactCurve(pair, error=(len(curves) + 8.0) * _U)

    # The number j of coins that show what the alternative likes: binomial, and mirrored under the null.
    n = len(curves) * times
    j = np.arange(n + 1)
    log_choose = scipy.special.gammaln(n + 1) - scipy.special.gammaln(j + 1) - scipy.special.gammaln(n - j + 1)
    log_p = -np.log1p(np.exp(-epsilon))
    log_q = -np.logaddexp(0.0, epsilon)
    alternative = np.exp(log_choose + j * log_p + (n - j) * log_q)
    alternative /= np.sum(alternative)
    null = alternative[::-1]

    # The two errors of every test that rejects for a large j.
    alpha = survives * np.append(0.0, np.minimum(np.cumsum(null[::-1]), 1.0))
    power = np.append(0.0, np.cumsum(alternative[::-1]))
    beta = np.append(np.cumsum(alternative)[::-1], 0.0)
    # 1 - beta is kept to 1e-16 only: rounded to the private side, or a tiny delta would get too small an epsilon.
    beta[1:] = np.where(power[1:] < 0.5, 1.0 - power[1:] - 4.0 * _U, np.minimum(beta[1:], 1.0))
    beta *= survives
    if survives == 1.0:
        alpha[-1], beta[0] = 1.0, 1.0
    # Of the logarithms, which are sums of terms below n (log n + epsilon), and of adding n masses.
    rounding = 32.0 * (n + 1) * (4.0 + math.log(n + 1) + epsilon) * _U
    return ExactCurve(from_vertices(alpha, beta), error=rounding)


def _counted(curves: list[Curve], times: int) -> tuple[list[Curve], list[int]]:
    """Distinct curves and how often each occurs."""
    found: dict = {}
    for curve in curves:
        leaves, structure = jax.tree.flatten(curve)
        key = structure, tuple(np.asarray(leaf, np.float64).tobytes() for leaf in leaves)
        found[key] = (curve, found.get(key, (curve, 0))[1] + times)
    return [curve for curve, _ in found.values()], [count for _, count in found.values()]
