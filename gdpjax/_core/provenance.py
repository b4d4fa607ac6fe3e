"""A record of the sums that a clip has made, so that `privatize` noises one of them and nothing else.

    total = grad_fn(params, batch)                    # recorded here
    updates, state = tx.update(total, state, params)  # accepted: these are the arrays that grad_fn returned

Noise is scaled to what a clip promises of ITS sums. A gradient of the mean loss, the sum of another clip, or a sum that
was scaled on the way has another sensitivity, and no number in it shows that. So a clip keeps a `Provenance`, a record
of each sum: its leaves (held weakly), the trace it was made in, its rows and its devices. What `privatize` is given
must be, leaf by leaf, the very objects of one such record. Chains, schedules and `optax.identity` pass them on as they
are, while arithmetic makes new ones.

At the boundary of a compiled function arrays are replaced by others, and no identity is left to compare: the gradients
are made in one `jax.jit` and noised outside of it, or the other way round. Such updates are accepted only where the
clip made a sum in another trace that was not taken there. That is the weakest point: once a clip has such a sum, what
crosses a boundary is believed. Programs that are compiled already are not checked again, as they were checked when they
were traced. A sum that was computed at once counts only while it exists.
"""

import collections
import dataclasses
import weakref
from typing import Any

import jax
from jax.extend.core import get_opaque_trace_state

from gdpjax._core.types import PyTree

with jax.ensure_compile_time_eval():
    _EAGER = get_opaque_trace_state()
"""The trace of what is computed at once."""

_REMEMBERED_TRACES = 64
"""How many traces with sums that were not taken are told apart; of earlier ones only their existence is known."""


def current_trace() -> Any:
    """Return what compiles, maps or differentiates the running code; equal for calls that run under the same."""
    return get_opaque_trace_state()


@dataclasses.dataclass(eq=False)
class RecordedSum:
    """One sum that a clip made.

    Attributes:
      leaves: weak references to its arrays, in the order of the tree.
      trace: where it was made.
      num_rows: its rows, padding included.
      num_devices: the devices that its rows were spread over.
      has_mask: whether the clip was told which of its rows are padding.
      is_taken: whether a private transform has taken it.
    """

    leaves: list[weakref.ref]
    trace: Any
    num_rows: int
    num_devices: int
    has_mask: bool
    is_taken: bool = False

    def is_made_of(self, leaves: list[Any]) -> bool:
        """Return whether ``leaves`` are these very arrays, all of them, in order."""
        if len(self.leaves) != len(leaves):
            return False
        return all(reference() is leaf for reference, leaf in zip(self.leaves, leaves, strict=True))


class _WaitingSums:
    """The number of sums of one trace that no private transform has taken yet."""

    def __init__(self, trace: Any) -> None:
        self.trace = trace
        self.count = 1


class Provenance:
    """The sums that one clip has made, and where."""

    def __init__(self) -> None:
        self._has_made_sums = False
        # By the id of the first leaf, for as long as that leaf exists.
        self._alive: dict[int, RecordedSum] = {}
        self._waiting: collections.deque[_WaitingSums] = collections.deque()
        self._waited_long_ago = False

    def __reduce__(self) -> Any:
        # A copy in another process, or a deep copy, has made nothing.
        return Provenance, ()

    def record(self, total: PyTree, num_rows: int, num_devices: int = 1, has_mask: bool = True) -> None:
        """Record the sum ``total`` of ``num_rows`` rows, which were spread over ``num_devices``.

        ``has_mask`` is false where the clip could have been told which rows are padding, and was not.
        """
        leaves = jax.tree.leaves(total)
        first = id(leaves[0])

        def forget(_: Any) -> None:
            self._alive.pop(first, None)

        references = [weakref.ref(leaves[0], forget), *map(weakref.ref, leaves[1:])]
        recorded = RecordedSum(references, current_trace(), num_rows, num_devices, has_mask)
        self._alive[first] = recorded
        self._has_made_sums = True
        self._wait_for(recorded.trace)

    def take(self, updates: PyTree, trace: Any) -> RecordedSum | None:
        """Take ``updates`` for noise in ``trace``.

        Returns:
          The record of the sum that they are, or None for a sum of another trace.

        Raises:
          ValueError: they are no sum of this clip.
        """
        leaves = jax.tree.leaves(updates)
        recorded = self._alive.get(id(leaves[0])) if leaves else None
        if recorded is not None and recorded.is_made_of(leaves):
            self._mark_as_taken(recorded)
            return recorded

        # These are other objects. They may be a sum that has crossed the boundary of a compiled function, if there is
        # one in another trace, and this trace made none of its own.
        is_awaited_here = any(waiting.trace == trace for waiting in self._waiting)
        is_awaited_elsewhere = self._waited_long_ago or any(waiting.trace != trace for waiting in self._waiting)
        if trace != _EAGER:
            # What was computed at once is still there while it is passed to a function that is compiled for it.
            alive = list(self._alive.values())
            is_awaited_elsewhere |= any(made.trace == _EAGER and not made.is_taken for made in alive)
        if is_awaited_elsewhere and not is_awaited_here:
            return None

        # A program that is refused while it is traced never runs, so its sums are no longer waited for.
        self._waiting = collections.deque(waiting for waiting in self._waiting if waiting.trace != trace)
        raise ValueError(self._refusal())

    def _wait_for(self, trace: Any) -> None:
        """Count one more sum of a trace that is not taken yet."""
        if trace == _EAGER:
            return
        for waiting in self._waiting:
            if waiting.trace == trace:
                waiting.count += 1
                return
        self._waiting.append(_WaitingSums(trace))
        if len(self._waiting) > _REMEMBERED_TRACES:
            self._waiting.popleft()
            self._waited_long_ago = True

    def _mark_as_taken(self, recorded: RecordedSum) -> None:
        """Mark a sum as taken, and stop waiting for it."""
        if recorded.is_taken:
            return
        recorded.is_taken = True
        for waiting in self._waiting:
            if waiting.trace == recorded.trace:
                waiting.count -= 1
        self._waiting = collections.deque(waiting for waiting in self._waiting if waiting.count)

    def _refusal(self) -> str:
        """Return why updates that are no sum of this clip are refused."""
        right = "give update what the clip returned: tx.update(grad_fn(params, batch), state, params)"
        if not self._has_made_sums:
            return (
                "the updates are no clipped sum, as the clip (gdpjax.clipped_grad, gdpjax.clip_and_sum) that "
                f"privatize was given has made none; jax.grad of a mean loss is not clipped at all; {right}"
            )
        return (
            "the updates are not a sum that the clip of privatize returned. Something changed it before the noise (an "
            "optax transformation in front of privatize, a mean, a cast), another clip made it, or it is a gradient "
            f"that was never clipped (jax.grad of a mean loss); {right}. A change that keeps the sensitivity, such as "
            "jax.lax.psum over devices, must be stated: gdpjax.Sensitivity(value) in the place of the clip"
        )
