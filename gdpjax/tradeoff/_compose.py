r"""Composition of trade-off curves: closed forms where they exist, else certified curves on both sides.

    curve = compose(Laplace(0.5), Gaussian(0.2), times=8)
    curve.epsilon(1e-5)             # Bounds(lower, upper): the truth is in between

The composition of mechanisms with curves f_1 ... f_n is the curve f_1 (x) ... (x) f_n of the product laws.

* Gaussians: mus add in squares. The identity changes nothing.
* (epsilon, delta_i) pairs with one epsilon: the deltas are separate events, and the losses of n coins with odds
  e^epsilon are (2 j - n) epsilon with binomial weights: the optimal composition theorem. A polygon with n + 2 vertices.
* Otherwise numerically, see `_numeric`: two polygons between which the truth lies.

Neighbours come in both orders. Where a curve is not symmetric, the order matters: f_1 (x) ... (x) f_n is the truth for
one order of all the pairs, and the product of the inverses for the other, so the two are composed one by one and then
symmetrised. (Composing symmetrised curves is valid but can be much looser.)
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy

from gdpjax._core.checks import COUNT, Domain, check_scalar, is_traced
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve, check_curve
from gdpjax.tradeoff._closed_forms import ApproximateDP, Gaussian, Identity
from gdpjax.tradeoff._curve_bounds import CurveBounds
from gdpjax.tradeoff._exact_curve import ExactCurve
from gdpjax.tradeoff._grid import UNIT_ROUNDOFF
from gdpjax.tradeoff._numeric import NUM_CELLS, numerically
from gdpjax.tradeoff._operators import symmetrize
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, from_vertices


def _is_number_of_cells(x: Array) -> Array:
    return (x >= 64) & (x <= 65536) & (x == x // 1)


_NUM_CELLS = Domain("a whole number from 64 to 65536", _is_number_of_cells)


def compose(*curves: Curve, times: int = 1, num_cells: int = NUM_CELLS) -> ExactCurve | CurveBounds:
    """Return the trade-off curve of several mechanisms together.

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
    times = int(times)

    # The identity changes nothing, and Gaussians are merged into one.
    gaussians: list[Gaussian] = []
    non_gaussians: list[Curve] = []
    for i, argument in enumerate(curves):
        curve = check_curve(f"curve {i}", argument)
        if isinstance(curve, Gaussian):
            gaussians.append(curve)
        elif not isinstance(curve, Identity):
            non_gaussians.append(curve)
    if not gaussians and not non_gaussians:
        return ExactCurve(Identity())
    if not non_gaussians:
        gaussian = _compose_gaussians(gaussians, times)
        return ExactCurve(gaussian, error=_rounding_of_mu(len(gaussians), times))
    if len(non_gaussians) == 1 and not gaussians and times == 1:
        return ExactCurve(symmetrize(non_gaussians[0]))

    # Pairs with one epsilon.
    merged = [_compose_gaussians(gaussians, times)] if gaussians else []
    _check_numeric([*non_gaussians, *merged])
    pairs = [curve for curve in non_gaussians if isinstance(curve, ApproximateDP)]
    epsilons = {float(curve.epsilon) for curve in pairs}
    if not gaussians and len(pairs) == len(non_gaussians) and len(epsilons) == 1:
        return _compose_pairs(epsilons.pop(), pairs, times)

    # Anything else, numerically.
    distinct, counts = _counted(non_gaussians, times)
    if merged:
        distinct = distinct + merged
        counts = [*counts, 1]
    return numerically(distinct, counts, int(num_cells))


def _compose_gaussians(curves: list[Gaussian], times: int) -> Gaussian:
    """Return the Gaussian with mu = sqrt(times sum mu_i^2)."""
    if len(curves) == 1 and times == 1:
        return curves[0]
    if is_traced(curves):
        squares = jnp.asarray(sum(jnp.square(curve.mu) for curve in curves))
        # The derivative at mu = 0 stays finite.
        safe_squares = jnp.where(squares > 0, squares, 1.0)
        root = jnp.where(squares > 0, jnp.sqrt(safe_squares), 0.0)
        return curves[0].replaced(mu=math.sqrt(times) * root)

    # Relative to the largest mu, whose square may overflow.
    mus = [np.asarray(curve.mu, np.float64) for curve in curves]
    largest = np.maximum.reduce(mus)
    is_regular = (largest > 0) & np.isfinite(largest)
    scale = np.where(is_regular, largest, 1.0)
    squares = sum((mu / scale) ** 2 for mu in mus)
    mu = np.sqrt(times) * scale * np.sqrt(squares)
    return Gaussian(mu[()])


