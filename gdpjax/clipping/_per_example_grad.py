"""Per-example gradients as arrays, `per_example_grad`, and their clipped sum, `clip_rows`.

    grads = per_example_grad(loss_fn)(params, batch)    # each leaf [B, ...]
    clipped = clip_rows(grads, params, Flat(1.0))
    clipped.total                                       # sum_i g_i min(1, C / ||g_i||), leaves [...]
    clipped.norms                                       # ||g_i||, [B]

This is the definition that `gdpjax.clipped_grad` computes without holding all gradients at once. The sum has the same
rounding bound: rows are clipped to slightly less than C, so that the sum as it is rounded moves by at most C for one
row.
"""

import itertools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import broadcast_trainable, is_floating, leaf_name, num_elements, refuse_complex, wide_dtype
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._clip_rule import AbstractClipRule
from gdpjax.clipping._clipped_sum import merge_leaves, sum_of_rows
from gdpjax.clipping._forms import formed_rows, per_row
from gdpjax.clipping._loss import LossSpec, batch_rows, prepare
from gdpjax.clipping._planner import engine_of
from gdpjax.clipping._rounding_budget import rounding_budget
from gdpjax.clipping._rule_enforcement import trained_groups

_WITHOUT_MASK: weakref.WeakValueDictionary[int, Array] = weakref.WeakValueDictionary()
"""Per-example gradients of batches whose padding was not said, by the id of their arrays."""


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
    spec = LossSpec(
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
        engine = engine_of(call, "vmap", None, constant_work=True)
        gradients, _ = engine.gradients(batch_rows(call), jnp.arange(call.batch_size, dtype=jnp.int32))
        rows = []
        for leaf, gradient in zip(call.trained_leaves, gradients, strict=True):
            (formed,) = jax.tree.leaves(gradient)
            rows.append(zero_padding_rows(formed.astype(leaf.dtype), call.is_padding))
        if is_padding is None:
            _WITHOUT_MASK.update((id(of_leaf), of_leaf) for of_leaf in rows)

        def with_rows(leaf: Array) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((call.batch_size, *leaf.shape), leaf.dtype)

        # Leaves that are not trained get exact zeros.
        return merge_leaves(jax.tree.map(with_rows, call.params), call.is_trained, rows)

    return grads_fn


def zero_padding_rows(rows: Array, is_padding: Array | None) -> Array:
    """Replace the rows [B, ...] that are padding by zeros."""
    if is_padding is None:
        return rows
    return jnp.where(per_row(is_padding, rows), jnp.zeros((), rows.dtype), rows)


class ClippedRows(NamedTuple):
    """The sum of clipped per-example gradients.

    Attributes:
      total: the sum, a tree like the parameters; zeros at leaves that are not trained.
      norms: Float[Array, "rows"], the norms before clipping; zero for rows that are not finite.
      num_rows: the number of rows.
      has_mask: False for what `per_example_grad` returned without having been told which rows are padding.
    """

    total: PyTree
    norms: Array
    num_rows: int
    has_mask: bool


def clip_rows(
    grads: PyTree,
    params: PyTree | None,
    rule: AbstractClipRule,
    trainable: PyTree | None = None,
    max_batch_size: int | None = None,
) -> ClippedRows:
    """Return the sum of clipped per-example gradients.

    Args:
      grads: per-example gradients, every leaf with a leading batch axis.
      params: the parameters, to check the shapes of the gradients against; None for no such check.
      rule: how an example's gradient is bounded.
      trainable: pytree (prefix) of bools; False leaves give exact zeros and stay out of the norm.
      max_batch_size: the largest number of rows of any call, which the rounding slack then follows.

    Raises:
      ValueError: complex leaves, no common leading axis, shapes that are not the parameters', no trainable floating
        leaf, more rows than ``max_batch_size``.
    """
    refuse_complex(grads, "leaf")
    num_rows = _check_rows(grads, params)
    if max_batch_size is not None and num_rows > max_batch_size:
        raise ValueError(f"a batch of {num_rows} rows is larger than max_batch_size={max_batch_size}")

    # One example's gradient, in shapes alone, says which leaves are clipped.
    one_gradient = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), grads)
    shapes = jax.tree.leaves(one_gradient)
    marks = jax.tree.leaves(broadcast_trainable(trainable, grads))
    pairs = zip(marks, shapes, strict=True)
    is_trained = tuple(mark and is_floating(shape) and num_elements(shape) > 0 for mark, shape in pairs)
    if not any(is_trained):
        raise ValueError("the per-example gradients have no trainable floating-point leaf")
    trained_shapes = list(itertools.compress(shapes, is_trained))

    if num_rows == 0:
        sums = [jnp.zeros(shape.shape, wide_dtype(shape)) for shape in trained_shapes]
        return ClippedRows(merge_leaves(one_gradient, is_trained, sums), jnp.zeros(0, jnp.float32), 0, has_mask=True)

    budget = rounding_budget(trained_shapes, max_batch_size or num_rows)
    groups = trained_groups(rule, one_gradient, is_trained)
    gradients = [formed_rows(leaf) for leaf in itertools.compress(jax.tree.leaves(grads), is_trained)]
    sums, scales = sum_of_rows(gradients, trained_shapes, rule, groups, budget, is_padding=None)
    has_mask = all(_WITHOUT_MASK.get(id(leaf)) is not leaf for leaf in jax.tree.leaves(grads))
    return ClippedRows(merge_leaves(one_gradient, is_trained, sums), scales.norms, num_rows, has_mask)


def _check_rows(grads: PyTree, params: PyTree | None) -> int:
    """Return the number of rows, after a check of the leading axis and of the parameters' shapes."""
    leaves = jax.tree_util.tree_flatten_with_path(grads)[0]
    sizes = {leaf_name(path): jnp.shape(leaf)[:1] for path, leaf in leaves}
    if len(set(sizes.values())) != 1 or () in sizes.values():
        raise ValueError(
            f"clip_and_sum takes per-example gradients: every leaf needs the same leading batch axis, got {sizes}"
        )
    if params is not None:
        is_like_params = jax.tree.structure(grads) == jax.tree.structure(params)
        expected = [jnp.shape(leaf) for leaf in jax.tree.leaves(params)]
        shapes = [jnp.shape(leaf)[1:] for leaf in jax.tree.leaves(grads)]
        if not is_like_params or shapes != expected:
            raise ValueError(
                "the per-example gradients must be a tree like the parameters, each leaf with a batch axis before its "
                f"parameter's shape; expected {expected}, got {shapes} behind the batch axis"
            )
    (num_rows,) = next(iter(sizes.values()))
    return num_rows
