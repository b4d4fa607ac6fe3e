r"""From trade-off curves to (epsilon, delta), mu and back.

The conjugate f*(y) = sup_x (y x - f(x)) at y = -e^epsilon gives the profile delta(epsilon) = 1 + f*(-e^epsilon): the
curve f is at least f_{epsilon, delta(epsilon)} for every epsilon >= 0, and is the supremum of those, if symmetric. An
asymmetric f bounds one order of the two laws; a statement about neighbours needs both, so the larger profile counts.

*Dominating mu.* The smallest mu with f >= G_mu (x) f_{0, d} for a failure probability d, that is

    delta_f(epsilon) <= d + (1 - d) delta_mu(epsilon)    for all epsilon >= 0.

Write s = e^epsilon. Both sides are convex in s. On a cell [s0, s1] the left is below its chord and delta_mu above its
tangent at the middle; so if the tangent, scaled, exceeds the chord at both ends, the condition holds on the whole cell.
The price is of second order in the width. On a fixed grid of cells up to the epsilon with delta_f(epsilon) <= d, the
smallest mu that passes is found by bisection above the largest mu that the grid's points require.
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import gdp
from gdpjax._core.checks import HALF_OPEN_UNIT, NONNEGATIVE, REAL, UNIT, check, check_scalar, is_traced
from gdpjax._core.dominating import dominates
from gdpjax._core.precision import float64_function
from gdpjax._core.roots import bisect_on_host
from gdpjax._core.types import Array
from gdpjax.tradeoff._abstract import Curve, check_curve, curve_function, last_point
from gdpjax.tradeoff._derived_curves import Grouped, Inverse, Mixture, Subsampled
from gdpjax.tradeoff._gaussian import Gaussian, Identity
from gdpjax.tradeoff._piecewise_linear import PiecewiseLinear, from_vertices

_GROUP_RESOLUTION = 1e-13
_LARGEST = 700.0  # beyond this epsilon, e^epsilon is near the end of float64
_NUM_UNIFORM, _NUM_GEOMETRIC = 3072, 1024


def _resolution(f: Curve) -> float:
    """The delta below which a curve's profile is rounding: values of groups are right to that, composed k times."""
    if isinstance(f, Grouped):
        return _GROUP_RESOLUTION
    # The largest one of the curves that f is made of.
    resolution = 0.0
    for field in dataclasses.fields(f):  # pyright: ignore[reportArgumentType]
        part = getattr(f, field.name)
        for curve in part if isinstance(part, tuple) else (part,):
            if isinstance(curve, Curve):
                resolution = max(resolution, _resolution(curve))
    return resolution


def _both(f: Curve, epsilon: Array) -> Array:
    larger = f.profile(epsilon)
    if type(f).inverse_profile is not Curve.inverse_profile:  # else the curve is symmetric by its type
        larger = jnp.maximum(larger, f.inverse_profile(epsilon))
    return jnp.clip(larger, 0.0, 1.0)


