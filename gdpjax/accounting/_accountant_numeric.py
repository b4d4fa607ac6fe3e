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

from gdpjax._core.arguments import check_array
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
_STEP_DOMAINS = {"noise_multiplier": POSITIVE, "sampling_prob": UNIT, "num_steps": WHOLE}


class Phases(NamedTuple):
    """The state of the certified accountant: rows of equal steps, on the last axis; unused rows have no steps."""

    noise_multiplier: Array  # float32, rounded down
    sampling_prob: Array  # float32, rounded up
    num_steps: Array  # int32
    merged: Array  # bool without the last axis: whether unequal steps share the last row


def numeric(capacity: int = 16) -> Accountant:
    """Return the certified accountant for training loops: upper bounds on epsilon, delta and mu, tight to about 1e-3.

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
        rows_shape = (*shape, capacity)
        return Phases(
            noise_multiplier=jnp.ones(rows_shape, jnp.float32),
            sampling_prob=jnp.zeros(rows_shape, jnp.float32),
            num_steps=jnp.zeros(rows_shape, jnp.int32),
            merged=jnp.zeros(tuple(shape), bool),
        )

    def step(
        state: Phases,
        noise_multiplier: Array,
        sampling_prob: Array,
        num_steps: Array = 1,
    ) -> Phases:
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
    """Raise ValueError unless the state is one of an accountant of this capacity."""
    if not isinstance(state, Phases):
        raise ValueError(f"state must come from accountant.init() or accountant.step(), got {type(state).__name__}")
    for name, part in state._asdict().items():
        check_array(f"state.{name}", part, kinds="biuf")
    shape = np.shape(state.noise_multiplier)
    if shape[-1:] != (capacity,):
        raise ValueError(f"state must belong to an accountant of capacity {capacity}, got shape {shape}")


def _step(
    state: Phases,
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
) -> Phases:
    """Return the state after some equal steps, or raise ValueError where that is possible and they are not valid."""
    given = {
        "noise_multiplier": noise_multiplier,
        "sampling_prob": sampling_prob,
        "num_steps": num_steps,
    }
    for name, value in given.items():
        check(name, value, _STEP_DOMAINS[name])
    check_broadcast(state=state.merged, **given)

    with jax.enable_x64(True):
        noise_multiplier = jnp.asarray(noise_multiplier, jnp.float64)
        sampling_prob = jnp.asarray(sampling_prob, jnp.float64)
        num_steps = jnp.asarray(num_steps, jnp.float64)
        is_valid = POSITIVE.contains(noise_multiplier) & UNIT.contains(sampling_prob) & WHOLE.contains(num_steps)
        state_arrays = Phases(*[jnp.asarray(part) for part in state])
        new_state = _record(state_arrays, is_valid, noise_multiplier, sampling_prob, num_steps)

    if not is_traced(new_state):
        became_nan = np.isnan(new_state.noise_multiplier) & ~np.isnan(state.noise_multiplier)
        if became_nan.any():
            raise ValueError(f"num_steps must stay at most {MOST_STEPS} in a phase; make another one for more")
    return new_state


@jax.jit
def _record(
    state: Phases,
    is_valid: Array,
    noise_multiplier: Array,
    sampling_prob: Array,
    num_steps: Array,
) -> Phases:
    """Return the state after some equal steps, with a row of NaN where they are not valid or too many."""
    # The step as a row of one element, and the rows of the state, broadcast together.
    shape = jnp.broadcast_shapes(state.merged.shape, is_valid.shape)
    new_noise = jnp.broadcast_to(narrow(noise_multiplier, "down"), shape)[..., None]
    new_prob = jnp.broadcast_to(narrow(sampling_prob, "up"), shape)[..., None]
    new_steps = jnp.broadcast_to(num_steps, shape)[..., None]
    is_valid = jnp.broadcast_to(is_valid, shape)[..., None]
    rows_shape = (*shape, state.num_steps.shape[-1])
    noise_of_rows = jnp.broadcast_to(state.noise_multiplier, rows_shape)
    prob_of_rows = jnp.broadcast_to(state.sampling_prob, rows_shape)
    steps_of_rows = jnp.broadcast_to(state.num_steps, rows_shape)

    # The row that the step joins; no steps at all leave the rows as they are.
    num_used = jnp.sum(steps_of_rows > 0, axis=-1, keepdims=True)
    next_step = next_row(noise_of_rows, prob_of_rows, num_used, new_noise, new_prob)
    is_nothing = new_steps == 0
    is_changed = next_step.row & ~(is_nothing & is_valid)

    total = steps_of_rows + new_steps
    is_usable = is_valid & ~(total > MOST_STEPS)
    changed_noise = jnp.where(is_usable, next_step.noise_multiplier, jnp.nan)
    changed_steps = jnp.where(is_usable, total, 1.0)
    is_merged = (next_step.is_merged & is_valid & ~is_nothing)[..., 0]
    return Phases(
        noise_multiplier=jnp.where(is_changed, changed_noise, noise_of_rows).astype(jnp.float32),
        sampling_prob=jnp.where(is_changed & is_valid, next_step.sampling_prob, prob_of_rows),
        num_steps=jnp.where(is_changed, changed_steps, steps_of_rows).astype(jnp.int32),
        merged=jnp.broadcast_to(state.merged, shape) | is_merged,
    )


def _upper_end(
    question: str,
    state: Phases,
    name: str,
    query: Array,
    domain: Domain,
) -> Array:
    """Return the upper end of the bounds on the run in the state, state and query broadcast together."""
    check(name, query, domain)
    check_broadcast(state=state.merged, **{name: query})
    ask = _numeric.of_phases(question)
    columns = state.noise_multiplier, state.sampling_prob, state.num_steps
    if not is_traced((state, query)):
        columns = tuple(np.asarray(column, np.float64) for column in columns)
        check("noise_multiplier", columns[0], POSITIVE)
        return ask(*columns, query).upper

    # Elements are mapped, so that an invalid one is NaN alone.
    shape = np.broadcast_shapes(np.shape(state.merged), np.shape(query))
    flat_columns = []
    for column in columns:
        capacity = column.shape[-1]
        flat_columns.append(jnp.broadcast_to(column, (*shape, capacity)).reshape(-1, capacity))
    flat_query = jnp.broadcast_to(query, shape).reshape(-1)
    bounds = jax.vmap(ask)(*flat_columns, flat_query)
    return bounds.upper.reshape(shape)
