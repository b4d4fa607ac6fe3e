r"""Curves made of other curves: mixtures and their inverses, subsampling, groups, convex hulls.

*Subsampling.* A person takes part with probability p: the alternative becomes the mixture p A + (1 - p) N, whose curve
against N is f_p = p f + (1 - p) Id (`Mixture`, the direction in which the person is removed). The other direction has
the inverse of f_p, and both together, for symmetric f, have

    C_p(f) = min(f_p, f_p^-1)** = f_p on [0, x*],  x* + f_p(x*) - x on [x*, f_p(x*)],  f_p^-1 on [f_p(x*), 1],

x* = f(x*). Profiles, by substituting in the definition: with r = (e^e - 1 + p) / p,

    D_p(e) = p D(log r) if r > 0, else 1 - e^e;      D_p'(e) = c D'(log(p e^e / c)) if c = 1 - (1 - p) e^e > 0, else 0,

and D of C_p(f) at e >= 0 is D_p(e).

*Groups.* 1 - (1 - f)^{o k}, whose slope follows from the chain rule.

*Convex hulls.* The conjugate of min_i f_i is the maximum of the conjugates, so (min_i f_i)** has the profile max_i D_i,
and its value is found by searching the slope whose tangent touches at alpha.

Inverse functions are found by bisection; one Newton step at the end, with everything but the unknown differentiated,
gives the derivatives of the implicit function theorem (first derivatives only).
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from gdpjax._core.checks import UNIT, check
from gdpjax._core.pytrees import pytree_dataclass
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve, from_positive, last_point


def _solve(curve: Curve, beta: Array, high: Array) -> Array:
    """inf {t in [0, high] : f(t) <= beta}, differentiable in the curve and in beta."""
    frozen, goal, end = jax.lax.stop_gradient((curve, beta, high))
    start = last_point(lambda t: frozen.value(t) > goal, jnp.zeros(()), end)
    slope = jax.lax.stop_gradient(frozen.derivative(start))
    steep = (slope < 0) & (slope > -jnp.inf)
    step = (beta - curve.value(start)) / jnp.where(steep, slope, 1.0)
    moved = jnp.clip(start + jnp.where(steep, step, 0.0), 0.0, end)
    return jnp.where(goal >= frozen.value(jnp.zeros(())), 0.0, moved)


@pytree_dataclass
class Inverse(Curve):
    """f^-1(alpha) = inf {t : f(t) <= alpha}: null and alternative exchanged."""

    curve: Curve

    def is_symmetric(self) -> bool:
        return self.curve.is_symmetric()

    def shapes(self) -> dict:
        return self.curve.shapes()

    def valid(self) -> Array:
        return self.curve.valid()

    def value(self, alpha: Array) -> Array:
        return _solve(self.curve, alpha, jnp.ones(()))

    def derivative(self, alpha: Array) -> Array:
        flat = alpha >= self.curve.value(jnp.zeros(()))
        return jnp.where(flat, 0.0, 1.0 / self.curve.derivative(self.value(alpha)))

    def profile(self, epsilon: Array) -> Array:
        return self.curve.inverse_profile(epsilon)

    def inverse_profile(self, epsilon: Array) -> Array:
        return self.curve.profile(epsilon)

    def inverse(self) -> Curve:
        return self.curve


@pytree_dataclass
class Mixture(Curve):
    """f_p = p f + (1 - p) Id."""

    curve: Curve
    sampling_prob: Array

    def check(self) -> None:
        check("sampling_prob", self.sampling_prob, UNIT)

    def is_symmetric(self) -> bool:
        return False

    def shapes(self) -> dict:
        return {**self.curve.shapes(), "sampling_prob": self.sampling_prob}

    def valid(self) -> Array:
        return self.curve.valid() & UNIT.contains(self.sampling_prob)

    def value(self, alpha: Array) -> Array:
        return self.sampling_prob * self.curve.value(alpha) + (1.0 - self.sampling_prob) * (1.0 - alpha)

    def derivative(self, alpha: Array) -> Array:
        inner = self.curve.derivative(alpha)
        weighted = jnp.where(self.sampling_prob > 0, self.sampling_prob * inner, 0.0)
        return weighted - (1.0 - self.sampling_prob)

    def profile(self, epsilon: Array) -> Array:
        p = self.sampling_prob
        safe = jnp.where(p > 0, p, 1.0)
        excess = jnp.expm1(epsilon) / safe  # r - 1
        inside = (p > 0) & (excess > -1.0)
        log_r = jnp.log1p(jnp.where(inside, jnp.minimum(excess, 1e300), 0.0))
        return jnp.where(inside, p * self.curve.profile(log_r), jnp.maximum(0.0, -jnp.expm1(epsilon)))

    def inverse_profile(self, epsilon: Array) -> Array:
        p = self.sampling_prob
        # 1 - (1 - p) e^epsilon without cancellation: for p < 1/2 it is positive only where epsilon is small.
        growth = jnp.exp(jnp.minimum(epsilon, 709.0))
        c = jnp.where(p < 0.5, p * growth - jnp.expm1(jnp.minimum(epsilon, 709.0)), 1.0 - (1.0 - p) * growth)
        inside = (p > 0) & (c > 0)
        c = jnp.where(inside, c, 1.0)
        log_r = jnp.where(inside, jnp.log(jnp.where(p > 0, p, 1.0)) + epsilon - jnp.log(c), 0.0)
        at_zero = jnp.maximum(0.0, -jnp.expm1(epsilon))
        return jnp.where(inside, c * self.curve.inverse_profile(log_r), jnp.where(p > 0, 0.0, at_zero))

    def inverse(self) -> Curve:
        return Inverse(self)


@pytree_dataclass
class Subsampled(Curve):
    """C_p(f) of a symmetric curve f."""

    curve: Curve
    sampling_prob: Array

    @property
    def one_direction(self) -> Mixture:
        """f_p, unchecked."""
        return Mixture(self.curve, 0.5).replaced(sampling_prob=self.sampling_prob)

    def check(self) -> None:
        check("sampling_prob", self.sampling_prob, UNIT)

    def shapes(self) -> dict:
        return self.one_direction.shapes()

    def valid(self) -> Array:
        return self.one_direction.valid()

    def value(self, alpha: Array) -> Array:
        mixture, left = self.one_direction, self.curve.fixed_point()
        right = mixture.value(left)
        inside = jnp.clip(alpha, right, 1.0)
        solved = _solve(mixture, jnp.where(alpha > right, inside, 1.0), left)
        middle = left + right - alpha
        return jnp.where(alpha < left, mixture.value(alpha), jnp.where(alpha > right, solved, middle))

    def derivative(self, alpha: Array) -> Array:
        mixture, left = self.one_direction, self.curve.fixed_point()
        right = mixture.value(left)
        solved = _solve(mixture, jnp.where(alpha > right, alpha, 1.0), left)
        beyond = 1.0 / mixture.derivative(solved)
        ends = jnp.where(alpha >= mixture.value(jnp.zeros(())), jnp.where(alpha < 1.0, 0.0, beyond), beyond)
        return jnp.where(alpha < left, mixture.derivative(alpha), jnp.where(alpha > right, ends, -1.0))

    def profile(self, epsilon: Array) -> Array:
        return from_positive(self.one_direction.profile, epsilon)

    def fixed_point(self) -> Array:
        left = self.curve.fixed_point()
        return 0.5 * (left + self.one_direction.value(left))


@pytree_dataclass
class Grouped(Curve):
    """1 - (1 - f)^{o k} of a symmetric curve f."""

    curve: Curve
    k: int = dataclasses.field(metadata={"static": True})

    def shapes(self) -> dict:
        return self.curve.shapes()

    def valid(self) -> Array:
        return self.curve.valid()

    def value(self, alpha: Array) -> Array:
        for _ in range(self.k):
            alpha = 1.0 - self.curve.value(alpha)
        return 1.0 - alpha

    def derivative(self, alpha: Array) -> Array:
        slope = -jnp.ones_like(alpha)
        for _ in range(self.k):
            slope = slope * -self.curve.derivative(alpha)
            alpha = 1.0 - self.curve.value(alpha)
        return slope


def _largest(profiles: list[Array]) -> Array:
    """The pointwise maximum. By pairs: where ``jnp.max`` is differentiated, the values are compared with their maximum,
    and a compiler may work one value out twice, to different last bits, and find it nowhere."""
    return functools.reduce(jnp.maximum, profiles)


@pytree_dataclass
class Hull(Curve):
    """(min_i f_i)**: the largest trade-off curve below several."""

    curves: tuple[Curve, ...]
    symmetric: bool = dataclasses.field(metadata={"static": True})

    def is_symmetric(self) -> bool:
        return self.symmetric

    def shapes(self) -> dict:
        return {f"{name}_{i}": value for i, curve in enumerate(self.curves) for name, value in curve.shapes().items()}

    def valid(self) -> Array:
        valid = jnp.asarray(True)
        for curve in self.curves:
            valid = valid & curve.valid()
        return valid

    def _touching(self, alpha: Array) -> Array:
        """The epsilon whose tangent touches the curve at alpha."""
        frozen, at = jax.lax.stop_gradient((self, alpha))

        def too_flat(epsilon: Array) -> Array:
            _, change = jax.jvp(frozen.profile, (epsilon,), (jnp.ones_like(epsilon),))
            return -change * jnp.exp(-epsilon) > at  # the tangent touches at a larger alpha

        wide = jnp.zeros(jnp.broadcast_shapes(at.shape, *(jnp.shape(leaf) for leaf in frozen.shapes().values())))
        # Slopes below e^-30 belong to beta < 1e-13, which 1 - D could not resolve.
        return last_point(too_flat, wide - 30.0, wide + 700.0)

    def value(self, alpha: Array) -> Array:
        epsilon = self._touching(alpha)
        beta = 1.0 - self.profile(epsilon) - jnp.exp(epsilon) * alpha
        return jnp.where(alpha < 1.0, jnp.maximum(beta, 0.0), 0.0)

    def derivative(self, alpha: Array) -> Array:
        return -jnp.exp(self._touching(alpha))

    def profile(self, epsilon: Array) -> Array:
        return _largest([curve.profile(epsilon) for curve in self.curves])

    def inverse_profile(self, epsilon: Array) -> Array:
        return _largest([curve.inverse_profile(epsilon) for curve in self.curves])

    def inverse(self) -> Curve:
        return self if self.symmetric else Inverse(self)
