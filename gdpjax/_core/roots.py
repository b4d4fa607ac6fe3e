"""Batched bracketed search for the edge of a monotone condition.

Calibration asks for the smallest noise, the largest number of steps or the largest sampling probability that *meets a
target*. That is not quite a root: the accountant's epsilon can jump, and the answer must lie on the safe side of the
edge, not within a tolerance of it. So the search keeps one end that holds and one that does not:

    invariant: condition(holds) is true, condition(fails) is false, all elements at once.

Each step halves the bracket (in the scale that ``midpoint`` defines), with a fixed number of steps, so that it jits,
vmaps and never fails to converge. The answer is a point at which the condition was evaluated, not an interpolation.
Whether the invariant is true to begin with is reported, not assumed: the first two rounds of the same loop evaluate
the ends, so that a costly condition is compiled once.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array


class Bracket(NamedTuple):
    """The two ends after the search, and what the condition said at the two ends before it."""

    holds: Array
    fails: Array
    first_held: Array
    last_held: Array


def bisect(
    condition: Callable[[Array], Array],
    holds: Array,
    fails: Array,
    *,
    midpoint: Callable[[Array, Array], Array],
    num_iterations: int,
) -> Bracket:
    """Shrink brackets, one end of which satisfies a condition and the other not, for ``num_iterations`` halvings.

    The ends have the full shape of the condition's answer. Where an end is not as promised, the result means nothing
    and the flags say so: ``first_held`` must be true and ``last_held`` false.
    """
    holds, fails = jnp.broadcast_arrays(holds, fails)

    def step(i: Array, state: Bracket) -> Bracket:
        point = jnp.where(i == 0, holds, jnp.where(i == 1, fails, midpoint(state.holds, state.fails)))
        good = condition(point)
        return Bracket(
            jnp.where(good & (i > 1), point, state.holds),
            jnp.where(good | (i <= 1), state.fails, point),
            jnp.where(i == 0, good, state.first_held),
            jnp.where(i == 1, good, state.last_held),
        )

    unknown = jnp.zeros(holds.shape, bool)
    return jax.lax.fori_loop(0, num_iterations + 2, step, Bracket(holds, fails, unknown, unknown))


def geometric_midpoint(a: Array, b: Array) -> Array:
    """sqrt(a b) of positive numbers: halves the bracket in log scale."""
    return jnp.sqrt(a) * jnp.sqrt(b)


def whole_midpoint(a: Array, b: Array) -> Array:
    """The whole number halfway between two whole numbers, rounded towards ``a``, so that a never leaves its side."""
    return a + jnp.trunc((b - a) / 2)
