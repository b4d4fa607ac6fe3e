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

_HALVINGS = 48


def computed_delta(pair: Pair, epsilon: Array) -> Array:
    """The larger of the two directions, without errors."""
    remove = jnp.exp(pair.log_p) * -jnp.expm1(jnp.minimum(epsilon - pair.log_ratio, 0.0))
    add = jnp.exp(pair.log_q) * -jnp.expm1(jnp.minimum(epsilon + pair.log_ratio, 0.0))
    return jnp.maximum(jnp.sum(remove) + pair.lost_p, jnp.sum(add) + pair.lost_q)


def _relative_error(pair: Pair) -> Array:
    return 2.0 * pair.rounding + UNIT_ROUNDOFF * (2.0 * CELLS)


def _absolute_error(pair: Pair, epsilon: Array) -> Array:
    return pair.displacement + 8.0 * UNIT_ROUNDOFF * (jnp.max(jnp.abs(pair.log_ratio)) + epsilon)


def delta_of_pairs(lower: Pair, upper: Pair, epsilon: Array) -> Bounds:
    """The bracket on delta of what lies between two pairs."""
    moved = epsilon + _absolute_error(lower, epsilon)
    smallest = computed_delta(lower, moved) * (1.0 - _relative_error(lower))
    moved = epsilon - _absolute_error(upper, epsilon)
    largest = computed_delta(upper, moved) * (1.0 + _relative_error(upper))
    return Bounds(jnp.maximum(smallest, 0.0), jnp.minimum(largest, 1.0))


def epsilon_of_pairs(lower: Pair, upper: Pair, delta: Array, largest: Array) -> Bounds:
    """The bracket on epsilon of what lies between two pairs, where it is known to be at most ``largest``."""

    def ends(epsilon: Array) -> tuple[Array, Array]:
        """Whether epsilon[0] is a lower and epsilon[1] an upper end."""
        below = delta_of_pairs(lower, upper, epsilon[0]).lower > delta
        above = delta_of_pairs(lower, upper, epsilon[1]).upper <= delta
        return below, above

    def halve(_: int, state: tuple[Array, Array]) -> tuple[Array, Array]:
        proved, other = state
        middle = 0.5 * (proved + other)
        good = jnp.stack(ends(middle))
        return jnp.where(good, middle, proved), jnp.where(good, other, middle)

    # Both searches keep an end that is proved; 0 and ``largest`` are so to begin with.
    proved = jnp.stack([jnp.zeros_like(largest), largest])
    at_zero = ends(jnp.zeros(2))[1]
    proved, _ = jax.lax.fori_loop(np.int32(0), np.int32(_HALVINGS), halve, (proved, proved[::-1]))
    return Bounds(proved[0], jnp.where(at_zero, 0.0, proved[1]))
