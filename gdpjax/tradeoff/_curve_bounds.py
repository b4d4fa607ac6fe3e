"""Two curves with a trade-off curve in between, and what they say about it: `CurveBounds`.

    lower, upper = bounds = compose(Laplace(0.5), times=8)
    bounds.epsilon(1e-5)

The lower curve gives the upper ends of epsilon, delta and mu, and the other way round. Mostly both are polygons. The
profile of a polygon is the largest value of a linear function over its vertices, so every answer is a maximum that
NumPy finds at once, without compiling anything for the number of vertices; each is moved outwards by more than its
rounding. Curves in closed form answer in `_closed_answers`.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, UNIT, known
from gdpjax._core.dominating import mu_from_deltas
from gdpjax._core.types import FAILURE, Bounds, Numbers
from gdpjax.tradeoff import _closed_answers
from gdpjax.tradeoff._abstract import Curve
from gdpjax.tradeoff._certified_curve import CertifiedCurve, each, rounded_complement
from gdpjax.tradeoff._closed_forms import Gaussian
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear

_SLACK = 1e-15
"""The absolute rounding of 1 - beta - e^epsilon alpha where that is positive."""
_NUM_UNIFORM = 3072
_NUM_GEOMETRIC = 1024
"""How many epsilon mu is sought at, equally spaced and on the scale of log epsilon."""
_NUM_ROWS = 64
"""How many numbers are compared with all vertices at a time."""


class _TwoCurves(NamedTuple):
    lower: Curve
    upper: Curve


class CurveBounds(_TwoCurves, CertifiedCurve):
    """Two curves with the truth in between: lower(alpha) <= f(alpha) <= upper(alpha) for every alpha.

    Made by `compose`. It unpacks into the two curves, and it answers the questions of a `CertifiedCurve` about a
    symmetric truth.

    >>> from gdpjax.tradeoff import Laplace, compose
    >>> bounds = compose(Laplace(0.5), times=8)
    >>> print(f"{bounds.epsilon(1e-5).lower:.4f} {bounds.epsilon(1e-5).upper:.4f}")
    3.9974 3.9975
    """

    __slots__ = ()

    def epsilon(self, delta: Numbers) -> Bounds:
        """Certified bracket on the smallest epsilon >= 0 with delta(epsilon) <= ``delta``, which is in [0, 1)."""
        delta = known("delta", delta, HALF_OPEN_UNIT)
        lower = _epsilon(self.upper, delta, -1.0)
        upper = _epsilon(self.lower, delta, 1.0)
        return Bounds(lower[()], upper[()])

    def delta(self, epsilon: Numbers) -> Bounds:
        """Certified bracket on the smallest delta of (``epsilon``, delta)-DP; of polygons from 0 below 1e-15."""
        epsilon = known("epsilon", epsilon, NONNEGATIVE)
        lower = _delta(self.upper, epsilon, -1.0)
        upper = _delta(self.lower, epsilon, 1.0)
        return Bounds(lower[()], upper[()])

    def mu(self, failure: Numbers = FAILURE) -> Bounds:
        """Certified bracket on the smallest mu such that f >= G_mu (x) f_{0, failure}."""
        return each(self._mu, known("failure", failure, HALF_OPEN_UNIT))

    def _mu(self, failure: float) -> Bounds:
        ends = self.epsilon(failure)
        if np.ndim(ends.lower) or np.ndim(ends.upper):
            raise ValueError("mu is of one curve at a time, and these are many")

        # Where epsilon is inf, delta never falls to the failure, and no mu is enough but that of a Gaussian.
        lowest = np.float64(ends.lower if ends.lower == np.inf else 0.0)
        highest = np.float64(np.inf if ends.upper > 0 else 0.0)
        if isinstance(self.upper, Gaussian) and failure == 0:
            lowest = np.float64(self.upper.mu)
        if isinstance(self.lower, Gaussian):
            highest = np.minimum(highest, np.float64(self.lower.mu))
        widest = Bounds(np.minimum(lowest, highest), highest)
        end = ends.upper if ends.upper < np.inf else ends.lower
        if not 0 < end < np.inf:
            return widest

        # Beyond this epsilon nothing is asked of mu. If its upper end is not known, the points only force a mu.
        uniform = np.linspace(0.0, end, _NUM_UNIFORM)
        geometric = np.geomspace(1e-6 * end, end, _NUM_GEOMETRIC + 1)
        grid = np.union1d(uniform, geometric)
        mu, _ = mu_from_deltas(grid, self.delta(grid), failure, widest)
        return mu if ends.upper < np.inf else Bounds(mu.lower, highest)

    def tradeoff(self, alpha: Numbers) -> Bounds:
        """Certified bracket on f(``alpha``), the least type II error of a test of type I error alpha in [0, 1]."""
        alpha = known("alpha", alpha, UNIT)
        lower = _error(self.lower, alpha, -1.0)
        upper = _error(self.upper, alpha, 1.0)
        upper = np.minimum(upper, rounded_complement(alpha, 1.0))
        return Bounds(np.asarray(lower)[()], upper[()])


def _mapped(function: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    """Return ``function`` of each number; it takes a column of them, a few rows at a time."""
    column = values.reshape(-1, 1)
    parts = [np.empty(0)]
    for start in range(0, len(column), _NUM_ROWS):
        rows = column[start : start + _NUM_ROWS]
        parts.append(function(rows))
    return np.concatenate(parts).reshape(values.shape)[()]


def _sides(curve: PiecewiseLinear) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the vertices of the curve and of its mirror image."""
    alpha = np.asarray(curve.alpha, np.float64)
    beta = np.asarray(curve.beta, np.float64)
    yield alpha, beta
    yield beta, alpha


