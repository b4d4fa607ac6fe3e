"""Piecewise-linear trade-off curves: pairs of laws with finitely many likelihood ratios.

A convex polygon with vertices (alpha_j, beta_j) is the curve of a discrete pair: the segment from vertex j to j + 1 is
an outcome with null probability n = alpha_{j+1} - alpha_j and alternative probability a = beta_j - beta_{j+1}, rejected
in order of a / n. What is missing of the alternative, 1 - beta_0, has probability 0 under the null.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import UNIT, check, is_traced
from gdpjax._core.pytrees import pytree_dataclass
from gdpjax._core.shown import shown
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve

_ROUNDING = 1e-12  # how far rounded vertices may be from convex and from below the diagonal
_SYMMETRY = 1e-10  # how far a curve may be from its mirror image, in each coordinate


@pytree_dataclass
class PiecewiseLinear(Curve):
    """The curve through given points, linear in between.

    Args:
        alpha: type I errors, strictly increasing from 0 to 1, shape [n].
        beta: type II errors at ``alpha``: convex, non-increasing, at most 1 - alpha, 0 at the end; shape [n].
        rounding: static; "nearest", or "down" / "up" for a lower / upper bound, whose float32 values under a trace are
            rounded so. It says nothing about the points themselves.

    Returns:
        A curve, symmetric or not; exact for these points. For many curves at once, `jax.vmap` over its leaves.

    Raises:
        ValueError: not a trade-off function; the message names the first point that offends.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Proposition 2.2 (which functions are trade-off functions).

    >>> print(PiecewiseLinear([0.0, 0.2, 1.0], [0.9, 0.3, 0.0])(0.1))
    0.6
    """

    alpha: Array
    beta: Array
    rounding: str = dataclasses.field(default="nearest", metadata={"static": True})

    def check(self) -> None:
        if self.rounding not in ("nearest", "down", "up"):
            raise ValueError(f"rounding must be 'nearest', 'down' or 'up', got {shown(self.rounding)}")
        if is_traced((self.alpha, self.beta)):
            return
        check("alpha", self.alpha, UNIT)
        check("beta", self.beta, UNIT)
        for name in ("alpha", "beta"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), np.float64))
        if np.shape(self.alpha) != np.shape(self.beta) or np.ndim(self.alpha) < 1 or np.shape(self.alpha)[-1] < 2:
            raise ValueError(
                "alpha and beta must be arrays of equal shape with at least two points, "
                f"got shapes {np.shape(self.alpha)} and {np.shape(self.beta)}"
            )
        _check_points(np.asarray(self.alpha), np.asarray(self.beta))
        beta = np.array(self.beta)
        beta[..., -1] = 0.0  # what rounding left there would be missing from the alternative's mass
        object.__setattr__(self, "beta", beta)

    def is_symmetric(self) -> bool:
        if is_traced((self.alpha, self.beta)):
            raise ValueError(
                "whether a piecewise-linear curve is symmetric depends on its points, which are traced here; "
                "symmetrize it outside compiled code"
            )
        if np.ndim(self.alpha) != 1:
            raise ValueError("whether curves are symmetric is decided one by one; index the batch of curves first")
        mirror = self.inverse()
        points = np.union1d(self.alpha, mirror.alpha)
        values = np.interp(points, mirror.alpha, mirror.beta)
        lower = np.interp(np.minimum(points + _SYMMETRY, 1.0), self.alpha, self.beta) - _SYMMETRY
        left = points >= _SYMMETRY
        upper = np.where(left, np.interp(np.maximum(points - _SYMMETRY, 0.0), self.alpha, self.beta) + _SYMMETRY, 1.0)
        return bool(np.all((lower <= values) & (values <= upper)))

    def __call__(self, alpha: Array) -> Array:
        """f(alpha); on the host where nothing is traced, since each number of points would compile anew."""
        if is_traced((self, alpha)) or np.ndim(self.alpha) != 1:
            return super().__call__(alpha)
        check("alpha", alpha, UNIT)
        at = np.asarray(alpha, np.float64)
        x, y = np.asarray(self.alpha, np.float64), np.asarray(self.beta, np.float64)
        i = np.clip(np.searchsorted(x, at, side="right") - 1, 0, x.size - 2)
        beta = (y[i] * (x[i + 1] - at) + y[i + 1] * (at - x[i])) / (x[i + 1] - x[i])
        return np.clip(beta, 0.0, 1.0 - at)[()]

    def value(self, alpha: Array) -> Array:
        return jnp.vectorize(_interpolate, signature="(n),(n),()->()")(self.alpha, self.beta, alpha)

    def derivative(self, alpha: Array) -> Array:
        return jnp.vectorize(_segment_slope, signature="(n),(n),()->()")(self.alpha, self.beta, alpha)

    def profile(self, epsilon: Array) -> Array:
        return jnp.vectorize(_largest_gap, signature="(n),(n),()->()")(self.alpha, self.beta, epsilon)

    def inverse_profile(self, epsilon: Array) -> Array:
        beyond = jnp.vectorize(_largest_gap, signature="(n),(n),()->()")(self.beta, self.alpha, epsilon)
        return jnp.maximum(beyond, -jnp.expm1(epsilon))  # the inverse ends at (1, 0), whatever f(0) is

    def inverse(self) -> "PiecewiseLinear":
        if is_traced((self.alpha, self.beta)):
            raise ValueError(
                "the inverse of a piecewise-linear curve has points of its own: take it outside compiled code"
            )
        alpha, beta = np.asarray(self.beta, np.float64)[::-1], np.asarray(self.alpha, np.float64)[::-1]
        # Of the points of a flat piece of f the leftmost counts; where f(0) < 1 the inverse is 0 from there on.
        keep = np.append(np.diff(alpha) > 0, True)
        alpha, beta = alpha[keep], beta[keep]
        if alpha[-1] < 1.0:
            alpha, beta = np.append(alpha, 1.0), np.append(beta, 0.0)
        rounding = self.rounding
        return PiecewiseLinear(alpha, beta, rounding)


def _check_points(alpha: np.ndarray, beta: np.ndarray) -> None:
    def refuse(bad: np.ndarray, offset: int, what: str) -> None:
        if bad.any():
            at = tuple(int(i) for i in np.argwhere(bad)[0])
            at = (*at[:-1], at[-1] + offset)
            raise ValueError(
                f"a trade-off curve must be {what}; the first offending point is "
                f"alpha = {alpha[at]}, beta = {beta[at]}, at index {at}"
            )

    first, last = np.zeros_like(alpha, bool), np.zeros_like(alpha, bool)
    first[..., 0], last[..., -1] = alpha[..., 0] != 0, alpha[..., -1] != 1
    refuse(first | last, 0, "given from alpha = 0 to alpha = 1")
    refuse(np.diff(alpha) <= 0, 1, "given at strictly increasing alpha")
    refuse(np.diff(beta) > 0, 1, "non-increasing")
    refuse(beta > 1.0 - alpha + _ROUNDING, 0, "at most 1 - alpha")
    middle = (np.diff(alpha)[..., 1:] * beta[..., :-2] + np.diff(alpha)[..., :-1] * beta[..., 2:]) / (
        alpha[..., 2:] - alpha[..., :-2]
    )
    refuse(beta[..., 1:-1] > middle + _ROUNDING, 1, "convex")


def _segment(alpha: Array, at: Array) -> Array:
    return jnp.clip(jnp.searchsorted(alpha, at, side="right") - 1, 0, alpha.shape[0] - 2)


def _interpolate(alpha: Array, beta: Array, at: Array) -> Array:
    i = _segment(alpha, at)
    # Both terms are nonnegative, so that small values keep their relative accuracy.
    return (beta[i] * (alpha[i + 1] - at) + beta[i + 1] * (at - alpha[i])) / (alpha[i + 1] - alpha[i])


def _segment_slope(alpha: Array, beta: Array, at: Array) -> Array:
    i = _segment(alpha, at)
    return -(beta[i] - beta[i + 1]) / (alpha[i + 1] - alpha[i])


def _largest_gap(alpha: Array, beta: Array, epsilon: Array) -> Array:
    """max_j 1 - beta_j - e^epsilon alpha_j."""
    return jnp.max(1.0 - beta - jnp.where(alpha > 0, jnp.exp(epsilon) * alpha, 0.0), initial=0.0)


def lower_hull(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The vertices of the lower convex hull of points, by increasing alpha (Andrew's chain)."""
    order = np.lexsort((beta, alpha))
    x, y = alpha[order], beta[order]
    kept: list[int] = []
    for i in range(len(x)):
        if kept and x[i] == x[kept[-1]]:
            continue
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            if (y[a] - y[b]) * (x[i] - x[b]) > (y[b] - y[i]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return x[kept], y[kept]


def from_vertices(alpha: np.ndarray, beta: np.ndarray, rounding: str = "nearest") -> PiecewiseLinear:
    """The largest curve below given points, some of which may be redundant; (1, 0) is added."""
    x, y = lower_hull(np.append(alpha, 1.0), np.append(beta, 0.0))
    y = np.minimum(np.minimum.accumulate(y), 1.0 - x)
    return PiecewiseLinear(x, y, rounding)


def from_probabilities(null: Array, alternative: Array) -> PiecewiseLinear:
    """The exact trade-off curve between two discrete laws.

    Formula: the lower hull of (N(S), 1 - A(S)) over the sets S that collect outcomes by decreasing ratio A / N
    (Neyman and Pearson).

    A post-processing of the outcomes (a row-stochastic matrix applied to both laws) can only raise the curve.

    Args:
        null: probabilities of the outcomes under the null hypothesis, shape [n], summing to 1.
        alternative: those under the alternative, shape [n].

    Returns:
        A `PiecewiseLinear` curve; exact up to rounding, of beta near 1 to 1e-16: it says nothing about smaller delta.

    Raises:
        ValueError: not probabilities, unequal shapes, or a sum off 1 by more than 1e-9.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Definition 2.1 and Lemma 2.9.

    >>> print(from_probabilities([0.5, 0.5], [0.25, 0.75])(0.25))
    0.625
    """
    laws = []
    for name, law in (("null", null), ("alternative", alternative)):
        if is_traced(law):
            raise ValueError(f"{name} must be concrete: the outcomes are sorted on the host")
        check(name, law, UNIT)
        laws.append(np.asarray(law, np.float64))
        if laws[-1].ndim != 1 or abs(laws[-1].sum() - 1.0) > 1e-9:
            raise ValueError(
                f"{name} must be one vector of probabilities that sum to 1, "
                f"got shape {laws[-1].shape} and sum {laws[-1].sum()}"
            )
    n, a = laws
    if n.shape != a.shape:
        raise ValueError(f"null and alternative must have equal shapes, got {n.shape} and {a.shape}")
    seen = (n > 0) | (a > 0)
    n, a = n[seen] / n.sum(), a[seen] / a.sum()
    order = np.argsort(np.arctan2(n, a), kind="stable")
    n, a = n[order], a[order]
    alpha = np.append(0.0, np.minimum(np.cumsum(n), 1.0))
    beta = np.append(np.cumsum(a[::-1])[::-1], 0.0)
    return from_vertices(alpha, np.minimum(beta, 1.0))