def _rounding_of_mu(num_curves: int, times: int) -> float:
    """Return the relative rounding of the root of a sum of squares: half of each term's and sum's, and some more."""
    if num_curves * times == 1:
        return 0.0
    return (num_curves + 8.0) * UNIT_ROUNDOFF


def _check_numeric(curves: list[Curve]) -> None:
    """Raise ValueError unless each curve is concrete and single."""
    for curve in curves:
        is_batch = any(np.ndim(value) for value in curve.shapes().values())
        if isinstance(curve, PiecewiseLinear) and np.ndim(curve.alpha) > 1:
            is_batch = True
        if is_batch or is_traced(curve):
            raise ValueError(
                f"composing {type(curve).__name__} is numeric: give one curve at a time, known before compiling"
            )


def _compose_pairs(epsilon: float, curves: list[ApproximateDP], times: int) -> ExactCurve:
    """Return the composition of pairs with one epsilon: the optimal composition theorem."""
    # The probability that no delta event happens. A product of 1 - delta would lose digits of a delta below 1e-16.
    log_no_event = 0.0
    with np.errstate(divide="ignore"):
        for curve in curves:
            log_no_event += float(np.log1p(-float(curve.delta)))
    log_no_event = times * log_no_event
    no_event = math.exp(log_no_event)

    # Coins that show nothing or everything.
    if epsilon == 0 or np.isinf(epsilon) or no_event == 0:
        remaining_epsilon = epsilon if no_event else 0.0
        pair = ApproximateDP(remaining_epsilon, -math.expm1(log_no_event))
        return ExactCurve(pair, error=(len(curves) + 8.0) * UNIT_ROUNDOFF)

    # The number j of coins on the alternative's side is binomial, and mirrored under the null.
    n = len(curves) * times
    j = np.arange(n + 1)
    log_factorials = scipy.special.gammaln(j + 1)
    log_choose = scipy.special.gammaln(n + 1) - log_factorials - log_factorials[::-1]
    log_p = -np.log1p(np.exp(-epsilon))
    log_q = -np.logaddexp(0.0, epsilon)
    alternative = np.exp(log_choose + j * log_p + (n - j) * log_q)
    alternative /= np.sum(alternative)
    null = alternative[::-1]

    # The two errors of every test that rejects for a large j.
    type_one = np.minimum(np.cumsum(null[::-1]), 1.0)
    alpha = no_event * np.append(0.0, type_one)
    power = np.cumsum(alternative[::-1])
    beta = np.append(np.cumsum(alternative)[::-1], 0.0)

    # 1 - beta has an error of 1e-16. It is rounded to the private side, or a tiny delta would get too small an epsilon.
    near_one = 1.0 - power - 4.0 * UNIT_ROUNDOFF
    beta[1:] = np.where(power < 0.5, near_one, np.minimum(beta[1:], 1.0))
    beta *= no_event
    if no_event == 1.0:
        alpha[-1] = 1.0
        beta[0] = 1.0

    # The rounding of the logarithms, which are sums of terms below n (log n + epsilon), and of adding n masses.
    rounding = 32.0 * (n + 1) * (4.0 + math.log(n + 1) + epsilon) * UNIT_ROUNDOFF
    return ExactCurve(from_vertices(alpha, beta), error=rounding)


def _counted(curves: list[Curve], times: int) -> tuple[list[Curve], list[int]]:
    """Return the distinct curves and the number of times each is composed."""
    distinct: dict[Any, Curve] = {}
    counts: dict[Any, int] = {}
    for curve in curves:
        leaves, structure = jax.tree.flatten(curve)
        contents = tuple(np.asarray(leaf, np.float64).tobytes() for leaf in leaves)
        key = structure, contents
        distinct[key] = curve
        counts[key] = counts.get(key, 0) + times
    return list(distinct.values()), list(counts.values())
