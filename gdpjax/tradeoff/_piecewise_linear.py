"""Piecewise-linear trade-off curves: pairs of laws with finitely many likelihood ratios.

A convex polygon with vertices (alpha_j, beta_j) is the curve of a discrete pair: the segment from vertex j to j + 1 is
an outcome with null probability n = alpha_{j+1} - alpha_j and alternative probability a = beta_j - beta_{j+1}, rejected
in order of a / n. What is missing of the alternative, 1 - beta_0, has probability 0 under the null.
"""

import dataclasses

import jax.numpy as jnp
import numpy as np
from jaxtyping import Real

from gdpjax._core.arguments import check_choice
from gdpjax._core.checks import UNIT, check, is_traced
from gdpjax._core.types import Array, Floats, Numbers, pytree_dataclass
from gdpjax.tradeoff._abstract import Curve

_ROUNDING = 1e-12
"""How far rounded vertices may be from convex and from below the diagonal."""
_SYMMETRY = 1e-10
"""How far a curve may be from its mirror image, in each coordinate."""
_ONE_CURVE_AT_A_NUMBER = "(n),(n),()->()"
"""The shapes of alpha, beta and a number, for `jnp.vectorize`."""


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

    alpha: Real[Array, " points"]
    beta: Real[Array, " points"]
    rounding: str = dataclasses.field(default="nearest", metadata={"static": True})

    @classmethod
    def from_probabilities(
        cls, null: Real[Array, " outcomes"], alternative: Real[Array, " outcomes"]
    ) -> "PiecewiseLinear":
        """Return the exact trade-off curve between two discrete laws.

        Formula: the lower hull of (N(S), 1 - A(S)) over the sets S that collect outcomes by decreasing ratio A / N
        (Neyman and Pearson).

        A post-processing of the outcomes (a row-stochastic matrix applied to both laws) can only raise the curve.

        Args:
            null: probabilities of the outcomes under the null hypothesis, shape [n], summing to 1.
            alternative: those under the alternative, shape [n].

        Returns:
            A curve; exact up to rounding, of beta near 1 to 1e-16: it says nothing about smaller delta.

        Raises:
            ValueError: not probabilities, unequal shapes, or a sum off 1 by more than 1e-9.

        Reference: Dong, Roth and Su, arXiv:1905.02383, Definition 2.1 and Lemma 2.9.

        >>> print(PiecewiseLinear.from_probabilities([0.5, 0.5], [0.25, 0.75])(0.25))
        0.625
        """
        null = _checked_law("null", null)
        alternative = _checked_law("alternative", alternative)

        # Possible outcomes, by decreasing ratio of the two probabilities.
        is_possible = (null > 0) | (alternative > 0)
        null = null[is_possible] / null.sum()
        alternative = alternative[is_possible] / alternative.sum()
        order = np.argsort(np.arctan2(null, alternative), kind="stable")
        null = null[order]
        alternative = alternative[order]

        # The errors of the tests that reject the first outcomes.
        alpha = np.append(0.0, np.minimum(np.cumsum(null), 1.0))
        remaining = np.cumsum(alternative[::-1])[::-1]
        beta = np.append(remaining, 0.0)
        return from_vertices(alpha, np.minimum(beta, 1.0))

    def check(self) -> None:
        check_choice("rounding", self.rounding, ("nearest", "down", "up"))
        if is_traced((self.alpha, self.beta)):
            return
        check("alpha", self.alpha, UNIT)
        check("beta", self.beta, UNIT)
        alpha = np.asarray(self.alpha, np.float64)
        beta = np.array(self.beta, np.float64)
        if alpha.shape != beta.shape or alpha.ndim < 1 or alpha.shape[-1] < 2:
            raise ValueError(
                "alpha and beta must be arrays of equal shape with at least two points, "
                f"got shapes {alpha.shape} and {beta.shape}"
            )
        _check_points(alpha, beta)
        # A remainder of rounding at the end would be missing from the alternative's mass.
        beta[..., -1] = 0.0
        object.__setattr__(self, "alpha", alpha)
        object.__setattr__(self, "beta", beta)

    def is_symmetric(self) -> bool:
        if np.ndim(self.alpha) != 1:
            raise ValueError("whether curves are symmetric is decided one by one; index the batch of curves first")

        # The mirror image must lie between the curve moved towards the origin and the curve moved away from it.
        mirror = self.inverse()
        points = np.union1d(self.alpha, mirror.alpha)
        values = np.interp(points, mirror.alpha, mirror.beta)
        to_the_right = np.minimum(points + _SYMMETRY, 1.0)
        lower = np.interp(to_the_right, self.alpha, self.beta) - _SYMMETRY
        to_the_left = np.maximum(points - _SYMMETRY, 0.0)
        upper = np.interp(to_the_left, self.alpha, self.beta) + _SYMMETRY
        upper = np.where(points >= _SYMMETRY, upper, 1.0)
        is_between = (lower <= values) & (values <= upper)
        return bool(np.all(is_between))

    def __call__(self, alpha: Numbers) -> Floats:
        """Return f(alpha), computed on the host where nothing is traced: each number of points would compile anew."""
        if is_traced((self, alpha)) or np.ndim(self.alpha) != 1:
            return super().__call__(alpha)
        check("alpha", alpha, UNIT)
        at = np.asarray(alpha, np.float64)
        x = np.asarray(self.alpha, np.float64)
        y = np.asarray(self.beta, np.float64)

        # Interpolate between the two vertices around each number, as `_interpolate` does.
        i = np.searchsorted(x, at, side="right") - 1
        i = np.clip(i, 0, x.size - 2)
        weight_of_left = x[i + 1] - at
        weight_of_right = at - x[i]
        beta = (y[i] * weight_of_left + y[i + 1] * weight_of_right) / (x[i + 1] - x[i])
        return np.clip(beta, 0.0, 1.0 - at)[()]

    def value(self, alpha: Array) -> Array:
        interpolate = jnp.vectorize(_interpolate, signature=_ONE_CURVE_AT_A_NUMBER)
        return interpolate(self.alpha, self.beta, alpha)

    def derivative(self, alpha: Array) -> Array:
        slope = jnp.vectorize(_segment_slope, signature=_ONE_CURVE_AT_A_NUMBER)
        return slope(self.alpha, self.beta, alpha)

    def profile(self, epsilon: Array) -> Array:
        largest_gap = jnp.vectorize(_largest_gap, signature=_ONE_CURVE_AT_A_NUMBER)
        return largest_gap(self.alpha, self.beta, epsilon)

    def inverse_profile(self, epsilon: Array) -> Array:
        largest_gap = jnp.vectorize(_largest_gap, signature=_ONE_CURVE_AT_A_NUMBER)
        of_vertices = largest_gap(self.beta, self.alpha, epsilon)
        # The inverse ends at (1, 0), whatever f(0) is.
        at_end = -jnp.expm1(epsilon)
        return jnp.maximum(of_vertices, at_end)

    def inverse(self) -> "PiecewiseLinear":
        alpha = np.asarray(self.beta, np.float64)[::-1]
        beta = np.asarray(self.alpha, np.float64)[::-1]
        # Only the leftmost point of a flat piece of f counts.
        is_leftmost = np.append(np.diff(alpha) > 0, True)
        alpha = alpha[is_leftmost]
        beta = beta[is_leftmost]
        # Where f(0) < 1 the inverse is 0 from f(0) on.
        if alpha[-1] < 1.0:
            alpha = np.append(alpha, 1.0)
            beta = np.append(beta, 0.0)
        return PiecewiseLinear(alpha, beta, self.rounding)


