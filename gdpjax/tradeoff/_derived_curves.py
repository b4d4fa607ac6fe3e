r"""Curves made of other curves: mixtures and their inverses, subsampling, groups.

*Subsampling.* A person takes part with probability p: the alternative becomes the mixture p A + (1 - p) N, whose curve
against N is f_p = p f + (1 - p) Id (`Mixture`, the direction in which the person is removed). The other direction has
the inverse of f_p, and both together, for symmetric f, have

    C_p(f) = min(f_p, f_p^-1)** = f_p on [0, x*],  x* + f_p(x*) - x on [x*, f_p(x*)],  f_p^-1 on [f_p(x*), 1],

x* = f(x*). Profiles, by substituting in the definition: with r = (e^e - 1 + p) / p,

    D_p(e) = p D(log r) if r > 0, else 1 - e^e;      D_p'(e) = c D'(log(p e^e / c)) if c = 1 - (1 - p) e^e > 0, else 0,

and D of C_p(f) at e >= 0 is D_p(e).

*Groups.* 1 - (1 - f)^{o k}, whose slope follows from the chain rule.

Inverse functions are found by bisection; one Newton step at the end, with everything but the unknown differentiated,
gives the derivatives of the implicit function theorem (first derivatives only).
"""

import dataclasses
from typing import ClassVar

import jax
import jax.numpy as jnp

from gdpjax._core.checks import UNIT
from gdpjax._core.types import Array, Numbers, pytree_dataclass
from gdpjax.tradeoff._abstract import Curve, from_positive, last_point


def _solve(curve: Curve, beta: Array, high: Array) -> Array:
    """Return inf {alpha in [0, high] : f(alpha) <= beta}, differentiable in the curve and in beta."""
    frozen_curve, frozen_beta, end = jax.lax.stop_gradient((curve, beta, high))

    def is_above(alpha: Array) -> Array:
        return frozen_curve.value(alpha) > frozen_beta

    start = last_point(is_above, jnp.zeros(()), end)

    # One Newton step. Its derivative is that of the implicit function theorem.
    slope = jax.lax.stop_gradient(frozen_curve.derivative(start))
    is_regular = (slope < 0) & (slope > -jnp.inf)
    safe_slope = jnp.where(is_regular, slope, 1.0)
    step = (beta - curve.value(start)) / safe_slope
    step = jnp.where(is_regular, step, 0.0)
    alpha = jnp.clip(start + step, 0.0, end)

    # From f(0) on every alpha will do.
    value_at_zero = frozen_curve.value(jnp.zeros(()))
    return jnp.where(frozen_beta >= value_at_zero, 0.0, alpha)


@pytree_dataclass
class Inverse(Curve):
    """f^-1(alpha) = inf {t : f(t) <= alpha}: null and alternative exchanged."""

    curve: Curve

    def is_symmetric(self) -> bool:
        return self.curve.is_symmetric()

    def value(self, alpha: Array) -> Array:
        return _solve(self.curve, alpha, jnp.ones(()))

    def derivative(self, alpha: Array) -> Array:
        is_flat = alpha >= self.curve.value(jnp.zeros(()))
        slope_of_curve = self.curve.derivative(self.value(alpha))
        return jnp.where(is_flat, 0.0, 1.0 / slope_of_curve)

    def profile(self, epsilon: Array) -> Array:
        return self.curve.inverse_profile(epsilon)

    def inverse_profile(self, epsilon: Array) -> Array:
        return self.curve.profile(epsilon)

    def inverse(self) -> Curve:
        return self.curve


