"""From the bracket on delta(e) to the bracket on epsilon(delta), for one direction of one configuration."""

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _contour, _line
from gdpjax.accounting._numeric._contour import Sums
from gdpjax.accounting._numeric._line import Contour, Transform
from gdpjax.accounting._numeric._moments import Step
from gdpjax.accounting._numeric._plan import Plan

_MARGINS = np.array([1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1])


def epsilon_bracket(step: Step, plan: Plan) -> tuple[Bounds, Array]:
    """A certified bracket on the epsilon of one direction at delta = e^plan.log_delta, and an estimate inside it.

    Any e with a certified delta(e) <= delta is an upper bound, any with delta(e) >= delta a lower one. Newton's method
    proposes, the certified bounds dispose: the first proposal of a widening sequence that passes is returned, the
    Chernoff bound or 0 if none does. Comparisons leave 1e-13 for the rounding of log delta.
    """
    contour = plan.contour
    data = _line.transform(step, plan.window, contour)
    sums = _contour.make_sums(("upper", "lower"), data, contour, plan.epsilon)
    guess, proposal = _newton(sums, data, contour, plan)
    proposal = jnp.maximum(proposal, 0.0)
    unit = jnp.maximum(proposal, 1e-7) * jnp.array([1.0, -1.0])

    def test(i: Array) -> tuple[Array, Array]:
        points = jnp.maximum(proposal + unit * jnp.asarray(_MARGINS)[i], 0.0)
        log_delta = _contour.log_delta_bounds(data, contour, sums, plan.epsilon, points)
        passed = jnp.stack([log_delta[0] <= plan.log_delta - 1e-13, log_delta[1] >= plan.log_delta + 1e-13])
        return points, passed

    def body(state):
        i, best, done = state
        points, passed = test(i)
        return i + 1, jnp.where(passed & ~done, points, best), done | passed

    start = (0, jnp.stack([_chernoff(data, contour, plan.log_delta), jnp.zeros_like(plan.epsilon)]), jnp.zeros(2, bool))
    _, best, _ = jax.lax.while_loop(lambda s: (s[0] < _MARGINS.size) & ~jnp.all(s[2]), body, start)
    bounds = Bounds(best[1], jnp.where(jnp.isnan(best[0]), jnp.inf, best[0]))
    return bounds, jnp.clip(guess, bounds.lower, bounds.upper)


def log_delta_bracket(step: Step, plan: Plan) -> tuple[Bounds, Array]:
    """A certified bracket on log delta of one direction at plan.epsilon, and an estimate inside it."""
    contour = plan.contour
    data = _line.transform(step, plan.window, contour)
    sums = _contour.make_sums(("upper", "lower"), data, contour, plan.epsilon)
    epsilon = jnp.broadcast_to(plan.epsilon, (2,))
    upper, lower = _contour.log_delta_bounds(data, contour, sums, plan.epsilon, epsilon)
    value, _ = _contour.evaluate(sums, jnp.zeros(2))
    guess = data.log_size - contour.theta * plan.epsilon + jnp.log(jnp.maximum(jnp.mean(value), 1e-300))
    chernoff = data.log_size + data.log_size_error + _contour.log_peak(contour.theta) - contour.theta * plan.epsilon
    chernoff = jnp.logaddexp(chernoff + 1e-12 * (1.0 + jnp.abs(chernoff)), jnp.log(data.lost))
    bounds = Bounds(lower, jnp.fmin(jnp.fmin(upper, chernoff), 0.0))
    return bounds, jnp.clip(guess, bounds.lower, bounds.upper)


def _newton(sums: Sums, data: Transform, contour: Contour, plan: Plan) -> tuple[Array, Array]:
    """An estimate of epsilon, and where the two bounds [2] cross delta, the terms outside the sums held fixed.

    The first iterations follow the mean of the two sums, without error terms, and turn back where it drowns in them.
    """
    reach = 0.45 * contour.period
    side = jnp.array([1.0, -1.0])
    lost = jnp.exp(jnp.minimum(jnp.log(data.lost) - plan.log_delta, -0.5))
    alias = jnp.exp(jnp.minimum(_contour.log_alias(data, contour, plan.epsilon) - plan.log_delta, 0.0))
    outside = jnp.stack([jnp.log1p(-lost), jnp.log1p(alias)])

    def body(i, state):
        shift, guess = state
        value, slope = _contour.evaluate(sums, shift)
        honest = i >= 4
        value = jnp.where(honest, value + side * sums.error, jnp.mean(value))
        slope = jnp.where(honest, slope, jnp.mean(slope))
        clear = value > jnp.where(honest, 0.0, 2.0 * jnp.max(sums.error))
        safe = jnp.maximum(value, 1e-300)
        height = data.log_size - contour.theta * (plan.epsilon + shift) + jnp.log(safe) - plan.log_delta
        rate = jnp.minimum(slope / safe - contour.theta, -0.05 * contour.theta)
        move = jnp.clip(-(height - jnp.where(honest, outside, 0.0)) / rate, -0.5 * reach, 0.5 * reach)
        shift = jnp.clip(jnp.where(clear, shift + move, 0.5 * shift), -reach, reach)
        return shift, jnp.where(i == 3, shift[0], guess)

    shift, guess = jax.lax.fori_loop(0, 7, body, (jnp.zeros(2), jnp.zeros_like(reach)))
    return jnp.maximum(plan.epsilon + guess, 0.0), plan.epsilon + shift


def _chernoff(data: Transform, contour: Contour, log_delta: Array) -> Array:
    """delta <= c(theta) e^{K(theta) - theta e} + lost, solved for e."""
    share = data.lost / jnp.exp(log_delta)
    room = log_delta + jnp.where(share < 0.5, jnp.log1p(-jnp.minimum(share, 0.5)), -jnp.inf)
    value = data.log_size + data.log_size_error + _contour.log_peak(contour.theta) - room
    return jnp.maximum(value / contour.theta * (1.0 + 1e-12) + 1e-15, 0.0)
