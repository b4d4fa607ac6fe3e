"""The clipped sum of a batch, all at once or by `lax.scan` over chunks: memory of one chunk, any batch and chunk size.

A batch that is not a multiple of the chunk is padded with copies of a row, marked as padding, so that the loss never
sees data that was not in the batch. The running sums are the compensated pairs of `_clip`, so chunking does not change
the result beyond the rounding that the clip's slack covers.

With several groups (devices) every chunk takes rows from every group: the batch is read as [groups, chunks, rows], and
the axis of chunks, which is what is scanned over, is never the one that is spread over devices.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._clip import Pair, Rounding, add_clipped, scaling, zero_pairs
from gdpjax.clipping._rows import Rows
from gdpjax.clipping._rules import Groups, Rule


class Layout(NamedTuple):
    """Rows of a batch in chunks: ``groups`` x ``chunks`` x ``rows`` places for ``total`` rows."""

    total: int
    groups: int
    chunks: int
    rows: int

    @classmethod
    def of(cls, total: int, groups: int, chunk: int) -> "Layout":
        """Chunks of about ``chunk`` rows (a multiple of ``groups``, which divides ``total``)."""
        in_group = total // groups
        rows = min(max(chunk // groups, 1), in_group)
        return cls(total, groups, -(-in_group // rows), rows)

    def split(self, batch: Array) -> Array:
        """[total, ...] as [chunks, groups * rows, ...]."""
        grouped = batch.reshape(self.groups, self.total // self.groups, *batch.shape[1:])
        missing = self.chunks * self.rows - grouped.shape[1]
        if missing:
            first = jnp.broadcast_to(grouped[:, :1], (self.groups, missing, *batch.shape[1:]))
            grouped = jnp.concatenate([grouped, first], axis=1)
        chunked = jnp.swapaxes(grouped.reshape(self.groups, self.chunks, self.rows, *batch.shape[1:]), 0, 1)
        return chunked.reshape(self.chunks, self.groups * self.rows, *batch.shape[1:])

    def join(self, chunks: Array) -> Array:
        """The inverse of `split`, without the padding."""
        grouped = jnp.swapaxes(chunks.reshape(self.chunks, self.groups, self.rows, *chunks.shape[2:]), 0, 1)
        rows = grouped.reshape(self.groups, self.chunks * self.rows, *chunks.shape[2:])
        return rows[:, : self.total // self.groups].reshape(self.total, *chunks.shape[2:])

    @property
    def is_padded(self) -> bool:
        """Whether some places hold no row."""
        return self.chunks * self.rows * self.groups != self.total


class Outcome(NamedTuple):
    """Running sums, and per-row norms and whatever else the gradients came with."""

    pairs: list[Pair]
    norms: Array
    extra: Any


def clipped_sum(
    gradients: Callable[[Any, Array], tuple[list[Rows], Any]], batch: Any, leaves: list[Array], rule: Rule,
    groups: Groups, how: Rounding, layout: Layout, is_padding: Array | None, unroll: bool,
) -> Outcome:  # fmt: skip
    """Clip the rows that ``gradients(batch rows, their positions)`` gives, and add them up."""
    split = functools.partial(jax.tree.map, layout.split)
    positions = jnp.arange(layout.total, dtype=jnp.int32)
    padding = is_padding
    if layout.is_padded:
        padding = jnp.zeros(layout.total, bool) if is_padding is None else is_padding
    inputs = (split(batch), layout.split(positions), None if padding is None else layout.split(padding))
    if layout.is_padded:
        place = jnp.arange(layout.chunks)[:, None, None] * layout.rows + jnp.arange(layout.rows)
        beyond = jnp.broadcast_to(
            place >= layout.total // layout.groups, (layout.chunks, layout.groups, layout.rows)
        )
        inputs = (*inputs[:2], inputs[2] | beyond.reshape(layout.chunks, -1))

    def step(carry: list[Pair], chunk: Any) -> tuple[list[Pair], Any]:
        rows, positions, padding = chunk
        found, extra = gradients(rows, positions)
        scale = scaling(found, rule, groups, how.slack, padding)
        return add_clipped(carry, found, scale, groups, how), (scale.norms, extra)

    start = zero_pairs(leaves, how)
    if layout.chunks == 1:
        pairs, info = step(start, jax.tree.map(lambda x: x[0], inputs))
        info = jax.tree.map(lambda x: x[None], info)
    else:
        pairs, info = jax.lax.scan(step, start, inputs, unroll=layout.chunks if unroll else 1)
    norms, extra = jax.tree.map(layout.join, info)
    return Outcome(pairs, norms, extra)
