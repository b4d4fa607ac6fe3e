"""The certified accountant as pure functions of a small state, for training loops.

The certified bracket needs every step's parameters, not one sum over them, but runs repeat themselves: the state,
`Phases`, is a run-length list of rows (noise_multiplier, sampling_prob, num_steps) of a static capacity, so that a step
never recompiles. Equal consecutive steps share a row. When the rows run out, the last one takes the smaller noise
multiplier and the larger sampling probability of what it covers, which can only overstate the loss, and ``merged`` says
so.

*Precision.* The state must be one type whether it was made eagerly or inside a compiled loop, with or without x64:
noise multipliers are float32 rounded down, probabilities float32 rounded up (to overstate the loss, by at most some
1e-7 of it), and numbers of steps int32, exact. A step that is not valid, or that would count beyond 2^31 - 1, makes the
row's noise multiplier NaN; that stays, and everything read from the state is NaN then, or a ValueError where it can be.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import (
    COUNT,
    NONNEGATIVE,
    OPEN_UNIT,
    POSITIVE,
    UNIT,
    WHOLE,
    Domain,
    check,
    check_broadcast,
    is_traced,
)
from gdpjax._core.precision import narrow
from gdpjax._core.run_length import next_row
from gdpjax._core.types import FAILURE, Array
from gdpjax.accounting import _numeric
from gdpjax.accounting._accountant import Accountant

MOST_STEPS = 2**31 - 1


class Phases(NamedTuple):
    """The state of the certified accountant: rows of equal steps, on the last axis; unused rows have no steps."""

    noise_multiplier: Array  # float32, rounded down
    sampling_prob: Array  # float32, rounded up
    num_steps: Array  # int32
    merged: Array  # bool without the last axis: whether unequal steps share the last row


def numeric(capacity: int = 16) -> Accountant:
    """The certified accountant for training loops: upper bounds on epsilon, delta and mu, tight to about 1e-3.

    Formula: the upper end of `epsilon_bounds`, `delta_bounds` and `mu_bounds` of the steps so far, in phases.

    Args:
        capacity: how many phases, runs of equal steps, the state can hold; whole and >= 1. With more, the last row
            takes the smaller noise multiplier and the larger sampling probability, and ``state.merged`` is set.

    Returns:
        An `Accountant`; its epsilon(state, delta), delta(state, epsilon) and mu(state, failure=1e-10) are certified
        upper bounds, the last one of the (mu, failure) statement of `mu_bounds`. A step costs next to nothing; reading
        epsilon costs milliseconds for each phase, and mu a hundred times as much: read once, after the loop. The
        overflow of padded batches is not in it: that needs a `Ledger`.

    Raises:
        ValueError: an argument outside its range, here or in the functions; more than 2^31 - 1 steps.

    Reference: Gopi, Lee and Wutschitz, arXiv:2106.02848 (numerical composition).

    >>> accountant = numeric()
    >>> state = accountant.step(accountant.init(), 1.3, 256 / 60000, num_steps=3516)
    >>> print(f"{accountant.epsilon(state, 1e-5):.3f}")
    0.865
    """
    check("capacity", capacity, COUNT)
    capacity = int(capacity)

    def init(shape: tuple[int, ...] = ()) -> Phases:
        rows = (*shape, capacity)
        ones, zeros = jnp.ones(rows, jnp.float32), jnp.zeros(rows, jnp.float32)
        return Phases(ones, zeros, jnp.zeros(rows, jnp.int32), jnp.zeros(tuple(shape), bool))

    def step(state: Phases, noise_multiplier: Array, sampling_prob: Array, num_steps: Array = 1) -> Phases:
        _check_state(state, capacity)
        return _step(state, noise_multiplier, sampling_prob, num_steps)

    def epsilon(state: Phases, delta: Array) -> Array:
        _check_state(state, capacity)
        return _upper_end("epsilon", state, "delta", delta, OPEN_UNIT)

    def delta(state: Phases, epsilon: Array) -> Array:
        _check_state(state, capacity)
        return _upper_end("delta", state, "epsilon", epsilon, NONNEGATIVE)

    def mu(state: Phases, failure: Array = FAILURE) -> Array:
        _check_state(state, capacity)
        return _upper_end("mu", state, "failure", failure, OPEN_UNIT)

    return Accountant(init, step, epsilon, delta, mu)


def _check_state(state: Phases, capacity: int) -> None:
    if not isinstance(state, Phases):
        raise ValueError(f"state must come from accountant.init() or accountant.step(), got {type(state).__name__}")
    if np.shape(state.noise_multiplier)[-1:] != (capacity,):
        raise ValueError(
            f"state must belong to an accountant of capacity {capacity}, got shape {np.shape(state.noise_multiplier)}"
        )


def _step(state: Phases, noise_multiplier: Array, sampling_prob: Array, num_steps: Array) -> Phases:
    given = {"noise_multiplier": noise_multiplier, "sampling_prob": sampling_prob, "num_steps": num_steps}
    domains = {"noise_multiplier": POSITIVE, "sampling_prob": UNIT, "num_steps": WHOLE}
    for name, value in given.items():
        check(name, value, domains[name])
    check_broadcast(state=state.merged, **given)
    with jax.enable_x64(True):
        wide = {name: jnp.asarray(value, jnp.float64) for name, value in given.items()}
        inside = [domains[name].contains(value) for name, value in wide.items()]
        valid = inside[0] & inside[1] & inside[2]
        new = _record(Phases(*(jnp.asarray(part) for part in state)), valid, **wide)
    if not is_traced(new) and (np.isnan(new.noise_multiplier) & ~np.isnan(state.noise_multiplier)).any():
        raise ValueError(f"num_steps must stay at most {MOST_STEPS} in a phase; make another one for more")
    return new


@jax.jit
def _record(state: Phases, valid: Array, noise_multiplier: Array, sampling_prob: Array, num_steps: Array) -> Phases:
    noise, prob = narrow(noise_multiplier, "down"), narrow(sampling_prob, "up")
    shape = jnp.broadcast_shapes(state.merged.shape, valid.shape)
    noise, prob, steps, valid = (jnp.broadcast_to(x, shape)[..., None] for x in (noise, prob, num_steps, valid))
    rows, counts, probs = (jnp.broadcast_to(x, (*shape, x.shape[-1])) for x in (
        state.noise_multiplier, state.num_steps, state.sampling_prob))  # fmt: skip
    used = jnp.sum(counts > 0, axis=-1, keepdims=True)
    step = next_row(rows, probs, used, noise, prob)
    nothing = steps == 0
    row = step.row & ~(nothing & valid)
    total = counts + steps
    too_many = total > MOST_STEPS
    return Phases(
        jnp.where(row, jnp.where(valid & ~too_many, step.noise_multiplier, jnp.nan), rows).astype(jnp.float32),
        jnp.where(row & valid, step.sampling_prob, probs),
        jnp.where(row, jnp.where(valid & ~too_many, total, 1.0), counts).astype(jnp.int32),
        jnp.broadcast_to(state.merged, shape) | (step.is_merged & valid & ~nothing)[..., 0],
    )


def _upper_end(question: str, state: Phases, name: str, query: Array, domain: Domain) -> Array:
    """The upper end of the bounds of what the state holds, state and query broadcast together."""
    check(name, query, domain)
    check_broadcast(state=state.merged, **{name: query})
    columns = state.noise_multiplier, state.sampling_prob, state.num_steps
    if not is_traced((state, query)):
        columns = tuple(np.asarray(column, np.float64) for column in columns)
        check("noise_multiplier", columns[0], POSITIVE)
        return _numeric.of_phases(question)(*columns, query).upper
    shape = np.broadcast_shapes(np.shape(state.merged), np.shape(query))
    flat = [jnp.broadcast_to(column, (*shape, column.shape[-1])).reshape(-1, column.shape[-1]) for column in columns]
    # Mapped, so that an invalid element is NaN alone.
    bounds = jax.vmap(_numeric.of_phases(question))(*flat, jnp.broadcast_to(query, shape).reshape(-1))
    return bounds.upper.reshape(shape)
