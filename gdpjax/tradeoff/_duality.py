r"""From trade-off curves to (epsilon, delta) and mu.

The conjugate f*(y) = sup_x (y x - f(x)) at y = -e^epsilon gives the profile delta(epsilon) = 1 + f*(-e^epsilon): the
curve f is at least f_{epsilon, delta(epsilon)} for every epsilon >= 0, and is the supremum of those, if symmetric. An
asymmetric f bounds one order of the two laws; a statement about neighbours needs both, so the larger profile counts.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import gdp
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE
from gdpjax._core.types import Array, Floats, Numbers
from gdpjax.tradeoff._abstract import Curve, curve_function, last_point
from gdpjax.tradeoff._closed_forms import Gaussian
from gdpjax.tradeoff._derived_curves import Grouped, Inverse, Mixture, Subsampled

_GROUP_RESOLUTION = 1e-13
_LARGEST_EPSILON = 700.0
"""Beyond this epsilon, e^epsilon is near the end of float64."""


def _resolution(f: Curve) -> float:
    """Return the delta below which a curve's profile is rounding.

    Values of groups are right to that, composed k times.
    """
    if isinstance(f, Grouped):
        return _GROUP_RESOLUTION
    # It is the largest one of the curves that f is made of.
    resolution = 0.0
    for field in dataclasses.fields(f):  # pyright: ignore[reportArgumentType]
        value = getattr(f, field.name)
        if isinstance(value, Curve):
            resolution = max(resolution, _resolution(value))
    return resolution


def _larger_profile(f: Curve, epsilon: Array) -> Array:
    """Return the larger one of the profiles of the two directions, in [0, 1]."""
    larger = f.profile(epsilon)
    # A class that does not define the other direction is symmetric.
    is_symmetric_type = type(f).inverse_profile is Curve.inverse_profile
    if not is_symmetric_type:
        larger = jnp.maximum(larger, f.inverse_profile(epsilon))
    return jnp.clip(larger, 0.0, 1.0)


@curve_function(epsilon=NONNEGATIVE)
def delta(f: Curve, epsilon: Numbers) -> Floats:
    """Return the smallest delta for which a mechanism with curve f is (epsilon, delta)-DP, in both directions.

    Formula: delta = 1 + f*(-e^epsilon) = sup_alpha (1 - f(alpha) - e^epsilon alpha), the larger one of f and f^-1.

    Args:
        f: any trade-off curve.
        epsilon: finite and >= 0, in nats.

    Returns:
        delta in [0, 1], of the broadcast shape; exact. Curves given by points resolve it to about 1e-16 only.

    Raises:
        ValueError: not a curve, or epsilon outside its range.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Proposition 2.12.

    >>> from gdpjax.tradeoff import Gaussian
    >>> print(f"{delta(Gaussian(1.0), 1.0):.10f}")
    0.1269367375
    """
    return _larger_profile(f, epsilon)


@curve_function(delta=HALF_OPEN_UNIT)
def epsilon(f: Curve, delta: Numbers) -> Floats:
    """Return the smallest epsilon >= 0 for which a mechanism with curve f is (epsilon, delta)-DP, in both directions.

    Formula: the smallest epsilon >= 0 with sup_alpha (1 - f(alpha) - e^epsilon alpha) <= delta, for f and f^-1.

    Args:
        f: any trade-off curve.
        delta: probability in [0, 1).

    Returns:
        epsilon in nats, of the broadcast shape; exact up to a relative 1e-13, on the side where the condition holds;
        inf where no epsilon below 700 does. For groups (other than of Gaussian or Laplace curves) and what is made of
        them it is inf, an upper bound, below delta = 1e-13: what they say there is lost in the rounding of beta near 1.
        So it is for points that were rounded themselves (`PiecewiseLinear.from_probabilities`), which are taken as
        they are.

    Raises:
        ValueError: not a curve, or delta outside its range.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Proposition 2.12.

    >>> from gdpjax.tradeoff import Laplace
    >>> print(f"{epsilon(Laplace(1.0), 0.0):.6f} {epsilon(Laplace(1.0), 0.1):.6f}")
    1.000000 0.789279
    """
    step = f.curve if isinstance(f, Inverse) else f
    if isinstance(step, Gaussian):
        return _epsilon_of_subsampled_gaussian(jnp.ones(()), step.mu, delta)
    if isinstance(step, Mixture | Subsampled) and isinstance(step.curve, Gaussian):
        return _epsilon_of_subsampled_gaussian(step.sampling_prob, step.curve.mu, delta)
    return _epsilon_by_search(f, delta)


def _epsilon_of_subsampled_gaussian(sampling_prob: Array, mu: Array, delta: Array) -> Array:
    """Return the epsilon of a mixture or a subsampled curve: both directions have the delta of the mixture.

    A search with the profile would not do: a profile rounds away how close delta is to the sampling probability.
    """
    safe_delta = jnp.where(delta > 0, delta, 0.5)
    safe_delta, sampling_prob, mu = jnp.broadcast_arrays(safe_delta, sampling_prob, mu)
    value = gdp.subsampled_epsilon(safe_delta, sampling_prob, mu)
    is_finite = (delta > 0) | (sampling_prob == 0) | (mu == 0)
    return jnp.where(is_finite, value, jnp.inf)


def _epsilon_by_search(f: Curve, delta: Array) -> Array:
    """Return the end of a bisection in log epsilon at which the profile is at most delta."""
    frozen_curve, target = jax.lax.stop_gradient((f, delta))
    shape_of_profile = _larger_profile(frozen_curve, jnp.zeros(())).shape
    shape = jnp.broadcast_shapes(target.shape, shape_of_profile)

    def exceeds(log_epsilon: Array) -> Array:
        return _larger_profile(frozen_curve, jnp.exp(log_epsilon)) > target

    log_low = jnp.full(shape, -700.0)
    log_high = jnp.full(shape, np.log(_LARGEST_EPSILON))
    log_epsilon = last_point(exceeds, log_low, log_high)
    # The other end of the last interval, where the condition was found to hold.
    epsilon = jnp.exp(log_epsilon) * (1.0 + 2e-15)

    # This adds nothing to the value; its derivative is that of the implicit function theorem.
    def profile(epsilon: Array) -> Array:
        return _larger_profile(f, epsilon)

    value, slope = jax.jvp(profile, (epsilon,), (jnp.ones_like(epsilon),))
    is_falling = slope < 0
    difference = value - delta
    slope = jax.lax.stop_gradient(jnp.where(is_falling, slope, -1.0))
    zero_with_derivative = difference - jax.lax.stop_gradient(difference)
    epsilon = epsilon - jnp.where(is_falling, zero_with_derivative / slope, 0.0)

    # The two ends of the search, and what rounding hides.
    ends = [jnp.broadcast_to(0.0, shape), jnp.broadcast_to(_LARGEST_EPSILON, shape)]
    at_zero, at_end = _larger_profile(frozen_curve, jnp.stack(ends))
    epsilon = jnp.where(at_end > target, jnp.inf, epsilon)
    epsilon = jnp.where(at_zero <= target, 0.0, epsilon)
    return jnp.where(target < _resolution(f), jnp.inf, epsilon)