@curve_function(epsilon=NONNEGATIVE)
def delta(f: Curve, epsilon: Array) -> Array:
    """The smallest delta for which a mechanism with curve f is (epsilon, delta)-DP, in both directions.

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
    return _both(f, epsilon)


@curve_function(delta=HALF_OPEN_UNIT)
def epsilon(f: Curve, delta: Array) -> Array:
    """The smallest epsilon >= 0 for which a mechanism with curve f is (epsilon, delta)-DP, in both directions.

    Formula: the smallest epsilon >= 0 with sup_alpha (1 - f(alpha) - e^epsilon alpha) <= delta, for f and f^-1.

    Args:
        f: any trade-off curve.
        delta: probability in [0, 1).

    Returns:
        epsilon in nats, of the broadcast shape; exact up to a relative 1e-13, on the side where the condition holds;
        inf where no epsilon below 700 does. For groups (other than of Gaussian or Laplace curves) and what is made of
        them it is inf, an upper bound, below delta = 1e-13: what they say there is lost in the rounding of beta near 1.
        So it is for points that were rounded themselves, see `from_probabilities`; points are taken as they are.

    Raises:
        ValueError: not a curve, or delta outside its range.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Proposition 2.12.

    >>> from gdpjax.tradeoff import Laplace
    >>> print(f"{epsilon(Laplace(1.0), 0.0):.6f} {epsilon(Laplace(1.0), 0.1):.6f}")
    1.000000 0.789279
    """
    if isinstance(f, Gaussian):
        positive = jnp.where(delta > 0, delta, 0.5)
        value = gdp.gdp_epsilon(*jnp.broadcast_arrays(positive, f.mu))
        return jnp.where((delta > 0) | (f.mu == 0), value, jnp.inf)
    step = f.curve if isinstance(f, Inverse) else f
    if isinstance(step, Mixture | Subsampled) and isinstance(step.curve, Gaussian):
        # Both directions have the delta of the mixture, and a profile rounds away how close delta is to p.
        positive, p, mu = jnp.broadcast_arrays(jnp.where(delta > 0, delta, 0.5), step.sampling_prob, step.curve.mu)
        value = gdp.subsampled_epsilon(positive, p, mu)
        return jnp.where((delta > 0) | (p == 0) | (mu == 0), value, jnp.inf)
    frozen, target = jax.lax.stop_gradient((f, delta))
    shape = jnp.broadcast_shapes(target.shape, _both(frozen, jnp.zeros(())).shape)

    def exceeds(log_epsilon: Array) -> Array:
        return _both(frozen, jnp.exp(log_epsilon)) > target

    low = last_point(exceeds, jnp.full(shape, -700.0), jnp.full(shape, np.log(_LARGEST)))
    # The other end of the last interval, where the condition was found to hold.
    high = jnp.exp(low) * (1.0 + 2e-15)
    # This adds nothing to the value; its derivative is that of the implicit function theorem.
    value, slope = jax.jvp(lambda e: _both(f, e), (high,), (jnp.ones_like(high),))
    falls, change = slope < 0, value - delta
    slope = jax.lax.stop_gradient(jnp.where(falls, slope, -1.0))
    high = high - jnp.where(falls, (change - jax.lax.stop_gradient(change)) / slope, 0.0)
    ends = [jnp.broadcast_to(end, shape) for end in (0.0, _LARGEST)]
    at_zero, at_end = _both(frozen, jnp.stack(ends))
    high = jnp.where(at_zero <= target, 0.0, jnp.where(at_end > target, jnp.inf, high))
    return jnp.where(target < _resolution(f), jnp.inf, high)


@curve_function(y=REAL)
def convex_conjugate(f: Curve, y: Array) -> Array:
    """The convex conjugate of f, in the given direction only.

    Formula: f*(y) = sup_{0 <= x <= 1} (y x - f(x)). For y >= 0 it is y, since f(1) = 0; for y < 0 it is
    delta(log(-y)) - 1.

    Args:
        f: any trade-off curve.
        y: any finite number, a slope.

    Returns:
        f*(y), of the broadcast shape; exact.

    Raises:
        ValueError: not a curve, or y not finite.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 2.3.

    >>> from gdpjax.tradeoff import Identity
    >>> print(convex_conjugate(Identity(), -0.5))
    -0.5
    """
    negative = jnp.where(y < 0, -y, 1.0)
    return jnp.where(y < 0, f.profile(jnp.log(negative)) - 1.0, y)


def from_delta_curve(epsilon: Array, delta: Array) -> PiecewiseLinear:
    """The curve that a family of (epsilon, delta) statements implies.

    Formula: f(alpha) = max_i f_{epsilon_i, delta_i}(alpha).

    Args:
        epsilon: values >= 0, shape [n].
        delta: the delta of each, in [0, 1], shape [n].

    Returns:
        A symmetric `PiecewiseLinear`; exact for the given statements, hence a lower bound on the curve of the mechanism
        that they describe.

    Raises:
        ValueError: traced or outside the range, or not vectors of equal length.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Proposition 2.11.

    >>> f = from_delta_curve([0.0, 1.0], [0.3, 0.05])
    >>> print(f"{f(0.1):.6f}")
    0.678172
    """
    if is_traced((epsilon, delta)):
        raise ValueError("from_delta_curve builds its points on the host: give concrete epsilon and delta")
    check("epsilon", epsilon, NONNEGATIVE)
    check("delta", delta, UNIT)
    if np.max(epsilon, initial=0.0) > _LARGEST:
        raise ValueError(f"epsilon must be at most {_LARGEST:g}, got {np.max(epsilon)}; leave such statements out")
    slope, level = np.exp(np.asarray(epsilon, np.float64)), 1.0 - np.asarray(delta, np.float64)
    if slope.ndim != 1 or slope.shape != level.shape or not slope.size:
        raise ValueError(
            f"epsilon and delta must be vectors of equal length, got shapes {slope.shape} and {level.shape}"
        )
    slope, level = _upper_envelope(slope, level)
    # Corners of the left half: alpha = 0, between neighbouring lines, and the last line's point on the diagonal.
    corner = np.append((level[:-1] - level[1:]) / (slope[:-1] - slope[1:]), level[-1] / (1.0 + slope[-1]))
    alpha = np.append(0.0, corner)
    beta = np.append(level[0], np.maximum(level - slope * corner, corner))
    return from_vertices(np.append(alpha, beta), np.append(beta, alpha))


def _upper_envelope(slope: np.ndarray, level: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lines level - slope * alpha that are the largest somewhere in 0 <= alpha <= their point on the diagonal."""
    order = np.lexsort((slope, -level))
    kept: list[tuple[float, float]] = []
    # By falling levels: a line is seen only if its slope falls, too.
    for s, c in zip(slope[order], level[order], strict=True):
        if kept and s >= kept[-1][0]:
            continue
        # The last line is hidden if this one takes over from the one before it no later than the last one does.
        while len(kept) >= 2:
            (s0, c0), (s1, c1) = kept[-2:]
            if (c1 - c) * (s0 - s1) > (c0 - c1) * (s1 - s):
                break
            kept.pop()
        kept.append((s, c))

    # Lines that take over only beyond the diagonal say nothing here.
    while len(kept) >= 2:
        (s0, c0), (s1, c1) = kept[-2:]
        if (c0 - c1) * (1.0 + s0) <= c0 * (s0 - s1):
            break
        kept.pop()
    slopes, levels = np.array(kept).T
    return slopes, levels


