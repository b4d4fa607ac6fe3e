"""Clip explicit per-example gradients and add them up, as an optax transformation."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from gdpjax._core.trees import broadcast_trainable, is_floating, leaf_name, num_elements, refuse_complex
from gdpjax._core.types import Array, NeighboringRelation, PyTree
from gdpjax.clipping._calls import Calls, check_static_size
from gdpjax.clipping._clipped_sum import merge_leaves, sum_of_rows
from gdpjax.clipping._gradients import FormedGradients
from gdpjax.clipping._rounding_budget import rounding_budget
from gdpjax.clipping._rules import AbstractClipRule, as_rule, trained_groups
from gdpjax.clipping._sensitivity import rule_sensitivity


class ClipAndSum(optax.GradientTransformation):
    """An optax transformation that knows the sensitivity of the sum it returns."""

    rule: AbstractClipRule
    trainable: PyTree | None
    calls: Calls

    @classmethod
    def create(cls, update: Any, rule: AbstractClipRule, trainable: PyTree | None, calls: Calls) -> "ClipAndSum":
        transform = cls(lambda params: optax.EmptyState(), update)
        transform.rule, transform.trainable, transform.calls = rule, trainable, calls
        return transform

    def sensitivity(self, neighboring_relation: NeighboringRelation) -> Array:
        """Largest l2 distance between the sums of neighbouring batches of one size, rounding included: C, or 2C."""
        return rule_sensitivity(self.rule, neighboring_relation)


def _num_rows(updates: PyTree, params: PyTree | None) -> int:
    leaves = jax.tree_util.tree_flatten_with_path(updates)[0]
    if not leaves:
        raise ValueError("clip_and_sum got a tree without leaves")
    sizes = {leaf_name(path): jnp.shape(leaf)[:1] for path, leaf in leaves}
    if len(set(sizes.values())) != 1 or next(iter(sizes.values())) == ():
        raise ValueError(
            f"clip_and_sum takes per-example gradients: every leaf needs the same leading batch axis, got {sizes}"
        )
    if params is not None:
        if jax.tree.structure(updates) != jax.tree.structure(params):
            raise ValueError("the per-example gradients and the parameters must be trees of the same structure")
        for (path, leaf), param in zip(leaves, jax.tree.leaves(params), strict=True):
            if jnp.shape(leaf)[1:] != jnp.shape(param):
                raise ValueError(
                    f"leaf {leaf_name(path)} of the per-example gradients has shape {jnp.shape(leaf)}; expected a "
                    f"batch axis followed by its parameter's shape {jnp.shape(param)}"
                )
    return next(iter(sizes.values()))[0]


def clip_examples(
    updates: PyTree, params: PyTree | None, rule: AbstractClipRule, trainable: PyTree | None,
    max_batch_size: int | None, calls: Calls | None = None,
) -> tuple[PyTree, Array]:  # fmt: skip
    """The sum of clipped per-example gradients, and their norms before clipping ``[B]``."""
    refuse_complex(updates, "leaf")
    num_rows = _num_rows(updates, params)
    marks = jax.tree.leaves(broadcast_trainable(trainable, updates))
    leaves, structure = jax.tree.flatten(updates)
    single = [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in leaves]
    which = tuple(
        mark and is_floating(leaf) and num_elements(leaf) > 0 for mark, leaf in zip(marks, single, strict=True)
    )
    rows = [leaf for leaf, mark in zip(leaves, which, strict=True) if mark]
    shapes = [leaf for leaf, mark in zip(single, which, strict=True) if mark]
    if not rows:
        raise ValueError("the per-example gradients have no trainable floating-point leaf")
    like = jax.tree.unflatten(structure, single)
    if num_rows == 0:
        sums = [leaf.sum(axis=0, dtype=jnp.promote_types(leaf.dtype, jnp.float32)) for leaf in rows]
        norms, how = jnp.zeros(0, jnp.float32), None
    else:
        if max_batch_size is not None and num_rows > max_batch_size:
            raise ValueError(f"a batch of {num_rows} rows is larger than max_batch_size={max_batch_size}")
        how, groups = rounding_budget(shapes, max_batch_size or num_rows), trained_groups(rule, like, which)
        formed = [FormedGradients(leaf) for leaf in rows]
        sums, scales = sum_of_rows(formed, shapes, rule, groups, how, None)
        norms = scales.norms
    total = merge_leaves(like, which, sums)
    if calls is not None:
        calls.note(total, how, num_rows)
    return total, norms


def clip_and_sum(clip: Any, *, trainable: PyTree | None = None, max_batch_size: int | None = None) -> ClipAndSum:
    """Clip per-example gradients and add them up: updates of ``[B, ...]`` leaves to their bounded sum.

    sum_i g_i min(1, C / ||g_i||)

    Args:
      clip: C > 0 (flat l2 clip norm, number or traced scalar) or a rule such as `Flat`.
      trainable: pytree (prefix) of bools; False leaves leave as exact zeros and stay out of the norm.
      max_batch_size: largest number of rows of any call, where batches are padded to several sizes, or of the logical
        batch where sums are added up; see `clipped_grad`.

    Returns:
      An optax transformation with ``.sensitivity(relation)``, to be followed by `privatize` of it.

    Raises:
      ValueError: no common leading axis, shapes that are not the parameters', no trainable floating leaf.

    >>> clip = clip_and_sum(1.0)
    >>> summed, _ = clip.update(jnp.array([[3.0, 4.0], [0.0, 0.5]]), clip.init(jnp.zeros(2)))
    >>> [round(float(v), 3) for v in summed]
    [0.6, 1.3]
    """
    check_static_size("max_batch_size", max_batch_size)
    rule, calls = as_rule(clip), Calls(max_batch_size)

    def update(updates: PyTree, state: Any, params: PyTree | None = None) -> tuple[PyTree, Any]:
        return clip_examples(updates, params, rule, trainable, max_batch_size, calls)[0], state

    return ClipAndSum.create(update, rule, trainable, calls)
