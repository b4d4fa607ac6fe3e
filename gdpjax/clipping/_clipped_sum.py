"""Clip the gradients of a batch of examples and add them up: sum_i min(1, C / ||g_i||) g_i.

The rows are taken all at once or in chunks, by `lax.scan`, so that memory is that of one chunk. Three things happen to
a chunk:

    gradients = engine.gradients(rows)                     # in whatever form they are held (`_forms`)
    weights   = rule(norms of the gradients)               # `row_scales`
    sums     += sum_i weights_i gradients_i                # within the budget of `_rounding_budget`

A batch that is not a multiple of the chunk is filled up with copies of its first row, marked as padding, so that the
loss never sees data that was not in the batch. A chunk that holds only padding is skipped: the program is the same for
every batch, but its time tells how many chunks held an example.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import CLIP_NORM, is_traced
from gdpjax._core.trees import wide_dtype, zeros_like_sum
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._clip_rule import AbstractClipRule, Groups
from gdpjax.clipping._forms import (
    AbstractFactor,
    Full,
    RowGradients,
    RowWeights,
    RunningSum,
    Sparse,
    formed_rows,
    stacked,
    wide,
)
from gdpjax.clipping._planner import Engine
from gdpjax.clipping._rounding_budget import RoundingBudget
from gdpjax.clipping._rule_enforcement import bounded_coefficients

_SMALL_PARAMETER = 2**14
"""Entries up to which the formed gradients of a parameter are put together with those of others."""


class Pack(NamedTuple):
    """One or several parameters whose gradients are clipped and added up together.

    Attributes:
      leaves: the numbers of the parameters; the entries of several ones lie one after the other in one row.
      group: the clip rule's group of these parameters.
      is_compensated: whether the errors of adding up are kept.
    """

    leaves: tuple[int, ...]
    group: int
    is_compensated: bool

    def zero(self, params: list[Any]) -> RunningSum:
        """Return the empty sum."""
        members = [params[leaf] for leaf in self.leaves]
        if len(members) == 1:
            return RunningSum.zero(members[0], self.is_compensated)
        num_entries = sum(math.prod(member.shape) for member in members)
        flat = jax.ShapeDtypeStruct((num_entries,), norm_dtype(members))
        return RunningSum.zero(flat, self.is_compensated)

    def gradients(self, gradients: list[RowGradients]) -> RowGradients:
        """Return the gradients of these parameters as those of one."""
        if len(self.leaves) == 1:
            return gradients[self.leaves[0]]
        flat = []
        for leaf in self.leaves:
            factor = gradients[leaf].factor
            assert isinstance(factor, Full)
            rows = wide(factor.gradient)
            flat.append(rows.reshape(rows.shape[0], -1))
        return formed_rows(jnp.concatenate(flat, axis=1))

    def split(self, total: Array, params: list[Any]) -> list[Array]:
        """Return the sum of each of these parameters."""
        if len(self.leaves) == 1:
            return [total]
        shapes = [params[leaf].shape for leaf in self.leaves]
        ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
        parts = jnp.split(total, ends[:-1])
        return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


class RowScales(NamedTuple):
    """The weights of the rows of a chunk.

    Attributes:
      weights: for each group of parameters the weights of the rows.
      bounds: for each group the largest norm of a weighted row.
      norms: [N], norms of the rows before they are weighted.
      is_dropped: bool [N].
    """

    weights: list[RowWeights]
    bounds: list[Array]
    norms: Array
    is_dropped: Array


def packs_of(
    params: list[Any], forms: list[AbstractFactor], groups: Groups, budget: RoundingBudget, size: int, num_chunks: int
) -> list[Pack]:
    """Put the small parameters of one group whose gradients are formed together.

    A model has many of them, biases and scales of layers. One row of all their entries needs one norm and one sum,
    where each by itself would need its own small programs, which take long to compile. The sum stays one array until
    all rows are in it: a compiler that meets its parts within the loop computes the sum anew for each of them.

    Args:
      params: the trained parameters.
      forms: the forms of their gradients.
      groups: the clip rule's groups.
      budget: the roundings that their sums may take.
      size: rows of a chunk.
      num_chunks: how many chunks are added up.
    """
    # Sort out the small ones, by group and dtype. Table rows may be added in whole numbers, whose sum is a pair.
    needs_errors = budget.plain_rows == 1 or not budget.covers(size, num_chunks)
    packs = []
    small: dict[Any, list[int]] = {}
    for leaf, (param, form) in enumerate(zip(params, forms, strict=True)):
        group = groups.of_leaf[leaf]
        if isinstance(form, Full) and math.prod(param.shape) <= _SMALL_PARAMETER:
            small.setdefault((group, wide_dtype(param)), []).append(leaf)
        else:
            packs.append(Pack((leaf,), group, needs_errors or isinstance(form, Sparse)))

    for (group, _), leaves in small.items():
        packs.append(Pack(tuple(leaves), group, needs_errors))
    return packs


def row_scales(
    packs: list[Pack],
    gradients: list[RowGradients],
    rule: AbstractClipRule,
    groups: Groups,
    slack: float,
    is_padding: Array | None,
    dtype: Any,
) -> RowScales:
    """Return the weights that a rule gives the rows of packed gradients for their norms, in ``dtype``."""
    squares = [each.squared_norms(dtype) for each in gradients]
    whole = stacked(squares).total()

    # A row with a NaN or an infinity anywhere has a norm of NaN, and adds nothing.
    keep = jnp.isfinite(whole.value)
    is_dropped = ~keep
    if is_padding is not None:
        keep, is_dropped = keep & ~is_padding, is_dropped & ~is_padding

    weights, bounds = [], []
    for number, group_bound in enumerate(groups.bounds):
        # The norm of the row's gradients in this group.
        norm = whole
        members = [square for square, pack in zip(squares, packs, strict=True) if pack.group == number]
        if members and len(groups.bounds) > 1:
            norm = stacked(members).total()

        # Clip to a little less than the bound, to leave room for rounding.
        bound = _checked_bound(group_bound, groups, dtype) / (1 + slack)
        coefficient = bounded_coefficients(rule, norm.root(), norm.exponent, bound)
        weights.append(RowWeights(norm.exponent, coefficient, keep))
        bounds.append(bound)

    norms = jnp.where(keep, whole.norm(), 0)
    return RowScales(weights, bounds, norms, is_dropped)


def norm_dtype(leaves: list[Any]) -> Any:
    """Return the dtype of the norms of gradients of these parameters, or of their sums."""
    return functools.reduce(jnp.promote_types, [wide_dtype(leaf) for leaf in leaves])


def _checked_bound(bound: Array, groups: Groups, dtype: Any) -> Array:
    """Return the bound of a group, or NaN where it is no clip norm."""
    bound = jnp.asarray(bound, dtype)
    # A bound that is split over many leaves, and lowered for rounding, may lie below the range of a whole one.
    split = float(np.sqrt(len(groups.bounds))) * (1 + 1e-5)
    is_valid = CLIP_NORM.contains(bound) | CLIP_NORM.contains(bound * split)
    return jnp.where(is_valid, bound, jnp.nan)


def add_clipped(
    packs: list[Pack],
    totals: list[RunningSum],
    gradients: list[RowGradients],
    rule: AbstractClipRule,
    groups: Groups,
    budget: RoundingBudget,
    is_padding: Array | None,
) -> tuple[list[RunningSum], RowScales]:
    """Clip rows and add them to the running sums of the packs."""
    # The compiler is not to compute the gradients anew for the norm or the sum.
    packed = jax.lax.optimization_barrier([pack.gradients(gradients) for pack in packs])
    dtype = norm_dtype([total.high for total in totals])
    scales = row_scales(packs, packed, rule, groups, budget.slack, is_padding, dtype)

    new_totals = []
    for pack, total, each in zip(packs, totals, packed, strict=True):
        weights, bound = scales.weights[pack.group], scales.bounds[pack.group]
        new_totals.append(each.add_to(total, weights, bound, budget))
    return new_totals, scales


def sum_of_rows(
    gradients: list[RowGradients],
    leaves: list[Any],
    rule: AbstractClipRule,
    groups: Groups,
    budget: RoundingBudget,
    is_padding: Array | None,
) -> tuple[list[Array], RowScales]:
    """Return the clipped sum of gradients that are all there."""
    forms = [each.factor for each in gradients]
    packs = packs_of(leaves, forms, groups, budget, gradients[0].num_rows, num_chunks=1)
    totals = [pack.zero(leaves) for pack in packs]
    totals, scales = add_clipped(packs, totals, gradients, rule, groups, budget, is_padding)
    return rounded_sums(packs, totals, leaves, groups), scales


def rounded_sums(packs: list[Pack], totals: list[RunningSum], leaves: list[Any], groups: Groups) -> list[Array]:
    """Return the sum of each parameter, rounded once; NaN in the groups whose traced bound is no clip norm.

    A batch of padding alone, whose chunks are all skipped, would else give zeros for such a bound, and every other
    batch NaN.
    """
    dtype = norm_dtype(leaves)
    sums = {}
    for pack, total in zip(packs, totals, strict=True):
        rounded = total.rounded()
        bound = groups.bounds[pack.group]
        if is_traced(bound):
            is_invalid = jnp.isnan(_checked_bound(bound, groups, dtype))
            rounded = jnp.where(is_invalid, jnp.nan, rounded)
        sums.update(zip(pack.leaves, pack.split(rounded, leaves), strict=True))
    return [sums[leaf] for leaf in range(len(leaves))]


def clipped_sum(
    engine: Engine,
    batch: Any,
    positions: Array,
    leaves: list[Array],
    rule: AbstractClipRule,
    groups: Groups,
    budget: RoundingBudget,
    is_padding: Array | None,
) -> tuple[list[Array], Array, Array, Any]:
    """Clip the rows of a batch and add them up.

    Args:
      engine: how the gradients of some rows are computed, and how many rows to take at a time.
      batch: tree of arrays with a leading axis of N rows.
      positions: int32 [N], the place of each row in the whole batch, which decides its keys.
      leaves: the trained parameters.
      rule: the clip rule.
      groups: its groups of the trained parameters.
      budget: the rounding budget of the whole batch.
      is_padding: bool [N], rows to ignore, or None.

    Returns:
      * the sum for each trained parameter, in float32 or wider;
      * [N], norms before clipping; zero for padding and for rows that are dropped;
      * bool [N], rows that are not padding and whose gradient is not finite;
      * (losses, aux), each with a leading axis of rows.
    """
    num_rows, size = positions.shape[0], engine.chunk
    num_chunks = -(-num_rows // size)

    # One chunk needs no loop.
    if num_chunks == 1:
        gradients, extra = engine.gradients(batch, positions)
        sums, scales = sum_of_rows(gradients, leaves, rule, groups, budget, is_padding)
        return sums, scales.norms, scales.is_dropped, extra

    def add_chunk(totals: list[RunningSum], chunk: Any) -> tuple[list[RunningSum], Any]:
        rows, positions, padding = chunk
        gradients, extra = engine.gradients(rows, positions)
        totals, scales = add_clipped(packs, totals, gradients, rule, groups, budget, padding)
        return totals, (scales.norms, scales.is_dropped, extra)

    def skip_chunk(totals: list[RunningSum], chunk: Any) -> tuple[list[RunningSum], Any]:
        del chunk  # holds only padding
        norms = jnp.zeros(size, norm_dtype(leaves))
        outputs = jax.tree.map(lambda x: jnp.zeros((size, *x.shape), x.dtype), engine.outputs)
        return totals, (norms, jnp.zeros(size, bool), outputs)

    def add_unless_padding(totals: list[RunningSum], chunk: Any) -> tuple[list[RunningSum], Any]:
        _, _, padding = chunk
        return jax.lax.cond(padding.all(), skip_chunk, add_chunk, totals, chunk)

    # Split the rows into chunks, the last one filled up with copies of the first row.
    split = functools.partial(_split, num_chunks=num_chunks, size=size)
    padding = jnp.arange(num_chunks * size).reshape(num_chunks, size) >= num_rows
    if is_padding is not None:
        padding = padding | split(is_padding)
    chunks = (jax.tree.map(split, batch), split(positions), padding)

    # Add up the chunks.
    packs = packs_of(leaves, engine.forms, groups, budget, size, num_chunks)
    totals = [pack.zero(leaves) for pack in packs]
    step = add_unless_padding if engine.skips_padding else add_chunk
    totals, outputs = jax.lax.scan(step, totals, chunks)

    # Put the outputs of the chunks one after the other, without those of the rows that fill up the last one.
    def joined(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])[:num_rows]

    norms, is_dropped, extra = jax.tree.map(joined, outputs)
    return rounded_sums(packs, totals, leaves, groups), norms, is_dropped, extra


def _split(rows: Array, num_chunks: int, size: int) -> Array:
    """Split [N, ...] into chunks [num_chunks, size, ...], filled up with copies of the first row."""
    missing = num_chunks * size - rows.shape[0]
    if missing:
        copies = jnp.broadcast_to(rows[:1], (missing, *rows.shape[1:]))
        rows = jnp.concatenate([rows, copies])
    return rows.reshape(num_chunks, size, *rows.shape[1:])


def merge_leaves(params: PyTree, which: tuple[bool, ...], values: list[Array]) -> PyTree:
    """Return a tree like ``params`` with ``values`` at the marked leaves and zeros at the others."""
    leaves, structure = jax.tree.flatten(params)
    remaining = iter(values)
    merged = []
    for leaf, is_marked in zip(leaves, which, strict=True):
        merged.append(next(remaining) if is_marked else zeros_like_sum(leaf))
    return jax.tree.unflatten(structure, merged)
