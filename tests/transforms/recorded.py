"""The ledger of some steps of a private transform, without the noise."""

import jax

from gdpjax import ledger_of


def recorded_state(tx, params, num_steps, updates=None):
    """Return the state after some steps on the parameters, or on ``updates``; no noise is asked for, and compiled."""

    @jax.jit
    def step(state):
        _, after = tx.update(params if updates is None else updates, state, params)
        return state._replace(count=after.count, ledger=after.ledger)

    state = tx.init(params)
    for _ in range(num_steps):
        state = step(state)
    assert step._cache_size() == 1
    return state


def recorded(tx, params, num_steps, updates=None):
    """Return the ledger of some steps."""
    return ledger_of(recorded_state(tx, params, num_steps, updates))
