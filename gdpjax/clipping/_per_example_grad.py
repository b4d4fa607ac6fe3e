"""Per-example gradients as arrays: the transformation `per_example_grad`.

    grads = per_example_grad(loss_fn)(params, batch)             # each leaf [B, ...]
    total, state = clip_and_sum(1.0).update(grads, state, params)

This is the definition that `gdpjax.clipped_grad` computes without holding all gradients at once.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._clipped_sum import merge_leaves
from gdpjax.clipping._loss import LossSpec, batch_rows, prepare, trace_loss
from gdpjax.clipping._row_map import example_grads, vmap_of


def per_example_grad(
    loss_fn: Callable[..., Any],
    *,
    argnums: int | tuple[int, ...] = 0,
    batch_argnums: int | tuple[int, ...] = 1,
    key_argnums: int | tuple[int, ...] = (),
    keep_batch_dim: bool = False,
    trainable: PyTree | None = None,
    shared_argnums: int | tuple[int, ...] = (),
    shared_argnames: str | tuple[str, ...] = (),
) -> Callable[..., PyTree]:
    """Transform a loss of one example into its gradients for each row of a batch, the input of `gdpjax.clip_and_sum`.

    Args:
      loss_fn, argnums, batch_argnums, key_argnums, keep_batch_dim, trainable, shared_argnums, shared_argnames: as in
        `clipped_grad`.

    Returns:
      ``fn(*args, is_padding=None, **loss_kwargs)``: a tree like the parameters, each leaf with a leading batch axis;
      padding rows and frozen leaves are zeros. Memory is B times that of the parameters.

    Raises:
      ValueError: as `clipped_grad`.

    >>> grads = per_example_grad(lambda w, x: jnp.dot(w, x))(jnp.zeros(2), jnp.array([[3.0, 4.0], [0.0, 0.5]]))
    >>> grads.shape
    (2, 2)
    """
    spec = LossSpec.create(
        loss_fn,
        argnums=argnums,
        batch_argnums=batch_argnums,
        key_argnums=key_argnums,
        keep_batch_dim=keep_batch_dim,
        has_aux=False,
        trainable=trainable,
        shared_argnums=shared_argnums,
        shared_argnames=shared_argnames,
    )

    def grads_fn(*args: Any, is_padding: Array | None = None, **loss_kwargs: Any) -> PyTree:
        call = prepare(spec, args, loss_kwargs, is_padding)
        trace = trace_loss(call)
        positions = jnp.arange(call.batch_size, dtype=jnp.int32)
        gradients, _ = example_grads(call, batch_rows(call), positions, vmap_of(trace.has_convolution))
        rows = [zero_padding_rows(leaf, call.is_padding) for leaf in gradients]

        def with_rows(leaf: Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((call.batch_size, *leaf.shape), leaf.dtype)

        # Leaves that are not trained get exact zeros.
        return merge_leaves(jax.tree.map(with_rows, call.params), call.is_trained, rows)

    return grads_fn


def zero_padding_rows(rows: Array, is_padding: Array | None) -> Array:
    """Replace the rows [B, ...] that are padding by zeros."""
    if is_padding is None:
        return rows
    mask = is_padding.reshape(is_padding.shape + (1,) * (rows.ndim - 1))
    return jnp.where(mask, jnp.zeros((), rows.dtype), rows)