def _error(curve: Curve, alpha: np.ndarray, side: float) -> np.ndarray:
    """Return a bound on f(alpha)."""
    if isinstance(curve, PiecewiseLinear):
        return curve(alpha) * (1.0 + side * _SLACK)
    return _closed_answers.error_of(curve, alpha, side)


def _delta(curve: Curve, epsilon: np.ndarray, side: float) -> np.ndarray:
    """Return a bound on delta(epsilon), for both orders."""
    if not isinstance(curve, PiecewiseLinear):
        return _closed_answers.delta_of(curve, epsilon, side)
    largest = _mapped(functools.partial(_largest_gap, curve), epsilon)
    return np.clip(largest + side * _SLACK, 0.0, 1.0)


def _epsilon(curve: Curve, delta: np.ndarray, side: float) -> np.ndarray:
    """Return a bound on the smallest epsilon >= 0 at which the curve asks for no more than delta."""
    if not isinstance(curve, PiecewiseLinear):
        return _closed_answers.epsilon_of(curve, delta, side)
    return _mapped(functools.partial(_steepest, curve, side=side), delta)


def _largest_gap(curve: PiecewiseLinear, epsilon: np.ndarray) -> np.ndarray:
    """Return max 1 - beta - e^epsilon alpha over the vertices, in both orders; ``epsilon`` is a column."""
    largest = np.full(len(epsilon), -np.inf)
    with np.errstate(over="ignore", invalid="ignore"):
        slope = np.exp(epsilon)
        for alpha, beta in _sides(curve):
            # The products are a large array [num_rows, num_vertices], whose memory the gaps take over.
            products = np.where(alpha > 0, slope * alpha, 0.0)
            np.subtract(1.0 - beta, products, out=products)
            largest = np.maximum(largest, np.max(products, axis=1))
            del products
    return largest


def _steepest(curve: PiecewiseLinear, delta: np.ndarray, side: float) -> np.ndarray:
    """Return the smallest epsilon >= 0 at which no vertex asks for more than delta, rounded to the given side."""
    # A vertex asks for 1 - beta - e^epsilon alpha <= delta.
    largest = np.ones(len(delta))
    for alpha, beta in _sides(curve):
        rest = 1.0 - beta - delta + side * _SLACK
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            slope = np.where(rest > 0, rest / alpha, 0.0)
        largest = np.maximum(largest, np.max(slope, axis=1))

    # The logarithm is rounded, too.
    epsilon = np.log(largest)
    slack = _SLACK * (1.0 + np.minimum(epsilon, 1e3))
    moved = np.maximum(epsilon + side * slack, 0.0)
    return np.where(epsilon > 0, moved, 0.0)