def _check_points(alpha: np.ndarray, beta: np.ndarray) -> None:
    """Raise ValueError unless the points are those of a trade-off function; arrays of shape [..., n]."""
    is_wrong_end = np.zeros_like(alpha, bool)
    is_wrong_end[..., 0] = alpha[..., 0] != 0
    is_wrong_end[..., -1] = alpha[..., -1] != 1
    _refuse(alpha, beta, is_wrong_end, 0, "given from alpha = 0 to alpha = 1")

    width = np.diff(alpha)
    _refuse(alpha, beta, width <= 0, 1, "given at strictly increasing alpha")
    _refuse(alpha, beta, np.diff(beta) > 0, 1, "non-increasing")
    _refuse(alpha, beta, beta > 1.0 - alpha + _ROUNDING, 0, "at most 1 - alpha")

    # The chord between the two neighbours of each inner point.
    weighted_left = width[..., 1:] * beta[..., :-2]
    weighted_right = width[..., :-1] * beta[..., 2:]
    chord = (weighted_left + weighted_right) / (alpha[..., 2:] - alpha[..., :-2])
    _refuse(alpha, beta, beta[..., 1:-1] > chord + _ROUNDING, 1, "convex")


def _refuse(alpha: np.ndarray, beta: np.ndarray, is_bad: np.ndarray, offset: int, requirement: str) -> None:
    """Raise ValueError if a point is bad, naming the first one; ``is_bad`` begins at the point ``offset``."""
    if not is_bad.any():
        return
    first = [int(i) for i in np.argwhere(is_bad)[0]]
    first[-1] += offset
    index = tuple(first)
    raise ValueError(
        f"a trade-off curve must be {requirement}; the first offending point is "
        f"alpha = {alpha[index]}, beta = {beta[index]}, at index {index}"
    )


