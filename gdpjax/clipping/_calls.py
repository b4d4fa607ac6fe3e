"""Which sums a clip has made, so that `privatize` noises one of them and nothing else.

    total = grad_fn(params, batch)                    # noted here
    updates, state = tx.update(total, state, params)  # accepted: these are the arrays that grad_fn returned

Noise is scaled to what the clip promises of ITS sums. A gradient of the mean loss, the sum of another clip, or a sum
that something has scaled on the way has another sensitivity, and no number in it shows that. So a clip keeps a record
of each sum: its leaves (held weakly), the trace it was made in, and its rows. What `privatize` is given must be, leaf
by leaf, the very objects of one such record. Chains, schedules and `optax.identity` pass them on as they are, while
arithmetic makes new ones.

At the boundary of a compiled function arrays are replaced by others, and no identity is left to compare: gradients made
in one `jax.jit` and noised outside of it, or the other way round. Such updates are accepted only where the clip made a
sum in another trace that was not handed over there. That is the weakest point: once a clip has such a sum, what crosses
a boundary is believed. Nothing is asked of programs that are compiled already, as they were checked when traced. A sum
that was computed at once counts only while it exists.

The records also say of how many rows a sum is, which decides what adding several of them up costs (the last section of
`_clip`'s docstring).
"""

import collections
import dataclasses
import weakref
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import get_opaque_trace_state

from gdpjax._core.shown import shown
from gdpjax._core.types import PyTree
from gdpjax.clipping._rounding_budget import MAX_SLACK, RoundingBudget

with jax.ensure_compile_time_eval():
    _EAGER = get_opaque_trace_state()
"""The trace of what is computed at once."""

_REMEMBERED_TRACES = 64
"""How many traces with sums that were not handed over are told apart; that there are earlier ones is all one knows."""


def current_trace() -> Any:
    """What compiles, maps or differentiates the running code; equal for calls that run under the same."""
    return get_opaque_trace_state()


@dataclasses.dataclass(eq=False)
class Sum:
    """One sum that a clip made.

    Attributes:
      leaves: weak references to its arrays, in the order of the tree.
      trace: where it was made.
      rounding: how it was added up; None for the sum of no rows.
      num_rows: its rows, padding included.
      handed_over: whether a private transform has taken it.
    """

    leaves: list[weakref.ref]
    trace: Any
    rounding: RoundingBudget | None
    num_rows: int
    handed_over: bool = False

    def is_made_of(self, leaves: list[Any]) -> bool:
        """Whether ``leaves`` are these very arrays, all of them, in order."""
        same = [ref() is leaf for ref, leaf in zip(self.leaves, leaves, strict=False)]
        return all(same) and len(self.leaves) == len(leaves)


class Charge(NamedTuple):
    """What one sum adds to the sensitivity of the total that it is part of, in clip norms.

    Attributes:
      row: the largest norm of a row in it.
      rounding: what its roundings, and those of adding it to the total, can move the total by.
    """

    row: float
    rounding: float


class _Waiting:
    """The sums of one trace that no private transform has taken yet."""

    def __init__(self, trace: Any) -> None:
        self.trace, self.count = trace, 1


