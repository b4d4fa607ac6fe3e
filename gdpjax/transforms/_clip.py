"""Clip explicit per-example gradients and add them up, as an optax transformation.

    clip = gdpjax.clip_and_sum(1.0)
    tx = optax.chain(clip, gdpjax.privatize(clip, noise_multiplier=1.0, ...))
    updates, state = tx.update(per_example_grads, state, params)

This is for gradients that are there already. `gdpjax.clipped_grad` makes the same sum from a loss, mostly without
forming the gradient of each example.
"""

from typing import Any

import optax

from gdpjax._core.arguments import check_static_size
from gdpjax._core.provenance import Provenance
from gdpjax._core.types import NeighboringRelation, PyTree, Scalar
from gdpjax.clipping import AbstractClipRule, as_rule, clip_rows, rule_sensitivity


class ClipAndSum(optax.GradientTransformation):
    """An optax transformation that knows the sensitivity of the sum it returns.

    Attributes:
      rule: how an example's gradient is bounded.
      trainable: the pytree of bools given as ``trainable``, or None.
      max_batch_size: the largest number of rows of any call, or None.
      provenance: the sums that were made, for `gdpjax.privatize`.
    """

    rule: AbstractClipRule
    trainable: PyTree | None
    max_batch_size: int | None
    provenance: Provenance

    @classmethod
    def create(
        cls,
        rule: AbstractClipRule,
        trainable: PyTree | None,
        max_batch_size: int | None,
    ) -> "ClipAndSum":
        """Return the transformation; an optax one is a pair of functions, so the rest is set after it is made."""
        provenance = Provenance()

        def init(params: PyTree) -> optax.EmptyState:
            del params
            return optax.EmptyState()

        def update(
            updates: PyTree,
            state: Any,
            params: PyTree | None = None,
        ) -> tuple[PyTree, Any]:
            clipped = clip_rows(updates, params, rule, trainable, max_batch_size)
            provenance.record(clipped.total, clipped.num_rows, has_mask=clipped.has_mask)
            return clipped.total, state

        transform = cls(init, update)
        transform.rule = rule
        transform.trainable = trainable
        transform.max_batch_size = max_batch_size
        transform.provenance = provenance
        return transform

    def sensitivity(self, neighboring_relation: NeighboringRelation) -> Scalar:
        """Return the largest l2 distance between the sums of neighbouring batches of one size: C, or 2C.

        The rounding of clipping and summation is included.
        """
        return rule_sensitivity(self.rule, neighboring_relation)


def clip_and_sum(
    clip: Any,
    *,
    trainable: PyTree | None = None,
    max_batch_size: int | None = None,
) -> ClipAndSum:
    """Clip per-example gradients and add them up: updates of ``[B, ...]`` leaves to their bounded sum.

    sum_i g_i min(1, C / ||g_i||)

    Args:
      clip: C > 0 (flat l2 clip norm, number or traced scalar) or a rule such as `Flat`.
      trainable: pytree (prefix) of bools; False leaves leave as exact zeros and stay out of the norm.
      max_batch_size: largest number of rows of any call, where batches are padded to several sizes, or of the logical
        batch where sums are added up; see `clipped_grad`.

    Returns:
      An optax transformation with ``.sensitivity(relation)``, to be followed by `privatize` of it. What it is given
      must be zeros in the rows of padding, as `per_example_grad` gives it.

    Raises:
      ValueError: no common leading axis, shapes that are not the parameters', no trainable floating leaf.

    >>> import jax, jax.numpy as jnp
    >>> clip = clip_and_sum(1.0)
    >>> summed, _ = jax.jit(clip.update)(jnp.array([[3.0, 4.0], [0.0, 0.5]]), clip.init(jnp.zeros(2)))
    >>> [round(float(v), 3) for v in summed]
    [0.6, 1.3]
    """
    check_static_size("max_batch_size", max_batch_size)
    rule = as_rule(clip)
    return ClipAndSum.create(rule, trainable, max_batch_size)
