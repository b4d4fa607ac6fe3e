"""Clipped sums by `lax.scan` over chunks of the batch: memory of one chunk, any batch size, any chunk size.

A batch that is not a multiple of the chunk is padded with copies of row zero marked as padding, so no row of the loss
ever sees data that was not in the batch. The running sum is the compensated pair of `_clip`, so chunking does not
change the result beyond the rounding that the clip's slack already covers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.trees import compensated_add, two_sum, wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._clip import clip_and_add
from gdpjax.clipping._loss import Call
from gdpjax.clipping._rules import Flat
from gdpjax.clipping._vmap import batch_rows, example_grads


def _chunks(rows: Array, num_chunks: int, size: int) -> Array:
    padded = jnp.concatenate([rows, jnp.broadcast_to(rows[:1], (num_chunks * size - rows.shape[0], *rows.shape[1:]))])
    return padded.reshape(num_chunks, size, *rows.shape[1:])


def microbatch_clip_and_add(call: Call, rule: Flat, slack: float, size: int):
    """(hi, lo) sums, norms, losses and aux over chunks of ``size`` rows."""
    total = call.batch_size
    num_chunks = -(-total // size)
    chunk = functools.partial(_chunks, num_chunks=num_chunks, size=size)
    batch = jax.tree.map(chunk, batch_rows(call))
    indices = chunk(jnp.arange(total, dtype=jnp.int32))
    beyond = jnp.arange(num_chunks * size).reshape(num_chunks, size) >= total
    is_padding = beyond if call.is_padding is None else beyond | chunk(call.is_padding)

    def step(carry: list[tuple[Array, Array]], inputs: Any):
        rows, positions, padding = inputs
        grads = example_grads(call, rows, positions)
        pairs, norms = clip_and_add(grads.leaves, rule, slack, padding)
        # Renormalising keeps lo a rounding error of hi, so its own rounding never builds up.
        carry = [two_sum(*compensated_add(c, p)) for c, p in zip(carry, pairs, strict=True)]
        return carry, (norms, grads.values, grads.aux)

    zeros = [jnp.zeros(leaf.shape, wide_dtype(leaf)) for leaf in call.trained_leaves]
    pairs, info = jax.lax.scan(step, [(zero, zero) for zero in zeros], (batch, indices, is_padding))
    norms, values, aux = jax.tree.map(lambda x: x.reshape(num_chunks * size, *x.shape[2:])[:total], info)
    return pairs, norms, values, aux
