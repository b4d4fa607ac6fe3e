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
import jax.numpy as jnp

from gdpjax._core.keys import check_key, program_around, refuse_constant_key, refuse_key_of_a_loop, varying_axes
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
        data, _ = _unshared(self._data, hyperparameters, params)
        return data

    def of(self, state: Any, *values: Any) -> tuple[Array, Array]:
        """Return the key in ``state`` for the noise on ``values``, and a factor for the noise, as `_unshared` does."""
        program = program_around()
        if program is not None:
            self._programs.add(program)
        data, valid = _unshared(state.key_data, *values)
        return jax.random.wrap_key_data(data, impl=self._impl), valid


@jax.custom_batching.custom_vmap
def _witnessed(key_data: Array, witnesses: list[Array]) -> tuple[Array, Array]:
    """Return ``key_data``, and 1, or NaN where vmap shows that several configurations share it."""
    del witnesses
    return key_data, jnp.ones((), jnp.float32)


@_witnessed.def_vmap
def _refuse_shared_key(axis_size: int, in_batched: Any, key_data: Array, witnesses: list[Array]) -> Any:
    """Return `_witnessed` under vmap, and which of its results are batched; ValueError for a key that is not."""
    key_is_batched, batched_witnesses = in_batched
    differs = any(jax.tree.leaves(batched_witnesses))
    if not key_is_batched and differs:
        raise ValueError(
            f"{axis_size} configurations under vmap share one noise key; subtracting their results would cancel the "
            "noise. Give each its own: jax.random.split(key, n) mapped over, or fold in the configuration's index"
        )
    if not key_is_batched:
        return _witnessed(key_data, witnesses), (False, False)

    # A cond with a batched predicate broadcasts its operands, a shared key among them: compare the values.
    rows = key_data.reshape(-1, key_data.shape[-1])
    ordered = rows[jnp.lexsort(rows.T)]
    is_equal = jnp.all(ordered[1:] == ordered[:-1], axis=1)
    is_shared = jnp.any(is_equal) & differs

    keys, valid = _witnessed(key_data, witnesses)
    valid = jnp.where(is_shared, jnp.nan, valid)
    return (keys, jnp.broadcast_to(valid, (axis_size,))), (True, True)


def _unshared(key_data: Array, *values: Any) -> tuple[Array, Array]:
    """Return ``key_data`` and a factor for the noise; refuse a key that configurations under vmap share.

    A key is shared if it is the same for configurations that differ in any of ``values``. The factor is 1, or NaN where
    the sharing shows only in the values of the keys.
    """
    refuse_key_of_a_loop(key_data)
    leaves = jax.tree.leaves(values)

    # In a shard_map the key must vary over all axes that anything else varies over.
    axes = set()
    for leaf in leaves:
        axes |= varying_axes(leaf)
    shared_axes = axes - varying_axes(key_data)
    if shared_axes:
        raise ValueError(
            f"what varies over the mesh axes {sorted(shared_axes)} of a shard_map would share one noise key; "
            "subtracting the results of two devices would cancel the noise. Add gradients up over the devices before "
            "(jax.lax.psum), or give each configuration its own key: pass an array of keys over the same axes"
        )

    # Under vmap the rule of `_witnessed` looks at what is batched.
    witnesses = [jax.lax.stop_gradient(jnp.asarray(leaf)) for leaf in leaves]
    return _witnessed(jnp.asarray(key_data), witnesses)
