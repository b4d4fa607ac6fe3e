"""delta and epsilon of one finite pair, without composition: sums of positive terms.

remove: delta(e) = sum_k p_k (1 - e^{e - L_k})_+ + lost P,     add: delta(e) = sum_k q_k (1 - e^{e + L_k})_+ + lost Q,

L_k = log R at outcome k. If the masses are right to a relative error c and every L_k to an absolute one of d, the true
value at e lies between (1 - c) times the computed one at e + d and (1 + c) times the computed one at e - d.
"""

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array, Bounds
from gdpjax.accounting._allocation._law import CELLS, UNIT_ROUNDOFF, Pair

_STEPS = 16
_TO_SAFE_SIDE = np.array([-1e-7, 1e-7])


def computed_delta(pair: Pair, epsilon: Array) -> tuple[Array, Array]:
    """The larger of the two directions and its rate of decrease in epsilon, without errors."""
    p, q = jnp.exp(pair.log_p), jnp.exp(pair.log_q)
    below = jnp.minimum(epsilon - pair.log_ratio, 0.0)
    remove = jnp.sum(p * -jnp.expm1(below)) + pair.lost_p
    below_add = jnp.minimum(epsilon + pair.log_ratio, 0.0)
    add = jnp.sum(q * -jnp.expm1(below_add)) + pair.lost_q
    rate_remove = jnp.sum(jnp.where(below < 0, p * jnp.exp(below), 0.0))
    rate_add = jnp.sum(jnp.where(below_add < 0, q * jnp.exp(below_add), 0.0))
    return jnp.maximum(remove, add), jnp.where(remove >= add, rate_remove, rate_add)


def _bound(pair: Pair, epsilon: Array, side: float) -> tuple[Array, Array]:
    """The delta of a pair moved by its errors up (side 1) or down (side -1), and its rate of decrease."""
    relative = 2.0 * pair.rounding + UNIT_ROUNDOFF * (2.0 * CELLS)
    absolute = pair.displacement + 8.0 * UNIT_ROUNDOFF * (jnp.max(jnp.abs(pair.log_ratio)) + epsilon)
    value, rate = computed_delta(pair, epsilon - side * absolute)
    return value * (1.0 + side * relative), rate


def delta_of_pairs(lower: Pair, upper: Pair, epsilon: Array) -> Bounds:
    """The bracket on delta of what lies between two pairs."""
    smallest, _ = _bound(lower, epsilon, -1.0)
    largest, _ = _bound(upper, epsilon, 1.0)
    return Bounds(jnp.maximum(smallest, 0.0), jnp.minimum(largest, 1.0))


def epsilon_of_pairs(lower: Pair, upper: Pair, delta: Array, largest: Array) -> Bounds:
    """The bracket on epsilon of what lies between two pairs, where it is known to be at most ``largest``.

    Newton's method for log delta proposes points for both ends, moved a little to the safe side; only a point at which
    the bound on delta was evaluated, and proves it, becomes an end.
    """

    def step(_: int, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        proved, other, point = state
        bounds, rates = zip(_bound(lower, point[0], -1.0), _bound(upper, point[1], 1.0), strict=True)
        value, rate = jnp.stack(bounds), jnp.stack(rates)
        good = jnp.stack([value[0] > delta, value[1] <= delta])
        proved, other = jnp.where(good, point, proved), jnp.where(good, other, point)

        newton = point + jnp.log(value / delta) * value / rate
        proposal = newton * (1.0 + _TO_SAFE_SIDE)
        inside = (proposal > jnp.minimum(proved, other)) & (proposal < jnp.maximum(proved, other))
        return proved, other, jnp.where(inside, proposal, 0.5 * (proved + other))

    # 0 and ``largest`` are ends to begin with.
    proved = jnp.stack([jnp.zeros_like(largest), largest])
    nothing = _bound(upper, jnp.zeros(()), 1.0)[0] <= delta
    start = proved, proved[::-1], 0.5 * (proved + proved[::-1])
    proved, _, _ = jax.lax.fori_loop(np.int32(0), np.int32(_STEPS), step, start)
    return Bounds(proved[0], jnp.where(nothing, 0.0, proved[1]))
