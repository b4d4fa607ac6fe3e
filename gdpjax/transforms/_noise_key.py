"""The key of a private transform: no noise is used twice.

    noise_key = NoiseKey(key)
    key_data = noise_key.begin(hyperparameters, params)         # in init, for the state
    run_key, valid = noise_key.of(state, updates, multiplier)   # in update

The state holds the key's data and the step count; step t uses fold_in(key, t) and each leaf folds in a 64-bit digest of
its path. Three ways to meet a key again are refused:

*Configurations that share it.* Subtracting their outputs would cancel the noise. A custom vmap rule sees a shared key
under batched values; a key that is a constant of a loop (`jax.lax.map`, scan), or the same on devices whose
configurations differ, is seen by `gdpjax._core.keys`.

*A state that begins again.* A wrapper that calls ``init`` within a step, after ``update``, sets the step count to 0, so
that the next steps repeat the noise of the first ones, and the ledger forgets them. The compiled programs in which
``update`` was called are known, and ``init`` refuses them. Outside compiled code nothing is refused: a second ``init``
there may begin a second run.
"""

import weakref
from typing import Any

import jax

from gdpjax._core.keys import check_key, program_around, refuse_constant_key, unshared
from gdpjax._core.types import Array, PyTree


class NoiseKey:
    """The PRNG key that a private transform was given, and the compiled programs in which it has made noise."""

    def __init__(self, key: Any) -> None:
        self._key = key
        self._data, self._impl = check_key(key)
        self._programs: weakref.WeakSet[Any] = weakref.WeakSet()

    def begin(self, hyperparameters: Any, params: PyTree) -> Array:
        """Return the key's data for a new state of ``params``.

        Raises:
          ValueError: the state began in this program before, or the key is one that ``hyperparameters`` share.
        """
        if program_around() in self._programs:
            raise ValueError(
                "init of a private transform was called in a compiled step, after its update: the steps after it would "
                "repeat the noise of the first ones, and the ledger would forget them. Reset what follows "
                "gdpjax.privatize in the chain and leave its state alone, or begin another run with a key of its own"
            )
        refuse_constant_key(self._key, hyperparameters)
        data, _ = unshared(self._data, hyperparameters, params)
        return data

    def of(self, state: Any, *values: Any) -> tuple[Array, Array]:
        """Return the key in ``state`` for the noise on ``values``, and a factor for the noise, as `unshared` does."""
        program = program_around()
        if program is not None:
            self._programs.add(program)
        data, valid = unshared(state.key_data, *values)
        return jax.random.wrap_key_data(data, impl=self._impl), valid
