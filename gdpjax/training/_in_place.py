"""The steps of a chunk, with one state written in place of the one before.

A jitted step that keeps its argument returns a second state beside it, and a copy of everything that it does not
change, such as a frozen base model. Here a state is taken apart into the leaves that a step can change and those that
it hands back as they are, which the trace of the step tells. Only the former go in and come out, and the memory of
those that went in is given to those that come out (donated).

The state at the beginning of a chunk is kept, because an interrupted chunk is repeated from it, and because callers may
hold its arrays. So the chunk begins with a copy of the leaves that change, and holds two of each in all, not three.
What is not changed is held once, however many steps are taken.

All runs of one training share its compiled steps, so several seeds are compiled once.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.training._data import Data
from gdpjax.training._loop import Info, State, Training


class StepsInPlace:
    """The steps of one training; compiled at the first chunk. Made by `steps_in_place`.

    Args:
      training: whose steps they are.
      structure: of the states.
      changes: for each leaf of a state, whether a step can change it.
    """

    def __init__(self, training: Training, structure: Any, changes: tuple[bool, ...]) -> None:
        self._structure = structure
        self._changes = changes

        def step(
            changing: list[Array],
            fixed: list[Array],
            data: Data,
        ) -> tuple[list[Array], Info]:
            before = self._together(changing, fixed)
            after, info = training.step(before, data)
            changing, _ = self._apart(after)
            return changing, info

        def run_steps(
            changing: list[Array],
            fixed: list[Array],
            data: Data,
            num_steps: int,
        ) -> tuple[list[Array], Info]:
            before = self._together(changing, fixed)
            after, info = training.run_steps(before, data, num_steps)
            changing, _ = self._apart(after)
            return changing, info

        self._step = jax.jit(step, donate_argnums=0)
        # A scan copies what it is given into the memory that its steps write to, so that there is nothing to donate.
        self._run_steps = jax.jit(run_steps, static_argnums=3)

    def scan(self, state: State, data: Data, num_steps: int) -> tuple[State, Info]:
        """Take the steps as one compiled scan; the Info has a leading axis."""
        changing, fixed = self._apart(state)
        changing, info = self._run_steps(changing, fixed, data, num_steps)
        return self._together(changing, fixed), info

    def one_by_one(
        self,
        state: State,
        data: Data,
        num_steps: int,
        after_each: Callable[[int], None],
    ) -> tuple[State, list[Info]]:
        """Take the steps one after the other; ``after_each`` is called with how many of them are done."""
        changing, fixed = self._apart(state)
        # Each leaf gets memory of its own: leaves of a first state may share theirs, which is donated only once.
        changing = [jnp.copy(leaf) for leaf in changing]

        infos = []
        for done in range(1, num_steps + 1):
            changing, info = self._step(changing, fixed, data)
            infos.append(info)
            after_each(done)
        return self._together(changing, fixed), infos

    def held_bytes(self, state: State, data: Data) -> int | None:
        """Return the bytes that are held while a step is taken, by the compiler's account; None where it gives none.

        They are those of data, of fixed leaves, of the state in work and of temporary buffers, on one device; and those
        of the leaves that are kept from the beginning of the chunk. Shapes do for ``state`` and ``data``.
        """
        changing, fixed = self._apart(state)
        lowered = self._step.lower(changing, fixed, data)
        memory = lowered.compile().memory_analysis()
        if memory is None:
            return None

        # The compiler counts memory that was donated twice, as an argument and as a result.
        held = memory.argument_size_in_bytes
        held += memory.output_size_in_bytes
        held += memory.temp_size_in_bytes
        held -= memory.alias_size_in_bytes

        # The leaves that are kept from the beginning of the chunk.
        for leaf in changing:
            held += leaf.size * leaf.dtype.itemsize
        return int(held)

    def _together(self, changing: list[Array], fixed: list[Array]) -> State:
        """Return the state of which `_apart` has returned the leaves."""
        next_changing = iter(changing)
        next_fixed = iter(fixed)
        leaves = []
        for changes in self._changes:
            source = next_changing if changes else next_fixed
            leaves.append(next(source))
        return jax.tree.unflatten(self._structure, leaves)

    def _apart(self, state: State) -> tuple[list[Array], list[Array]]:
        """Return the leaves that a step can change, and the others."""
        changing = []
        fixed = []
        for leaf, changes in zip(jax.tree.leaves(state), self._changes, strict=True):
            group = changing if changes else fixed
            group.append(leaf)
        return changing, fixed


def steps_in_place(training: Training, state: State, data: Data) -> StepsInPlace:
    """Return the steps of a training, the same object for all of its runs whose states are alike."""
    structure = jax.tree.structure(state)
    changes = _changed_leaves(training, state, data)
    # They are kept beside the step that they are made of, so that they go when the training goes.
    step: Any = training.step
    kind = structure, changes, training.run_steps
    if kind not in step.in_place:
        step.in_place[kind] = StepsInPlace(training, structure, changes)
    return step.in_place[kind]


def _changed_leaves(training: Training, state: State, data: Data) -> tuple[bool, ...]:
    """Return for each leaf of the state whether a step can change it."""
    traced: Any = training.step.trace(state, data)  # type: ignore[attr-defined]
    num_leaves = len(jax.tree.leaves(state))

    # A leaf that is handed back is one variable of the program, given and returned.
    program = traced.jaxpr.jaxpr
    given = program.invars[:num_leaves]
    returned = program.outvars[:num_leaves]
    return tuple(new is not old for new, old in zip(returned, given, strict=True))
