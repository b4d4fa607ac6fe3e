r"""The definition of a trade-off curve, and the functions that evaluate one.

For two laws N (null) and A (alternative) the trade-off function is f(alpha) = inf {1 - A(S) : N(S) <= alpha}, the least
type II error of a test with type I error at most alpha. A function is one iff it is convex, continuous, non-increasing
and below 1 - alpha. Everything here rests on two kernels of each curve, defined for every real epsilon:

    D(epsilon)  = sup_alpha (1 - f(alpha) - e^epsilon alpha)     = sup_S A(S) - e^epsilon N(S),
    D'(epsilon) = sup_alpha (1 - f^-1(alpha) - e^epsilon alpha)  = sup_S N(S) - e^epsilon A(S),

the privacy profiles of the two directions. D is the conjugate, f*(-e^epsilon) = D(epsilon) - 1, and f is recovered from
it: f(alpha) = sup_epsilon 1 - D(epsilon) - e^epsilon alpha. The curve is symmetric, f = f^-1, iff D = D'.

*Pytrees.* A curve is a frozen dataclass whose parameters are leaves: it can be passed to, returned from and mapped over
by jax.jit, jax.vmap and jax.grad. Concrete parameters are checked when a curve is made; traced ones cannot be, and give
NaN where they are out of range. Rebuilding a curve from leaves checks nothing: JAX puts all sorts of things there.

*Precision.* As everywhere in this package the computation is in float64 whatever jax's x64 flag is; eager results are
NumPy float64, and under an outer trace without x64 the result is float32, rounded to nearest unless the curve says
that it is a lower or an upper bound.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import xla
from gdpjax._core.arguments import check_array, check_keywords
from gdpjax._core.checks import UNIT, Domain, check, is_traced
from gdpjax._core.precision import as_float64, in_float64
from gdpjax._core.roots import bisect, middle
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, Floats, Numbers

_NUM_BISECTIONS = 64
# The search over alpha runs in a scale where alpha = e^t / 2 for t < 0 and alpha = 1 - e^-t / 2 for t >= 0.
_LOWEST_SCALED_ALPHA = -745.0
_HIGHEST_SCALED_ALPHA = 40.0


def curve_function(**domains: Domain) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate ``body(curve, *numbers)`` with the checks and the precision policy of the module docstring."""

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(body)
        curve_name = next(iter(signature.parameters))
        compiled = xla.jit(body)

        @functools.wraps(body)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            # Check the curve and the numbers.
            arguments = signature.bind(*args, **kwargs).arguments
            curve = check_curve(curve_name, arguments[curve_name])
            numbers = {}
            for name, domain in domains.items():
                check(name, arguments[name], domain)
                numbers[name] = arguments[name]

            # What is traced may be out of range; then the result is NaN.
            leaves, structure = jax.tree.flatten(curve)

            def body_of(*arrays: Any) -> Array:
                wide = [as_float64(array) for array in arrays]
                wide_curve = jax.tree.unflatten(structure, wide[: len(leaves)])
                wide_numbers = dict(zip(numbers, wide[len(leaves) :], strict=True))
                result = compiled(wide_curve, **wide_numbers)
                valid = wide_curve.valid() if is_traced(curve) else True
                for name, domain in domains.items():
                    if is_traced(numbers[name]):
                        valid = valid & domain.contains(wide_numbers[name])
                return result if valid is True else jnp.where(valid, result, jnp.nan)

            broadcast = len(leaves) == len(curve.shapes())
            return in_float64(body_of, [*leaves, *numbers.values()], curve.rounding, broadcast)

        return wrapper

    return decorate


@curve_function(alpha=UNIT)
def _value(curve: "Curve", alpha: Array) -> Array:
    return jnp.clip(curve.value(alpha), 0.0, 1.0 - alpha)


@curve_function(alpha=UNIT)
def _slope(curve: "Curve", alpha: Array) -> Array:
    return curve.derivative(alpha)