@pytree_dataclass
class Mixture(Curve):
    """f_p = p f + (1 - p) Id."""

    domains: ClassVar = {"sampling_prob": UNIT}
    curve: Curve
    sampling_prob: Numbers

    def is_symmetric(self) -> bool:
        return False

    def value(self, alpha: Array) -> Array:
        with_person = self.sampling_prob * self.curve.value(alpha)
        without_person = (1.0 - self.sampling_prob) * (1.0 - alpha)
        return with_person + without_person

    def derivative(self, alpha: Array) -> Array:
        with_person = self.sampling_prob * self.curve.derivative(alpha)
        # The slope of the curve may be -inf.
        with_person = jnp.where(self.sampling_prob > 0, with_person, 0.0)
        return with_person - (1.0 - self.sampling_prob)

    def profile(self, epsilon: Array) -> Array:
        # D_p(epsilon) = p D(log r); ``excess`` is r - 1 = (e^epsilon - 1) / p.
        p = self.sampling_prob
        safe_p = jnp.where(p > 0, p, 1.0)
        excess = jnp.expm1(epsilon) / safe_p
        inside = (p > 0) & (excess > -1.0)
        safe_excess = jnp.where(inside, jnp.minimum(excess, 1e300), 0.0)
        log_r = jnp.log1p(safe_excess)
        scaled = p * self.curve.profile(log_r)
        of_identity = jnp.maximum(0.0, -jnp.expm1(epsilon))
        return jnp.where(inside, scaled, of_identity)

    def inverse_profile(self, epsilon: Array) -> Array:
        # D_p'(epsilon) = c D'(log(p e^epsilon / c)) with c = 1 - (1 - p) e^epsilon. For p < 1/2 this is positive only
        # where epsilon is small, and the first formula for c has no cancellation there.
        p = self.sampling_prob
        capped = jnp.minimum(epsilon, 709.0)
        growth = jnp.exp(capped)
        for_small_p = p * growth - jnp.expm1(capped)
        for_large_p = 1.0 - (1.0 - p) * growth
        c = jnp.where(p < 0.5, for_small_p, for_large_p)

        inside = (p > 0) & (c > 0)
        c = jnp.where(inside, c, 1.0)
        safe_p = jnp.where(p > 0, p, 1.0)
        log_ratio = jnp.log(safe_p) + epsilon - jnp.log(c)
        log_ratio = jnp.where(inside, log_ratio, 0.0)
        scaled = c * self.curve.inverse_profile(log_ratio)

        # With p = 0 it is the identity.
        of_identity = jnp.maximum(0.0, -jnp.expm1(epsilon))
        outside = jnp.where(p > 0, 0.0, of_identity)
        return jnp.where(inside, scaled, outside)

    def inverse(self) -> Curve:
        return Inverse(self)


@pytree_dataclass
class Subsampled(Curve):
    """C_p(f) of a symmetric curve f."""

    domains: ClassVar = {"sampling_prob": UNIT}
    curve: Curve
    sampling_prob: Numbers

    @property
    def one_direction(self) -> Mixture:
        """The curve f_p of the direction in which the person is removed; the other one is its inverse."""
        any_mixture = Mixture(self.curve, 0.5)
        return any_mixture.replaced(sampling_prob=self.sampling_prob)

    def value(self, alpha: Array) -> Array:
        # The straight piece runs from left to right.
        mixture = self.one_direction
        left = self.curve.fixed_point()
        right = mixture.value(left)

        # The value of f_p^-1 beyond the straight piece.
        is_beyond = alpha > right
        clipped = jnp.clip(alpha, right, 1.0)
        beyond = _solve(mixture, jnp.where(is_beyond, clipped, 1.0), left)

        straight = left + right - alpha
        not_left = jnp.where(is_beyond, beyond, straight)
        return jnp.where(alpha < left, mixture.value(alpha), not_left)

    def derivative(self, alpha: Array) -> Array:
        # The straight piece runs from left to right.
        mixture = self.one_direction
        left = self.curve.fixed_point()
        right = mixture.value(left)

        # The slope of f_p^-1 beyond the straight piece, which is 0 where f_p^-1 is.
        is_beyond = alpha > right
        solved = _solve(mixture, jnp.where(is_beyond, alpha, 1.0), left)
        beyond = 1.0 / mixture.derivative(solved)
        where_zero = jnp.where(alpha < 1.0, 0.0, beyond)
        value_at_zero = mixture.value(jnp.zeros(()))
        beyond = jnp.where(alpha >= value_at_zero, where_zero, beyond)

        not_left = jnp.where(is_beyond, beyond, -1.0)
        return jnp.where(alpha < left, mixture.derivative(alpha), not_left)

    def profile(self, epsilon: Array) -> Array:
        return from_positive(self.one_direction.profile, epsilon)

    def fixed_point(self) -> Array:
        # The middle of the straight piece.
        left = self.curve.fixed_point()
        right = self.one_direction.value(left)
        return 0.5 * (left + right)


@pytree_dataclass
class Grouped(Curve):
    """1 - (1 - f)^{o k} of a symmetric curve f."""

    curve: Curve
    k: int = dataclasses.field(metadata={"static": True})

    def value(self, alpha: Array) -> Array:
        for _ in range(self.k):
            alpha = 1.0 - self.curve.value(alpha)
        return 1.0 - alpha

    def derivative(self, alpha: Array) -> Array:
        # The chain rule.
        slope = -jnp.ones_like(alpha)
        for _ in range(self.k):
            factor = -self.curve.derivative(alpha)
            slope = slope * factor
            alpha = 1.0 - self.curve.value(alpha)
        return slope