def _segment(alpha: Array, at: Array) -> Array:
    """Return the index of the vertex to the left of a number."""
    i = jnp.searchsorted(alpha, at, side="right") - 1
    return jnp.clip(i, 0, alpha.shape[0] - 2)


def _interpolate(alpha: Array, beta: Array, at: Array) -> Array:
    i = _segment(alpha, at)
    # Both terms are nonnegative, so that small values keep their relative accuracy.
    left = beta[i] * (alpha[i + 1] - at)
    right = beta[i + 1] * (at - alpha[i])
    return (left + right) / (alpha[i + 1] - alpha[i])


def _segment_slope(alpha: Array, beta: Array, at: Array) -> Array:
    i = _segment(alpha, at)
    fall = beta[i] - beta[i + 1]
    return -fall / (alpha[i + 1] - alpha[i])


def _largest_gap(alpha: Array, beta: Array, epsilon: Array) -> Array:
    """Return max_j 1 - beta_j - e^epsilon alpha_j, or 0 if that is negative."""
    product = jnp.where(alpha > 0, jnp.exp(epsilon) * alpha, 0.0)
    gaps = 1.0 - beta - product
    return jnp.max(gaps, initial=0.0)


def lower_hull(alpha: np.ndarray, beta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices of the lower convex hull of points, by increasing alpha (Andrew's chain)."""
    order = np.lexsort((beta, alpha))
    x = alpha[order]
    y = beta[order]
    chain: list[int] = []
    for i in range(len(x)):
        if chain and x[i] == x[chain[-1]]:
            continue
        # The last point is not a vertex if it is above the line from the one before it to this one.
        while len(chain) >= 2:
            a = chain[-2]
            b = chain[-1]
            is_below = (y[a] - y[b]) * (x[i] - x[b]) > (y[b] - y[i]) * (x[b] - x[a])
            if is_below:
                break
            chain.pop()
        chain.append(i)
    return x[chain], y[chain]


def from_vertices(alpha: np.ndarray, beta: np.ndarray, rounding: str = "nearest") -> PiecewiseLinear:
    """Return the largest curve below given points, some of which may be redundant; (1, 0) is added."""
    x, y = lower_hull(np.append(alpha, 1.0), np.append(beta, 0.0))
    y = np.minimum.accumulate(y)
    y = np.minimum(y, 1.0 - x)
    return PiecewiseLinear(x, y, rounding)


def _checked_law(name: str, law: Array) -> np.ndarray:
    """Return concrete probabilities as one vector; else raise ValueError."""
    check(name, law, UNIT)
    law = np.asarray(law, np.float64)
    if law.ndim != 1 or abs(law.sum() - 1.0) > 1e-9:
        raise ValueError(
            f"{name} must be one vector of probabilities that sum to 1, got shape {law.shape} and sum {law.sum()}"
        )
    return law
