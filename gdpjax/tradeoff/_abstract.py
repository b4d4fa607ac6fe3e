r"""What a trade-off curve is, and how one is evaluated.

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
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import xla
from gdpjax._core.arguments import check_array
from gdpjax._core.checks import UNIT, Domain, check, check_broadcast, is_traced
from gdpjax._core.precision import narrow
from gdpjax._core.roots import bisect, middle
from gdpjax._core.shown import shown
from gdpjax._core.types import Array

_NUM_BISECTIONS = 64


def curve_function(**domains: Domain) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate ``body(curve, *numbers)`` with the checks and the precision policy of the module docstring."""

    def decorate(body: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(body)
        first = next(iter(signature.parameters))
        compiled = xla.jit(body)

        @functools.wraps(body)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs).arguments
            curve, numbers = check_curve(first, bound[first]), {name: bound[name] for name in domains}
            for name, value in numbers.items():
                check(name, value, domains[name])
            check_broadcast(**numbers, **{f"the curve's {name}": value for name, value in curve.shapes().items()})
            wide_outside = jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]
            with jax.enable_x64(True):
                wide_curve = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), curve)
                wide = {name: jnp.asarray(value, jnp.float64) for name, value in numbers.items()}
                result = compiled(wide_curve, **wide)
                if not is_traced(result):
                    return np.asarray(result)[()]
                valid = wide_curve.valid() if is_traced(curve) else True
                for name, domain in domains.items():
                    if is_traced(numbers[name]):
                        valid = valid & domain.contains(wide[name])
                result = jnp.where(valid, result, jnp.nan)
                return result if wide_outside else narrow(result, curve.rounding)

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

    def __call__(self, alpha: Array) -> Array:
        """Least type II error of a test with type I error at most ``alpha`` in [0, 1]; of the curve's standing."""
        return _value(self, alpha)

    def slope(self, alpha: Array) -> Array:
        """The derivative f'(alpha) <= 0; a one-sided one where the curve has a kink, -inf where it is vertical."""
        return _slope(self, alpha)

    def shapes(self) -> dict[str, Any]:
        """The parameters that broadcast against alpha, by name."""
        return {}

    def valid(self) -> Array:
        """Whether the parameters are in range, where they are traced."""
        return jnp.asarray(True)

    def is_symmetric(self) -> bool:
        """Whether f equals its inverse; ValueError where that depends on traced numbers."""
        return True

    def value(self, alpha: Array) -> Array:
        """f(alpha)."""
        raise NotImplementedError

    def derivative(self, alpha: Array) -> Array:
        """f'(alpha)."""
        raise NotImplementedError

    def profile(self, epsilon: Array) -> Array:
        """D(epsilon) for every real epsilon; by default from values and slopes."""
        return profile_by_search(self, epsilon)

    def inverse_profile(self, epsilon: Array) -> Array:
        """D'(epsilon) for every real epsilon; equal to `profile` for symmetric curves."""
        return self.profile(epsilon)

    def fixed_point(self) -> Array:
        """The alpha with f(alpha) = alpha of a symmetric curve, where the tangent of slope -1 is: (1 - D(0)) / 2."""
        return 0.5 * (1.0 - self.profile(jnp.zeros(())))

    def inverse(self) -> "Curve":
        """f^-1(alpha) = inf {t : f(t) <= alpha}."""
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

    def replaced(self, **changes: Any) -> Self:
        """A copy with other parameters, unchecked."""
        curve = object.__new__(type(self))
        for field in dataclasses.fields(self):  # pyright: ignore[reportArgumentType]
            object.__setattr__(curve, field.name, changes.get(field.name, getattr(self, field.name)))
        return curve


def check_curve(name: str, value: Any) -> Curve:
    """``value`` if it is a curve, the curve of an `ExactCurve`, else ValueError."""
    curve = value if isinstance(value, Curve) else getattr(value, "exact", value)
    if not isinstance(curve, Curve):
        raise ValueError(f"{name} must be a trade-off curve such as Gaussian(1.0), got {shown(value)}")
    return curve


def check_symmetric(name: str, curve: Curve, what: str) -> Curve:
    """``curve`` if it is symmetric, else ValueError saying what needs that."""
    curve = check_curve(name, curve)
    if not curve.is_symmetric():
        raise ValueError(f"{what} needs a symmetric curve, got {type(curve).__name__}; use symmetrize({name}) first")
    return curve


def from_positive(profile: Callable[[Array], Array], epsilon: Array) -> Array:
    """D on the whole line from D on [0, inf), for a symmetric curve: D(-e) = 1 - e^-e (1 - D(e))."""
    size = jnp.where(epsilon >= 0, epsilon, -epsilon)  # not abs, whose derivative at 0 would be 0
    right = profile(size)
    return jnp.where(epsilon >= 0, right, 1.0 - jnp.exp(-size) * (1.0 - right))


def last_point(condition: Callable[[Array], Array], low: Array, high: Array) -> Array:
    """The last point found in [low, high] where ``condition`` holds, for one that holds at low and fails later."""
    low, high = (jnp.asarray(end, jnp.float64) for end in (low, high))
    shape = jnp.broadcast_shapes(low.shape, high.shape, jax.eval_shape(condition, low).shape)
    ends = jnp.broadcast_to(low, shape), jnp.broadcast_to(high, shape)
    return bisect(condition, *ends, midpoint=middle, num_iterations=_NUM_BISECTIONS, check_ends=False).holds


def profile_by_search(curve: Curve, epsilon: Array) -> Array:
    """sup_alpha 1 - f(alpha) - e^epsilon alpha: the maximum of a concave function, at f'(alpha) = -e^epsilon.

    The search runs over the logarithm of alpha below 1/2 and of 1 - alpha above. A maximiser found badly still gives a
    value that an actual test attains, and the derivative by the envelope theorem: d D / d epsilon = -e^epsilon alpha.
    """

    def alpha_at(t: Array) -> Array:
        return jnp.where(t < 0, 0.5 * jnp.exp(t), 1.0 - 0.5 * jnp.exp(-t))

    frozen = jax.lax.stop_gradient((curve, epsilon))
    t = last_point(
        lambda t: frozen[0].derivative(alpha_at(t)) <= -jnp.exp(frozen[1]), jnp.asarray(-745.0), jnp.asarray(40.0)
    )
    candidates = jnp.stack(jnp.broadcast_arrays(jnp.zeros_like(t), alpha_at(t), jnp.ones_like(t)))
    return jnp.max(1.0 - curve.value(candidates) - jnp.exp(epsilon) * candidates, axis=0)