class Curve:
    """Abstract base of all trade-off curves.

    Call a curve, ``f(alpha)``, for the least type II error, and `slope` for its derivative. The other methods are
    kernels: they take and return float64 JAX arrays, check nothing, and are used by the operators of this package.
    """

    rounding = "nearest"
    domains: ClassVar[dict[str, Domain]] = {}
    """The parameters that broadcast against alpha, and their ranges."""

    def __call__(self, alpha: Numbers) -> Floats:
        """Return the least type II error of a test with type I error at most ``alpha`` in [0, 1].

        The result has the curve's standing: exact, or a bound.
        """
        return _value(self, alpha)

    def slope(self, alpha: Numbers) -> Floats:
        """Return f'(alpha) <= 0: a one-sided derivative at a kink, -inf where the curve is vertical."""
        return _slope(self, alpha)

    def shapes(self) -> dict[str, Any]:
        """Return the parameters that broadcast against alpha, by name: those of an inner ``curve``, and its own."""
        inner = getattr(self, "curve", None)
        parameters = {} if inner is None else inner.shapes()
        return parameters | {name: getattr(self, name) for name in self.domains}

    def valid(self) -> Array:
        """Return whether traced parameters are in range."""
        inner = getattr(self, "curve", None)
        valid = jnp.asarray(True) if inner is None else inner.valid()
        for name, domain in self.domains.items():
            valid = valid & domain.contains(getattr(self, name))
        return valid

    def is_symmetric(self) -> bool:
        """Return whether f equals its inverse; ValueError where that depends on traced numbers."""
        return True

    def value(self, alpha: Array) -> Array:
        """Return f(alpha)."""
        raise NotImplementedError

    def derivative(self, alpha: Array) -> Array:
        """Return f'(alpha)."""
        raise NotImplementedError

    def profile(self, epsilon: Array) -> Array:
        """Return D(epsilon) for every real epsilon; by default it is found from values and slopes."""
        return profile_by_search(self, epsilon)

    def inverse_profile(self, epsilon: Array) -> Array:
        """Return D'(epsilon) for every real epsilon; it equals `profile` for symmetric curves."""
        return self.profile(epsilon)

    def fixed_point(self) -> Array:
        """Return the alpha with f(alpha) = alpha of a symmetric curve.

        The tangent there has slope -1, so it is (1 - D(0)) / 2.
        """
        return 0.5 * (1.0 - self.profile(jnp.zeros(())))

    def inverse(self) -> "Curve":
        """Return the curve f^-1(alpha) = inf {t : f(t) <= alpha}, of null and alternative exchanged; exact.

        Reference: Dong, Roth and Su, arXiv:1905.02383, Lemma A.2.

        >>> from gdpjax.tradeoff import Gaussian, subsample
        >>> print(f"{subsample(Gaussian(2.0), 0.5).one_direction.inverse()(0.5):.6f}")
        0.158655
        """
        return self

    def __post_init__(self) -> None:
        """Make arrays of lists, then check the concrete parameters; ValueError otherwise."""
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = getattr(self, field.name)
            if isinstance(value, list) and not is_traced(value):
                numbers = np.asarray(check_array(field.name, value), np.float64)
                object.__setattr__(self, field.name, numbers)
        self.check()

    def check(self) -> None:
        """Raise ValueError unless concrete parameters are in range."""
        for name, domain in self.domains.items():
            check(name, getattr(self, name), domain)

    def replaced(self, **changes: Any) -> Self:
        """Return a copy with other parameters, unchecked."""
        names = [field.name for field in dataclasses.fields(self)]  # pyright: ignore[reportArgumentType]
        check_keywords("replaced", changes, names)
        curve = object.__new__(type(self))
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            value = changes.get(field.name, getattr(self, field.name))
            object.__setattr__(curve, field.name, value)
        return curve


def check_curve(name: str, value: Any) -> Curve:
    """Return ``value`` if it is a curve, or the curve of an `ExactCurve`; else raise ValueError."""
    if isinstance(value, Curve):
        return value
    curve = getattr(value, "exact", value)
    if not isinstance(curve, Curve):
        raise ValueError(
            f"{name} must be a trade-off curve such as Gaussian(1.0), known exactly, got {shown(value)}; a certified "
            "curve has methods of its own, such as curve.tpr(alpha)"
        )
    return curve


def check_symmetric(name: str, curve: Curve, what: str) -> Curve:
    """Return ``curve`` if it is symmetric; else raise ValueError with what needs that."""
    curve = check_curve(name, curve)
    if not curve.is_symmetric():
        raise ValueError(f"{what} needs a symmetric curve, got {type(curve).__name__}; use symmetrize({name}) first")
    return curve


def from_positive(profile: Callable[[Array], Array], epsilon: Array) -> Array:
    """Return D on the whole line from D on [0, inf), for a symmetric curve: D(-e) = 1 - e^-e (1 - D(e))."""
    # This is the absolute value, but the derivative of jnp.abs at 0 would be 0.
    size = jnp.where(epsilon >= 0, epsilon, -epsilon)
    right = profile(size)
    left = 1.0 - jnp.exp(-size) * (1.0 - right)
    return jnp.where(epsilon >= 0, right, left)


def last_point(condition: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """Return the last point in [low, high] where a bisection sees ``condition`` hold.

    The condition holds at ``low`` and fails from some point on.
    """
    low = as_float64(low)
    high = as_float64(high)
    shape_of_condition = jax.eval_shape(condition, low).shape
    shape = jnp.broadcast_shapes(low.shape, high.shape, shape_of_condition)
    holds, _ = bisect(
        condition,
        jnp.broadcast_to(low, shape),
        jnp.broadcast_to(high, shape),
        midpoint=middle,
        num_iterations=_NUM_BISECTIONS,
    )
    return holds


def profile_by_search(curve: Curve, epsilon: Array) -> Array:
    """Return sup_alpha 1 - f(alpha) - e^epsilon alpha by searching the alpha with f'(alpha) = -e^epsilon.

    The function of alpha is concave. The search runs over the logarithm of alpha below 1/2 and of 1 - alpha above.
    An imprecise maximiser still gives a value that an actual test attains, and the derivative follows from the envelope
    theorem: d D / d epsilon = -e^epsilon alpha.
    """
    frozen_curve, frozen_epsilon = jax.lax.stop_gradient((curve, epsilon))

    def is_steep(scaled_alpha: Array) -> Array:
        slope = frozen_curve.derivative(_unscaled(scaled_alpha))
        return slope <= -jnp.exp(frozen_epsilon)

    low = jnp.asarray(_LOWEST_SCALED_ALPHA)
    high = jnp.asarray(_HIGHEST_SCALED_ALPHA)
    scaled_alpha = last_point(is_steep, low, high)

    # The maximum may also be at one of the two ends.
    at_zero = jnp.zeros_like(scaled_alpha)
    at_one = jnp.ones_like(scaled_alpha)
    candidates = jnp.stack(jnp.broadcast_arrays(at_zero, _unscaled(scaled_alpha), at_one))
    values = 1.0 - curve.value(candidates) - jnp.exp(epsilon) * candidates
    return jnp.max(values, axis=0)


def _unscaled(scaled_alpha: Array) -> Array:
    """Return alpha from the number that `profile_by_search` searches."""
    below_half = 0.5 * jnp.exp(scaled_alpha)
    above_half = 1.0 - 0.5 * jnp.exp(-scaled_alpha)
    return jnp.where(scaled_alpha < 0, below_half, above_half)