@float64_function(epsilon=NONNEGATIVE, delta=UNIT)
def _mu_of(epsilon: Array, delta: Array) -> Array:
    inside = (delta > 0) & (delta < 1)
    return jnp.where(inside, gdp.gdp_mu(epsilon, jnp.where(inside, delta, 0.5)), jnp.where(delta > 0, jnp.inf, 0.0))


def dominating_mu(f: Curve, failure: float = 0.0) -> Array:
    """The smallest mu for which f is mu-GDP up to a failure probability.

    Formula: the smallest mu with f >= G_mu (x) f_{0, failure}, i.e. delta_f(epsilon) <= failure + (1 - failure)
    delta_mu(epsilon) for all epsilon >= 0. Such statements compose: mus in squares, failures by addition.

    Args:
        f: trade-off curve with concrete parameters (host-side); an asymmetric one counts in both directions.
        failure: probability in [0, 1).

    Returns:
        mu; an upper bound, a relative 1e-5 or less above the smallest one. inf where none exists, as for f(0) < 1 with
        failure 0. For Gaussian noise, subsampled or not, and failure 0 it is the mu of the noise, exactly.

    Raises:
        ValueError: traced, many curves at once, or failure 0 for a curve whose privacy loss is unbounded: there the
            answer hides in an infinite tail, and is useless. Give a small failure.

    Reference: Dong, Roth and Su, arXiv:1905.02383, Section 2.3 (duality); Koskela, Redberg and Wang, 2023, and
    Gomez et al., arXiv:2503.10945 (reporting mu).

    >>> from gdpjax.tradeoff import ApproximateDP
    >>> print(f"{dominating_mu(ApproximateDP(1.0)):.4f}")
    1.2320
    """
    f = check_curve("f", f)
    check_scalar("failure", failure, HALF_OPEN_UNIT)
    if is_traced((f, failure)):
        raise ValueError("dominating_mu is computed on the host: call it outside compiled code")
    core = f
    while isinstance(core, Subsampled):
        core = core.curve if np.all(np.asarray(core.sampling_prob) > 0) else Identity()
    if failure == 0 and isinstance(core, Gaussian):
        return np.asarray(core.mu, np.float64)[()]
    if failure == 0 and max(np.max(-f.slope(0.0)), np.max(-f.inverse().slope(0.0))) == np.inf:
        raise ValueError("dominating_mu needs failure > 0 for a curve whose privacy loss is unbounded, got failure = 0")
    end = epsilon(f, failure)
    if np.ndim(end):
        raise ValueError("dominating_mu takes one curve; call it for each")
    if end == 0:
        return np.float64(0.0)
    if np.isinf(end):
        return np.float64(np.inf)
    return smallest_mu(lambda epsilon: np.asarray(delta(f, epsilon)), float(failure), float(end) * (1.0 + 1e-12))