class Calls:
    """The sums that a clip has made, and where."""

    def __init__(self, max_batch_size: int | None) -> None:
        self.max_batch_size = max_batch_size
        self._made = 0
        self._alive: dict[int, Sum] = {}  # by the id of the first leaf, while that leaf exists
        self._waiting: collections.deque[_Waiting] = collections.deque()
        self._waited_long_ago = False
        self._roundings: set[RoundingBudget] = set()

    def __reduce__(self) -> Any:
        # A copy in another process, or a deep copy, has made nothing.
        return Calls, (self.max_batch_size,)

    def note(self, total: PyTree, rounding: RoundingBudget | None, num_rows: int) -> None:
        """Remember the sum ``total`` of ``num_rows`` rows."""
        self._made += 1
        if rounding is not None:
            self._roundings.add(rounding)
        leaves = jax.tree.leaves(total)
        first = id(leaves[0])
        forget = lambda _: self._alive.pop(first, None)  # noqa: E731
        references = [weakref.ref(leaves[0], forget), *map(weakref.ref, leaves[1:])]
        made = Sum(references, current_trace(), rounding, num_rows)
        self._alive[first] = made
        self._wait(made.trace)

    def hand_over(self, updates: PyTree, trace: Any) -> Sum | None:
        """Take ``updates`` for noise in ``trace``: the `Sum` that they are, or None for one of another trace.

        Raises:
          ValueError: they are no sum of this clip.
        """
        leaves = jax.tree.leaves(updates)
        made = self._alive.get(id(leaves[0])) if leaves else None
        if made is not None and made.is_made_of(leaves):
            self._take(made)
            return made
        here = any(waiting.trace == trace for waiting in self._waiting)
        elsewhere = self._waited_long_ago or any(waiting.trace != trace for waiting in self._waiting)
        if trace != _EAGER:
            # What was computed at once is still there while it is handed to a function that is compiled for it.
            alive = list(self._alive.values())
            elsewhere |= any(made.trace == _EAGER and not made.handed_over for made in alive)
        if elsewhere and not here:
            return None
        # A program that is refused while it is traced never runs, and what it made is not waited for any longer.
        self._waiting = collections.deque(waiting for waiting in self._waiting if waiting.trace != trace)
        raise ValueError(self._refusal())

    def charge(self, updates: PyTree, trace: Any, num_sums: int) -> Charge:
        """What ``updates``, one of ``num_sums`` that are added up, adds to the sensitivity of the total.

        Raises:
          ValueError: as `hand_over`; a sum of another trace whose rows nothing bounds; roundings above 1%.
        """
        made = self.hand_over(updates, trace)
        if num_sums == 1:
            return Charge(1.0, 0.0)
        if made is not None:
            num_rows, roundings = made.num_rows, {made.rounding}
        elif self.max_batch_size is not None:
            num_rows, roundings = self.max_batch_size, self._roundings
        else:
            raise ValueError(
                "of how many rows the accumulated sum is cannot be seen, as it was made outside this compiled function "
                "(or inside another); call the clip and update in the same jax.jit, or give max_batch_size to the clip"
            )
        charges = [_charge(rounding, num_rows) for rounding in roundings if rounding is not None]
        row = max((charge.row for charge in charges), default=0.0)
        rounding = max((charge.rounding for charge in charges), default=0.0)
        total = row + num_sums * rounding
        if total > 1 + MAX_SLACK:
            rows = num_sums * num_rows
            raise ValueError(
                f"the rounding of {num_sums} sums of {rows} rows together could reach {total - 1:.1%} of the clip "
                f"norm, more than 1%; give the rows of the logical batch, such as max_batch_size={rows}, to the clip, "
                "so that it adds them up more carefully, and call it in the same jax.jit as update"
            )
        return Charge(row, rounding)

    def _wait(self, trace: Any) -> None:
        """One more sum of a trace is not handed over yet."""
        if trace == _EAGER:
            return
        for waiting in self._waiting:
            if waiting.trace == trace:
                waiting.count += 1
                return
        self._waiting.append(_Waiting(trace))
        if len(self._waiting) > _REMEMBERED_TRACES:
            self._waiting.popleft()
            self._waited_long_ago = True

    def _take(self, made: Sum) -> None:
        """The sum is handed over."""
        if made.handed_over:
            return
        made.handed_over = True
        for waiting in self._waiting:
            if waiting.trace == made.trace:
                waiting.count -= 1
        self._waiting = collections.deque(waiting for waiting in self._waiting if waiting.count)

    def _refusal(self) -> str:
        right = "give update what the clip returned: tx.update(grad_fn(params, batch), state, params)"
        if not self._made:
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


def _charge(how: RoundingBudget, num_rows: int) -> Charge:
    """The terms of `_clip`'s formula for several calls that belong to one of them."""
    clipped_to = 1 / (1 + how.slack)
    # Adding the sum to the total, and rounding the total once, costs another 2.1 u for each row.
    return Charge((1 + how.norm) * clipped_to, num_rows * (how.per_row + 2.1 * how.unit) * clipped_to)


def check_static_size(name: str, size: Any) -> None:
    """ValueError unless ``size`` is None or a static whole number >= 1."""
    if size is None or (isinstance(size, int | np.integer) and not isinstance(size, bool) and size >= 1):
        return
    advice = ""
    if isinstance(size, jax.Array):
        advice = f"; it decides shapes and rounding, so under optax.inject_hyperparams list {name} in static_args"
    raise ValueError(f"{name} must be a whole number >= 1, got {shown(size)}{advice}")


def refuse_call_as_schedule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """ValueError where a clip is called with a step count, as optax.inject_hyperparams calls every function."""
    if len(args) == 1 and not kwargs and np.ndim(args[0]) == 0 and hasattr(args[0], "dtype"):
        raise ValueError(
            "the clipped_grad function was called with one number, as a schedule is: under optax.inject_hyperparams "
            'name it in static_args, such as optax.inject_hyperparams(gdpjax.dpsgd, static_args=("clipped_by", '
            '"key", "ledger_capacity", "nesterov")) (for gdpjax.privatize: "clip")'
        )
