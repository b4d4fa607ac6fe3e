"""The steps of a chunk, with one state written in place of the one before.

A jitted step that keeps its argument returns a second state beside it, and a copy of everything that it does not
change, such as a frozen base model. Here a state is taken apart into the leaves that a step can change and those that
it hands back as they are, which the trace of the step tells. Only the former go in and come out, and the memory of
those that went in is given to those that come out (donated).

The state at the beginning of a chunk is kept, because an interrupted chunk is repeated from it, and because callers may
hold its arrays. So the chunk begins with a copy of the leaves that change, and holds two of each in all, not three.
What is not changed is held once, however many steps are taken.

One compiled loop takes any number of steps up to a fixed one, which is an argument of it. It writes their Infos into
arrays with room for that many; NumPy cuts off what was not used, because a cut on the device is compiled for each
length. All runs of one training share its compiled steps, so several seeds are compiled once.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from gdpjax._core.types import Array, PyTree
from gdpjax._core.xla import program_digest
from gdpjax.training._data import Data
from gdpjax.training._processes import whole

_MOST_STEPS = 256
"""Steps of one call of the loop, at most."""
_MOST_ENTRIES = 2**18
"""Entries of each array that it writes an Info to, at most; all of them have 2.6 MB then."""

Leaves = list[Array | None]


class StepsInPlace:
    """The steps of one training; compiled at the first chunk. Made by `steps_in_place`.

    Args:
      step: takes one step, from a state and data to a state and its Info.
      structure: of the states.
      changes: for each leaf of a state, whether a step can change it.
      info: shapes and types of the Info of one step.
    """

    def __init__(
        self,
        step: Callable[[PyTree, Data], tuple[PyTree, PyTree]],
        structure: Any,
        changes: list[bool],
        info: PyTree,
    ) -> None:
        self._structure = structure
        self._changes = changes
        num_entries = max(leaf.size for leaf in jax.tree.leaves(info))
        self._most_steps = max(1, min(_MOST_STEPS, _MOST_ENTRIES // num_entries))

        def one_step(
            changing: Leaves,
            fixed: Leaves,
            data: Data,
        ) -> tuple[Leaves, PyTree]:
            before = self._together(changing, fixed)
            after, info = step(before, data)
            changing, _ = self._apart(after)
            return changing, info

        def loop(
            changing: Leaves,
            fixed: Leaves,
            data: Data,
            num_steps: Array,
        ) -> tuple[Leaves, PyTree]:
            def with_room(row: Any) -> Array:
                # On an Explicit mesh the spread over devices is part of the type.
                sharding = row.sharding and row.sharding.update(spec=PartitionSpec(None, *row.sharding.spec))
                return jnp.zeros((self._most_steps, *row.shape), row.dtype, out_sharding=sharding)

            def next_step(index: Array, before: tuple[Leaves, PyTree]) -> tuple[Leaves, PyTree]:
                changing, infos = before
                changing, info = one_step(changing, fixed, data)

                def written(rows: Array, row: Array) -> Array:
                    return jax.lax.dynamic_update_index_in_dim(rows, row, index, 0)

                return changing, jax.tree.map(written, infos, info)

            return jax.lax.fori_loop(0, num_steps, next_step, (changing, jax.tree.map(with_room, info)))

        self._is_compiled = False
        self._step = jax.jit(one_step, donate_argnums=0)
        self._loop = jax.jit(loop, donate_argnums=0)

    def compile_loop(self, state: PyTree, data: Data) -> None:
        """Compile the loop, unless it is, by a call without steps."""
        if not self._is_compiled:
            changing, fixed = self._apart(state)
            jax.block_until_ready(self._loop(_copies(changing), fixed, data, np.int32(0)))
            self._is_compiled = True

    def in_a_loop(self, state: PyTree, data: Data, num_steps: int) -> tuple[PyTree, PyTree]:
        """Take the steps in a compiled loop; the Info, of NumPy's arrays, has a leading axis."""
        changing, fixed = self._apart(state)
        changing = _copies(changing)

        parts = []
        for first in range(0, num_steps, self._most_steps):
            count = min(num_steps - first, self._most_steps)
            changing, infos = self._loop(changing, fixed, data, np.int32(count))
            parts.append(_cut(infos, count))
        infos = jax.tree.map(lambda *rows: np.concatenate(rows), *parts)
        return self._together(changing, fixed), infos

    def one_by_one(
        self,
        state: PyTree,
        data: Data,
        num_steps: int,
        after_each: Callable[[int], None],
    ) -> tuple[PyTree, list[PyTree]]:
        """Take the steps one after the other; ``after_each`` is called with how many of them are done."""
        changing, fixed = self._apart(state)
        changing = _copies(changing)

        infos = []
        for done in range(1, num_steps + 1):
            changing, info = self._step(changing, fixed, data)
            infos.append(info)
            after_each(done)
        return self._together(changing, fixed), infos

    def digest(self, state: PyTree, data: Data, *, in_a_loop: bool) -> str:
        """Return the SHA-256 of the program that takes the steps, in a loop or one by one."""
        changing, fixed = self._apart(state)
        if in_a_loop:
            return program_digest(self._loop, changing, fixed, data, np.int32(1))
        return program_digest(self._step, changing, fixed, data)

    def held_bytes(self, state: PyTree, data: Data) -> int | None:
        """Return the bytes that are held while a step is taken, by the compiler's account; None where it gives none.

        They are those of data, of fixed leaves, of the state in work and of temporary buffers, on one device; and those
        of the leaves that are kept from the beginning of the chunk. Shapes do for ``state`` and ``data``.
        """
        changing, fixed = self._apart(state)
        memory = self._step.lower(changing, fixed, data).compile().memory_analysis()
        if memory is None:
            return None

        # The compiler counts memory that was donated twice, as an argument and as a result.
        held = memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
        held += memory.temp_size_in_bytes

        # The leaves that are kept from the beginning of the chunk.
        for leaf in jax.tree.leaves(changing):
            held += leaf.size * leaf.dtype.itemsize
        return int(held)

    def _together(self, changing: Leaves, fixed: Leaves) -> PyTree:
        """Return the state of which `_apart` has returned the leaves."""
        leaves = [new if old is None else old for old, new in zip(fixed, changing, strict=True)]
        return jax.tree.unflatten(self._structure, leaves)

    def _apart(self, state: PyTree) -> tuple[Leaves, Leaves]:
        """Return the leaves that a step can change, and the others, each None where the other list has the leaf."""
        leaves = map(_as_restored, jax.tree.leaves(state))
        pairs = list(zip(leaves, self._changes, strict=True))
        changing = [leaf if changes else None for leaf, changes in pairs]
        fixed = [None if changes else leaf for leaf, changes in pairs]
        return changing, fixed


