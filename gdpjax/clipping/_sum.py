"""The clipped sum of a batch, all at once or by `lax.scan` over chunks: memory of one chunk, any batch and chunk size.

A batch that is not a multiple of the chunk is padded with copies of row zero, marked as padding, so that the loss never
sees data that was not in the batch. The running sums are the compensated pairs of `_clip`, so chunking does not change
the result beyond the rounding that the clip's slack covers.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._clip import Pair, Rounding, add_clipped, scaling, zero_pairs
from gdpjax.clipping._engine import Engine
from gdpjax.clipping._rules import AbstractClipRule, Groups
from gdpjax.clipping._terms import computed_once


class Outcome(NamedTuple):
    """Running sums; per row the norm, whether it was dropped, and whatever else the gradients came with."""

    pairs: list[Pair]
    norms: Array
    is_dropped: Array
    extra: Any


def _split(rows: Array, num_chunks: int, size: int) -> Array:
    missing = num_chunks * size - rows.shape[0]
    padded = jnp.concatenate([rows, jnp.broadcast_to(rows[:1], (missing, *rows.shape[1:]))]) if missing else rows
    return padded.reshape(num_chunks, size, *rows.shape[1:])


def clipped_sum(
    engine: Engine, batch: Any, positions: Array, leaves: list[Array], rule: AbstractClipRule, groups: Groups,
    how: Rounding, is_padding: Array | None,
) -> Outcome:  # fmt: skip
    """Clip the rows of a batch, whose positions decide their keys, and add them up."""
    total = positions.shape[0]
    size = min(engine.chunk, total)
    num_chunks = -(-total // size)

    def step(carry: list[Pair], chunk: Any) -> tuple[list[Pair], Any]:
        rows, positions, padding = chunk
        found, extra = engine.gradients(rows, positions)
        found = computed_once(found)
        scale = scaling(found, rule, groups, how.slack, padding)
        return add_clipped(carry, found, scale, groups, how), (scale.norms, scale.is_dropped, extra)

    if num_chunks == 1:
        pairs, info = step(zero_pairs(leaves), (batch, positions, is_padding))
        return Outcome(pairs, *info)
    split = functools.partial(_split, num_chunks=num_chunks, size=size)
    beyond = jnp.arange(num_chunks * size).reshape(num_chunks, size) >= total
    padding = beyond if is_padding is None else beyond | split(is_padding)
    chunks = (jax.tree.map(split, batch), split(positions), padding)
    loop = _written_out if engine.unrolls(num_chunks) else jax.lax.scan
    pairs, info = loop(step, zero_pairs(leaves), chunks)
    return Outcome(pairs, *jax.tree.map(lambda x: x.reshape(num_chunks * size, *x.shape[2:])[:total], info))


def _written_out(step: Any, carry: list[Pair], chunks: Any) -> tuple[list[Pair], Any]:
    """`lax.scan` without a loop in the program, in which a chunk still starts after the one before has ended."""
    outputs = []
    for number in range(len(chunks[1])):
        rows, positions, padding = jax.tree.map(lambda x, i=number: x[i], chunks)
        if number:
            zero = _zero_after(jax.lax.stop_gradient(carry[0][0].ravel()[0]))
            rows, positions = jax.tree.map(lambda x, zero=zero: _plus(x, zero), (rows, positions))
        carry, output = step(carry, (rows, positions, padding))
        outputs.append(output)
    return carry, jax.tree.map(lambda *parts: jnp.stack(parts), *outputs)


def _plus(x: Array, zero: Array) -> Array:
    """x, once ``zero`` is known: without this the compiler would have all chunks in memory at once."""
    if jnp.issubdtype(x.dtype, jnp.bool_):
        return x | (zero != 0)
    return x + zero.astype(x.dtype) if jnp.issubdtype(x.dtype, jnp.number) else x


@jax.custom_batching.custom_vmap
def _zero_after(token: Array) -> Array:
    """Zero, once ``token`` is known."""
    bits = jax.lax.bitcast_convert_type(token.astype(jnp.float32), jnp.int32)
    return jax.lax.population_count(bits) >> 6  # at most 32, but the compiler does not know


@_zero_after.def_vmap
def _zero_for_all(axis_size: int, in_batched: list[bool], token: Array) -> tuple[Array, bool]:
    # In a sweep the sums differ from configuration to configuration, and the rows must not.
    return jnp.zeros((), jnp.int32), False
