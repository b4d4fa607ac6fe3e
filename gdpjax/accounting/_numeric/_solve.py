"""From the bracket on delta(e) to the bracket on epsilon(delta), for one direction of one configuration."""

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _contour, _line
from gdpjax.accounting._numeric._contour import Sums
from gdpjax.accounting._numeric._line import Contour, Transform
from gdpjax.accounting._numeric._plan import Plan
from gdpjax.accounting._numeric._run import Run

_MARGINS = np.array([1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 0.0])  # the last stands for the plan's own epsilon


def epsilon_bracket(run: Run, plan: Plan) -> tuple[Bounds, Array]:
    """A certified bracket on the epsilon of one direction at delta = e^plan.log_delta, and an estimate inside it.

    Any e with a certified delta(e) <= delta is an upper bound, any with delta(e) >= delta a lower one. Newton's method
    proposes, the certified bounds dispose: the first proposal of a widening sequence that passes is returned, the
    Chernoff bound or 0 if none does. Comparisons leave 1e-13 for the rounding of log delta.
    """
    contour = plan.contour
    data = _line.transform(run, plan.window, contour)
    sums = _contour.make_sums(("upper", "lower"), data, contour, plan.epsilon)
    guess, converged = _estimate(sums, data, contour, plan)
    proposal = jnp.maximum(plan.epsilon + _crossings(sums, data, contour, plan, guess), 0.0)
    unit = jnp.where(proposal > 0, jnp.maximum(proposal, 1e-7), 0.0) * jnp.array([1.0, -1.0])

    def body(state):
        i, best, done = state
        points = jnp.maximum(proposal + unit * jnp.asarray(_MARGINS)[i], 0.0)
        points = jnp.where(i == _MARGINS.size - 1, plan.epsilon, points)
        log_delta = _contour.log_delta_bounds(data, contour, sums, plan.epsilon, points)
        passed = jnp.stack([log_delta[0] <= plan.log_delta - 1e-13, log_delta[1] >= plan.log_delta + 1e-13])
        best = jnp.where(passed & ~done, jnp.stack([jnp.minimum(best[0], points[0]), points[1]]), best)
        return i + 1, best, done | passed

    start = (
        np.int32(0),
        jnp.stack([_chernoff(data, contour, plan.log_delta), jnp.zeros_like(plan.epsilon)]),
        jnp.zeros(2, bool),
    )
    _, best, _ = jax.lax.while_loop(lambda s: (s[0] < _MARGINS.size) & ~jnp.all(s[2]), body, start)
    bounds = Bounds(best[1], jnp.where(jnp.isnan(best[0]), jnp.inf, best[0]))
    guess = jnp.where(converged, plan.epsilon + guess, 0.5 * (bounds.lower + bounds.upper))
    return bounds, jnp.clip(guess, bounds.lower, bounds.upper)


def log_delta_bracket(run: Run, plan: Plan, epsilon: Array) -> tuple[Bounds, Array]:
    """Certified brackets on log delta of one direction at each epsilon [n], near plan.epsilon, and estimates inside."""
    contour, origin = plan.contour, plan.epsilon
    data = _line.transform(run, plan.window, contour)
    sums = _contour.make_sums(("upper", "lower"), data, contour, origin)

    def one(epsilon: Array) -> tuple[Bounds, Array]:
        both = jnp.broadcast_to(epsilon, (2,))
        upper, lower = _contour.log_delta_bounds(data, contour, sums, origin, both)
        value, _ = _contour.evaluate(sums, both - origin)
        guess = data.log_size - contour.theta * epsilon + jnp.log(jnp.maximum(jnp.mean(value), 1e-300))
        chernoff = _contour.log_scale(data, contour, epsilon, 1.0) + _contour.log_peak(contour.theta)
        chernoff = jnp.logaddexp(chernoff + 1e-12 * (1.0 + jnp.abs(chernoff)), jnp.log(data.lost))
        bounds = Bounds(jnp.where(jnp.isnan(lower), -jnp.inf, lower), jnp.fmin(jnp.fmin(upper, chernoff), 0.0))
        return bounds, jnp.clip(guess, bounds.lower, bounds.upper)

    return jax.vmap(one)(epsilon)


def _estimate(sums: Sums, data: Transform, contour: Contour, plan: Plan) -> tuple[Array, Array]:
    """Where the mean of the two sums, without error terms, crosses delta: a shift from plan.epsilon, and convergence.

    A step to where the (smaller) error of the upper sum drowns the value is taken back, and the next one is shorter.
    """
    reach = 0.45 * contour.period
    close = 1e-3 * contour.eta

    def body(state):
        i, good, move, radius = state
        shift = jnp.clip(good + move, jnp.maximum(-reach, -plan.epsilon), reach)
        value, slope = (jnp.mean(x) for x in _contour.evaluate(sums, jnp.broadcast_to(shift, (2,))))
        safe = jnp.maximum(value, 1e-300)
        height = data.log_size - contour.theta * (plan.epsilon + shift) + jnp.log(safe) - plan.log_delta
        rate = jnp.minimum(slope / safe - contour.theta, -0.02 * contour.theta)
        clear = value > 2.0 * sums.error[0]
        radius = jnp.where(clear, radius, 0.3 * jnp.minimum(radius, jnp.abs(move)))
        step = jnp.where(clear, -height / rate, move)
        return i + 1, jnp.where(clear, shift, good), jnp.clip(step, -radius, radius), radius

    def moving(state):
        return (state[0] < 14) & (jnp.abs(state[2]) > close) | (state[0] == 0)

    zero = jnp.zeros_like(reach)
    _, shift, move, _ = jax.lax.while_loop(moving, body, (np.int32(0), zero, zero, 0.4 * reach))
    return jnp.clip(shift + move, -reach, reach), jnp.abs(move) <= close


def _crossings(sums: Sums, data: Transform, contour: Contour, plan: Plan, guess: Array) -> Array:
    """Where the two bounds [2] cross delta, by Newton's method from the estimate; terms outside the sums held fixed."""
    side = jnp.array([1.0, -1.0])
    lost = jnp.exp(jnp.minimum(jnp.log(data.lost) - plan.log_delta, -0.5))
    alias = jnp.exp(jnp.minimum(_contour.log_alias(data, contour, plan.epsilon + guess) - plan.log_delta, 0.0))
    goal = plan.log_delta + jnp.stack([jnp.log1p(-lost), jnp.log1p(alias)])

    def body(_, shift):
        value, slope = _contour.evaluate(sums, shift)
        safe = jnp.maximum(value + side * sums.error, 1e-300)
        height = data.log_size - contour.theta * (plan.epsilon + shift) + jnp.log(safe) - goal
        rate = jnp.minimum(slope / safe - contour.theta, -0.05 * contour.theta)
        return jnp.clip(shift - height / rate, guess - 0.2 * contour.period, guess + 0.2 * contour.period)

    return jax.lax.fori_loop(np.int32(0), np.int32(3), body, jnp.broadcast_to(guess, (2,)))


def _chernoff(data: Transform, contour: Contour, log_delta: Array) -> Array:
    """delta <= c(theta) e^{K(theta) - theta e} + lost, solved for e."""
    share = data.lost / jnp.exp(log_delta)
    room = log_delta + jnp.where(share < 0.5, jnp.log1p(-jnp.minimum(share, 0.5)), -jnp.inf)
    peak = _contour.log_peak(contour.theta)
    slack = 1e-14 * (1.0 + jnp.abs(data.log_size) + jnp.abs(peak) + jnp.abs(log_delta))
    return jnp.maximum((data.log_size + data.log_size_error + peak - room + slack) / contour.theta, 0.0)
