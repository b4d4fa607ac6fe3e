"""From the bracket on delta(e) to the bracket on epsilon(delta)."""

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._numeric import _contour
from gdpjax.accounting._numeric._moments import Step
from gdpjax.accounting._numeric._plan import Plan, fit

_MARGINS = np.array([0.0, 1e-9, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1])


def epsilon_bracket(step: Step, plan: Plan, panels: int, num_frequencies: int) -> Bounds:
    """A certified bracket on the epsilon of one direction at delta = e^plan.log_delta."""
    contour = fit(plan, num_frequencies)
    data = _contour.transform(step, plan.window, contour, panels, num_frequencies)
    origin = plan.epsilon
    upper_sum = _contour.make_sum("upper", data, contour, origin)
    lower_sum = _contour.make_sum("lower", data, contour, origin)
    chernoff = _chernoff(data, contour, plan.log_delta)
    upper = _newton(upper_sum, data, contour, plan, 1.0)
    lower = _newton(lower_sum, data, contour, plan, -1.0)
    unit = jnp.asarray(_MARGINS) * jnp.maximum(jnp.abs(upper), 1e-6)

    def too_small(e):
        return _contour.log_delta_upper(data, contour, upper_sum, origin, e) > plan.log_delta

    def too_large(e):
        return _contour.log_delta_lower(data, contour, lower_sum, origin, e) < plan.log_delta

    ups = jnp.maximum(upper + unit, 0.0)
    downs = lower - unit
    upper = jnp.min(jnp.where(jax.vmap(too_small)(ups), jnp.inf, ups))
    lower = jnp.max(jnp.where(jax.vmap(too_large)(downs), 0.0, downs))
    return Bounds(jnp.maximum(lower, 0.0), jnp.fmin(upper, chernoff))


def _newton(total, data, contour, plan, side) -> Array:
    """Where log_scale - theta e + log(sum +- error) crosses log delta, without the terms outside the sum."""
    reach = 0.45 * contour.period

    def body(_, shift):
        value, slope = _contour.evaluate(total, shift)
        value = value + side * total.error
        safe = jnp.maximum(value, 1e-300)
        height = data.log_size - contour.theta * (plan.epsilon + shift) + jnp.log(safe) - plan.log_delta
        rate = jnp.minimum(slope / safe - contour.theta, -0.1 * contour.theta)
        return jnp.clip(jnp.where(value > 0, shift - height / rate, 0.5 * shift), -reach, reach)

    return plan.epsilon + jax.lax.fori_loop(0, 6, body, jnp.zeros_like(plan.epsilon))


def _chernoff(data, contour, log_delta) -> Array:
    """delta <= c(theta) e^{K(theta) - theta e} + lost, solved for e."""
    share = data.lost / jnp.exp(log_delta)
    room = log_delta + jnp.where(share < 0.5, jnp.log1p(-jnp.minimum(share, 0.5)), -jnp.inf)
    value = data.log_size + data.log_size_error + _contour.log_peak(contour.theta) - room
    return jnp.maximum(value / contour.theta * (1.0 + 1e-12) + 1e-15, 0.0)