def _as_restored(leaf: Any) -> Any:
    """Return a leaf in the type that a checkpoint gives it: a weak one promotes otherwise, and makes other bits."""
    if not getattr(leaf, "weak_type", False):
        return leaf
    return leaf.update(weak_type=False) if isinstance(leaf, jax.ShapeDtypeStruct) else leaf.astype(leaf.dtype)


def _cut(infos: PyTree, count: int) -> PyTree:
    """Return the first rows of arrays, as NumPy's."""
    return jax.tree.map(lambda rows: whole(rows)[:count], infos)


@jax.jit
def _copies(leaves: Leaves) -> Leaves:
    """Return leaves with memory of their own: those of a first state may share theirs, which is donated only once."""
    return jax.tree.map(jnp.copy, leaves)


def steps_in_place(step: Any, state: PyTree, data: Data) -> StepsInPlace:
    """Return the steps of a training, the same object for all of its runs whose states are alike.

    Args:
      step: the ``step`` of the training.
      state, data: what it is called with, or shapes.
    """
    # They are kept beside the step that they are made of, so that they go when the training goes.
    leaves, structure = jax.tree.flatten(state)
    kind = structure, *map(jax.typeof, [*leaves, *jax.tree.leaves(data)])
    if kind not in step.in_place:
        traced = step.trace(state, data)
        program = traced.jaxpr.jaxpr
        # A leaf that is handed back is one variable of the program, given and returned.
        changes = [new is not old for old, new in zip(program.invars[: len(leaves)], program.outvars, strict=False)]
        _, info = traced.out_info
        step.in_place[kind] = StepsInPlace(step, structure, changes, info)
    return step.in_place[kind]
