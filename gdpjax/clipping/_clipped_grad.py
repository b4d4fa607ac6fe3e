"""The sum of clipped per-example gradients: the transformation `clipped_grad`.

    grad_fn = clipped_grad(loss_fn, 1.0)        # loss_fn(params, x) is the loss of ONE example
    total = grad_fn(params, batch)              # sum_i g_i min(1, C / ||g_i||), a tree like the parameters
    grad_fn.sensitivity(relation)               # how far one row can move that sum, rounding included

Adding or removing one row moves the sum by at most C, because the clipped gradient of that row is no longer than C and
no other row depends on it. `ClippedGrad.__call__` takes these steps, and each has its part in that sentence:

1. check the arguments and trace the loss of one example, so that no row can depend on another (`_loss`);
2. lower the clip norm a little, so that the bound holds for the sum as it is rounded (`_rounding_budget`);
3. choose how gradients are computed, and how many rows a chunk has (`_planner`);
4. compute the gradients of a chunk (`_tracing`), each held in the form that suits it (`_forms`);
5. weight the rows by the clip rule (`_rules`) and add them up, chunk by chunk (`_clipped_sum`);
6. add the sums of several devices, where the batch is on a mesh (`_devices`);
7. record the sum, so that `gdpjax.privatize` gives noise to it and to nothing else (`_core.provenance`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int

from gdpjax._core.arguments import check_choice, check_flag, check_static_size
from gdpjax._core.provenance import Provenance
from gdpjax._core.types import Array, NeighboringRelation, PyTree, Scalar
from gdpjax.clipping._clip_rule import AbstractClipRule
from gdpjax.clipping._clipped_sum import clipped_sum, merge_leaves
from gdpjax.clipping._devices import placement_of, sum_over_devices
from gdpjax.clipping._loss import Call, LossSpec, batch_rows, flatten_call, prepare
from gdpjax.clipping._per_example_grad import zero_padding_rows
from gdpjax.clipping._planner import STRATEGIES, engine_of
from gdpjax.clipping._rounding_budget import RoundingBudget, rounding_budget
from gdpjax.clipping._rule_enforcement import trained_groups
from gdpjax.clipping._rules import as_rule, rule_sensitivity


def clipped_grad(
    loss_fn: Callable[..., Any],
    clip: Any,
    *,
    argnums: int | tuple[int, ...] = 0,
    batch_argnums: int | tuple[int, ...] = 1,
    key_argnums: int | tuple[int, ...] = (),
    keep_batch_dim: bool = False,
    has_aux: bool = False,
    trainable: PyTree | None = None,
    strategy: str = "auto",
    microbatch_size: int | None = None,
    max_batch_size: int | None = None,
    return_info: bool = False,
    shared_argnums: int | tuple[int, ...] = (),
    shared_argnames: str | tuple[str, ...] = (),
    constant_work: bool = False,
) -> "ClippedGrad":
    """Transform a loss of one example into the sum of clipped per-example gradients of a batch.

    sum_i g_i min(1, C / ||g_i||), where g_i is the gradient at example i.

    Args:
      loss_fn: scalar loss of ONE example (no batch axis) at ``batch_argnums``.
      clip: C > 0 (flat l2 clip norm, number or traced scalar) or a rule such as `Flat`.
      argnums: the parameters' argument number, or a tuple of them.
      batch_argnums: arguments with a leading batch axis, in the returned function.
      key_argnums: arguments that are one typed PRNG key each; example i gets ``fold_in(key, i)``. Use a fresh, secret
        key each step: positions shift when a row is removed, and then the bound is one over the key's randomness.
      keep_batch_dim: give ``loss_fn`` a batch axis of length 1.
      has_aux: ``loss_fn`` returns (loss, aux); needs ``return_info=True``.
      trainable: pytree (prefix) of bools; False leaves are not differentiated, give exact zeros and stay out of
        the norm. Integer leaves are never differentiated.
      strategy: how gradients are computed; all strategies give the same sum, up to rounding. "auto" (default, also
        named "ghost") takes a chunk of rows at a time. It reads activations and cotangents off the loss where a
        parameter meets data, and forms no per-example gradient that is one outer product or a few rows of a table.
        "vmap" forms the gradients of all examples at once, "microbatch" those of a chunk of rows. "sequential" takes
        one row after the other without `jax.vmap`, for losses with operations that are refused under it; the sum has
        no reverse-mode derivative then. See `explain`.
      microbatch_size: rows per chunk, any size >= 1; by default 64, with "auto" as many as fit.
      max_batch_size: largest number of rows (padding included) of any call, or of the logical batch where sums are
        added up (`gdpjax.accumulate_clipped`). None means that every batch has the same size, which is best. Rows are
        clipped to slightly less than C, to leave room for rounding. This slack grows with the number of rows, and must
        not follow the realised batch size, which is private.
      return_info: return (clipped sum, `ClipInfo`).
      shared_argnums, shared_argnames: arguments, by number or by keyword, that all examples share although an array in
        them is as long as the batch. Any other such array outside the parameters is refused: it may have a row for each
        example, and then every example would see all rows.
      constant_work: compute chunks of rows that hold only padding too. By default they are skipped, so that the time of
        a call tells how many chunks of its batch held an example. The number of examples of a Poisson batch is private:
        set this where somebody outside can observe how long a step takes.

    Returns:
      ``grad_fn(*args, is_padding=None, **loss_kwargs)``: a tree like the parameters in float32 or wider.
      ``is_padding`` is bool[B], True for rows to ignore. Rows with a non-finite gradient contribute exact zeros, an
      empty batch gives zeros. ``grad_fn.sensitivity(relation)`` includes the rounding of clipping and summation (it is
      lost by ``jax.jit(grad_fn)``, so bind it before).

    Raises:
      ValueError: a loss that is not a real scalar, unequal batch axes, no trainable floating leaf, a clip norm that is
        not positive, aux without return_info, a batch whose rounding could pass 1% of C; a loss in which one example
        could reach the gradient of another (callbacks, ``custom_vmap``, collectives, BatchNorm, an array as long as the
        batch that is neither batched nor named as shared); the message names the way out.

    Reference: Abadi et al., arXiv:1607.00133, section 3.1.

    >>> grad_fn = clipped_grad(lambda w, x: jnp.dot(w, x), 1.0)
    >>> batch = jnp.array([[3.0, 4.0], [0.0, 0.5], [jnp.nan, 1.0]])
    >>> [round(float(v), 3) for v in jax.jit(grad_fn)(jnp.zeros(2), batch)]
    [0.6, 1.3]
    >>> grad_fn.sensitivity(NeighboringRelation.REPLACE_ONE)
    2.0
    """
    check_choice("strategy", strategy, STRATEGIES)
    check_static_size("microbatch_size", microbatch_size)
    check_static_size("max_batch_size", max_batch_size)
    if microbatch_size is not None and strategy == "vmap":
        raise ValueError('strategy "vmap" takes the whole batch at once; drop microbatch_size or use "microbatch"')
    spec = LossSpec(
        loss_fn,
        argnums=argnums,
        batch_argnums=batch_argnums,
        key_argnums=key_argnums,
        keep_batch_dim=keep_batch_dim,
        has_aux=has_aux,
        trainable=trainable,
        shared_argnums=shared_argnums,
        shared_argnames=shared_argnames,
    )
    if spec.has_aux and not return_info:
        raise ValueError("has_aux=True needs return_info=True, which is how aux is returned")
    return ClippedGrad(
        spec,
        rule=as_rule(clip),
        strategy=strategy,
        microbatch_size=microbatch_size,
        max_batch_size=max_batch_size,
        return_info=check_flag("return_info", return_info),
        constant_work=check_flag("constant_work", constant_work),
        provenance=Provenance(),
    )


class ClipInfo(NamedTuple):
    """Private diagnostics of one batch: outside every epsilon, not for release.

    Attributes:
      values: per-example losses ``[B]``, padding rows zero.
      norms: per-example gradient norms before clipping ``[B]``; padding and non-finite rows zero.
      aux: what ``loss_fn`` returned beside the loss, with a leading batch axis; padding rows zero.
      is_dropped: bool ``[B]``, rows that add zeros because their gradient holds a NaN or an infinity; padding False.
    """

    values: Float[Array, " batch"]
    norms: Float[Array, " batch"]
    aux: Any
    is_dropped: Bool[Array, " batch"]

    @property
    def num_dropped(self) -> Int[Array, "..."]:
        """The number of rows that were dropped: a bug in the data or the loss, if it is not 0."""
        return self.is_dropped.sum(axis=-1, dtype=jnp.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class ClippedGrad:
    """The function that `clipped_grad` returns: a sum of clipped per-example gradients that knows its sensitivity.

    Attributes:
      spec: the loss of one example and the roles of its arguments.
      rule: how an example's gradient is bounded.
      strategy: how gradients are computed.
      microbatch_size: rows per chunk, or None.
      max_batch_size: the largest number of rows of any call, or None.
      return_info: whether a call returns `ClipInfo` too.
      constant_work: whether chunks of rows that hold only padding are computed.
      provenance: the sums that were made, for `gdpjax.privatize`.
    """

    spec: LossSpec
    rule: AbstractClipRule
    strategy: str
    microbatch_size: int | None
    max_batch_size: int | None
    return_info: bool
    constant_work: bool
    provenance: Provenance

    def __repr__(self) -> str:
        name = getattr(self.spec.loss_fn, "__name__", type(self.spec.loss_fn).__name__)
        return f"clipped_grad({name}, {self.rule!r})"

    @property
    def trainable(self) -> PyTree | None:
        """The pytree of bools given as ``trainable``, or None."""
        return self.spec.trainable

    def sensitivity(self, neighboring_relation: NeighboringRelation) -> Scalar:
        """Largest l2 distance between the sums of neighbouring batches: C, or 2C for REPLACE_ONE.

        The rounding of clipping and summation is included. The gradient of each row is taken as computed, a function
        of the row in a program of one batch size: pad neighbouring batches to the same one.
        """
        return rule_sensitivity(self.rule, neighboring_relation)

    def drawn_from(self, num_examples: int) -> "ClippedGrad":
        """Return the same function for batches that the library draws from a data set of up to ``num_examples``.

        A loss that closes over an array as long as the data set is refused, in place of one as long as the batch.
        """
        return dataclasses.replace(self, spec=dataclasses.replace(self.spec, num_examples=num_examples))

    def __call__(self, *args: Any, is_padding: Bool[Array, " batch"] | None = None, **loss_kwargs: Any) -> Any:
        """The clipped sum for one batch, or (clipped sum, ClipInfo) with ``return_info=True``."""
        call = prepare(self.spec, args, loss_kwargs, is_padding)

        # The rounding slack follows from shapes alone, and counts the rows and partial sums of all devices.
        placement = placement_of(batch_rows(call), call.batch_size)
        num_devices = 1 if placement is None else placement.num_devices
        budget = rounding_budget(call.trained_leaves, self._rows_of_slack(call), num_devices)

        # Positions are those in the whole batch, as they decide the keys of the rows.
        positions = jnp.arange(call.batch_size, dtype=jnp.int32)
        if placement is None:
            sums, info = self.sum_rows(call, budget, positions)
        else:
            flat = flatten_call(call, positions)

            def sum_local_rows(*arrays: Array) -> tuple[list[Array], ClipInfo]:
                local_call, local_positions = flat.rebuild(arrays)
                return self.sum_rows(local_call, budget, local_positions)

            sums, info = sum_over_devices(placement, sum_local_rows, flat.arrays, flat.is_batched)

        # Leaves that are not trained get exact zeros.
        total = merge_leaves(call.params, call.is_trained, sums)
        has_mask = is_padding is not None or call.batch_size == 0
        self.provenance.record(total, call.batch_size, num_devices, has_mask)
        return (total, info) if self.return_info else total

    def sum_rows(self, call: Call, budget: RoundingBudget, positions: Array) -> tuple[list[Array], ClipInfo]:
        """Clip and add up the rows of one device.

        Args:
          call: the call, with these rows.
          budget: the rounding of the whole batch.
          positions: int32 [batch_size], the places of these rows in the whole batch.

        Returns:
          The sum for each trained leaf, and the diagnostics of these rows.
        """
        engine = engine_of(call, self.strategy, self.microbatch_size, self.constant_work)
        groups = trained_groups(self.rule, call.params, call.is_trained)
        sums, norms, is_dropped, (values, aux) = clipped_sum(
            engine,
            batch_rows(call),
            positions,
            call.trained_leaves,
            self.rule,
            groups,
            budget,
            call.is_padding,
        )
        info = ClipInfo(
            values=zero_padding_rows(values, call.is_padding),
            norms=norms,
            aux=jax.tree.map(lambda rows: zero_padding_rows(rows, call.is_padding), aux),
            is_dropped=is_dropped,
        )
        return sums, info

    def _rows_of_slack(self, call: Call) -> int:
        """Return the number of rows that the slack counts, which must not follow the realised batch size."""
        if self.max_batch_size is None:
            return call.batch_size
        if call.batch_size > self.max_batch_size:
            raise ValueError(f"a batch of {call.batch_size} rows is larger than max_batch_size={self.max_batch_size}")
        return self.max_batch_size
