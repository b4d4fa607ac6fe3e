"""The ledger of some steps of a private transform, without the noise."""

import jax

from gdpjax import ledger_of


def recorded_state(tx, params, num_steps):
    """Return the state after some steps on zeros. Nothing asks for the noise, so it is not compiled."""

    @jax.jit
    def step(state):
        _, after = tx.update(params, state, params)
        return state._replace(count=after.count, ledger=after.ledger)

    state = tx.init(params)
    for _ in range(num_steps):
        state = step(state)
    assert step._cache_size() == 1
    return state


def recorded(tx, params, num_steps):
    """Return the ledger of some steps on zeros."""
    return ledger_of(recorded_state(tx, params, num_steps))