def smallest_mu(delta_at: Callable[[np.ndarray], np.ndarray], failure: float, end: float) -> np.float64:
    """The mu of `dominating_mu` from upper bounds on delta, which is at most ``failure`` at ``end``, > 0 and finite."""
    grid, needed = _needed_deltas(delta_at, failure, end)
    required = _mu_of_points(grid, needed)
    if not 0 < required < np.inf:
        return np.float64(required)

    def suffices(excess: Array) -> bool:
        return bool(dominates(required * (1.0 + float(excess)), grid, needed, 0.0).all())

    # An excess that is enough, then the smallest one.
    excess = 1e-9
    while not suffices(excess):
        excess *= 2.0
        if excess > 1e6:
            return np.float64(np.inf)
    least, _ = bisect_on_host(suffices, excess, 0.0, num_iterations=20)
    return np.float64(required * (1.0 + least))


def required_mu(delta_at: Callable[[np.ndarray], np.ndarray], failure: float, end: float) -> np.float64:
    """A mu that every statement needs, from lower bounds on delta on the grid of `smallest_mu`."""
    grid, needed = _needed_deltas(lambda epsilon: delta_at(epsilon) * (1.0 - 2e-12), failure, end)
    return np.float64(_mu_of_points(grid, needed) * (1.0 - 1e-9))


def _needed_deltas(
    delta_at: Callable[[np.ndarray], np.ndarray], failure: float, end: float
) -> tuple[np.ndarray, np.ndarray]:
    """Points in [0, end], and the delta_mu that is needed at each; always the same number, so one compilation."""
    uniform = np.linspace(0.0, end, _NUM_UNIFORM)
    geometric = np.geomspace(1e-6 * end, end, _NUM_GEOMETRIC + 1)[:-1]
    grid = np.union1d(uniform, geometric)
    missing = _NUM_UNIFORM + _NUM_GEOMETRIC - grid.size
    grid = np.append(grid, np.full(missing, end))

    needed = np.clip((delta_at(grid) * (1.0 + 1e-12) - failure) / (1.0 - failure), 0.0, 1.0)
    needed = np.where(needed > 0, np.maximum(needed, 1e-300), 0.0)
    return grid, needed


def _mu_of_points(grid: np.ndarray, needed: np.ndarray) -> float:
    """The smallest mu whose delta is as large as needed at every point."""
    return float(np.max(np.asarray(_mu_of(grid, needed))))
