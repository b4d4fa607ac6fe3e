"""Clip a batch of per-example gradients and add them up, within a derived rounding bound.

The promise is on what the machine returns, not on real arithmetic: for any two batches, padded to the same size B, that
differ by one added or removed row, the two returned sums differ by at most C in l2 norm, given that the computed
gradient of a row is a function of that row. That much is the compiler's: programs of different batch sizes may compute
the same row's gradient differently (a ReLU at its kink can fall on either side), so pad to ONE static size. With u the
unit roundoff of the accumulation dtype (2^-24 for float32) and d coordinates in n leaves, the parts are, relative to C:

* Norm. Squares and their sum are off by at most sum_error_terms(d) + sum_error_terms(n) + 1 roundings, halved by the
  square root; converting C, the square root, the quotient and the product cost 6 more. An example may thus be
  scaled to C (1 + k u), k = half of the sum + 6.
* Sum. Each row c_i g_i enters the compensated sum rounded or not (a compiler may fuse the product into the first
  additions), 2 u ||c_i g_i||, and the result is rounded once, u ||sum||: at most 3 u B C; the compensated sum's own
  error, 2 u^2 (B + 9) B C, is below u B C / 100 up to the largest B that is accepted, and covered by the factor 3.1.
  Neighbours differ by one row and by two such errors: 6.2 u B.

So rows are clipped to C / (1 + slack), slack = k u + 6.2 u B, which makes the sensitivity exactly C. The slack depends
on shapes alone and is the same for every strategy; where batches are padded to several sizes it must be that of the
largest (`max_batch_size`), or the size would move every row's threshold. A batch that would need more than 1% is
refused (float32: 27,000 rows).

Range. Squares of large gradients overflow and of small ones vanish, so every row is first scaled by a power of two
near its largest entry, which is exact. A row with a NaN or an infinity contributes exact zeros, as does padding.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.trees import (
    bounded_sum,
    compensated_row_sum,
    is_floating,
    num_elements,
    sum_error_terms,
    wide_dtype,
)
from gdpjax._core.types import Array, PyTree
from gdpjax.clipping._rules import CLIP_NORM, Flat

_MAX_SLACK = 0.01


class ClippedRows(NamedTuple):
    """Clipped per-example gradients (list of leaves, leading batch axis) and their norms before clipping."""

    rows: list[Array]
    norms: Array


def rounding_slack(leaves: list[Array], num_rows: int) -> float:
    """The static relative slack of this module for ``num_rows`` rows of gradients shaped like ``leaves``."""
    unit = max(float(np.finfo(wide_dtype(leaf)).eps) / 2 for leaf in leaves)
    size = max(num_elements(leaf) for leaf in leaves)
    norm_terms = (sum_error_terms(size) + sum_error_terms(len(leaves)) + 1) / 2 + 6
    slack = unit * (norm_terms + 6.2 * num_rows)
    if slack > _MAX_SLACK:
        raise ValueError(
            f"a batch of {num_rows} rows is too large for the rounding of its sum to stay within 1% of the clip norm "
            f"(it could reach {slack:.1%}); use smaller logical batches, or float64 gradients"
        )
    return slack


def _row_scale(leaves: list[Array]) -> tuple[Array, Array]:
    """Per row: a power of two 2^e with max|g| in [2^(e-1), 2^e) (as a pair 2^-e, 2^e), and the largest entry."""
    flat = [jnp.abs(leaf.reshape(leaf.shape[0], -1)).max(axis=1) for leaf in leaves if num_elements(leaf)]
    largest = functools.reduce(jnp.maximum, flat)
    _, exponent = jnp.frexp(jnp.where(jnp.isfinite(largest), largest, 1))
    limit = -np.finfo(largest.dtype).minexp
    exponent = jnp.clip(exponent, -limit, limit)
    one = jnp.ones_like(largest)
    return largest, jnp.stack([jnp.ldexp(one, -exponent), jnp.ldexp(one, exponent)])


def _per_row(values: Array, like: Array) -> Array:
    return values.reshape(values.shape + (1,) * (like.ndim - 1))


def clip_rows(leaves: list[Array], rule: Flat, slack: float, is_padding: Array | None = None) -> ClippedRows:
    """Clip each row of per-example gradients (floating leaves ``[B, ...]``) to the rule's bound / (1 + slack)."""
    dtype = functools.reduce(jnp.promote_types, [wide_dtype(leaf) for leaf in leaves])
    wide = [leaf.astype(dtype) for leaf in leaves]
    largest, (down, up) = _row_scale(wide)
    squares = [
        bounded_sum(jnp.square((leaf * _per_row(down, leaf)).reshape(leaf.shape[0], -1)))
        for leaf in wide
        if num_elements(leaf)
    ]
    total = bounded_sum(jnp.stack(squares, axis=-1))
    # sqrt(0) has an infinite slope, which would spoil derivatives through the clipped sum.
    scaled_norm = jnp.where(total > 0, jnp.sqrt(jnp.where(total > 0, total, 1)), 0)
    norms = scaled_norm * up
    bound = jnp.asarray(rule.l2_norm_bound, dtype)
    threshold = jnp.where(CLIP_NORM.contains(bound), bound, jnp.nan) / (1 + slack)
    keep = jnp.isfinite(largest)
    if is_padding is not None:
        keep = keep & ~is_padding
    # For a NaN threshold `norms <= threshold` is False, so a wrong traced clip norm gives NaN and not a free pass.
    factor = threshold / jnp.where(scaled_norm > 0, scaled_norm, 1)
    fits = norms <= threshold

    def clip_leaf(leaf: Array, original: Array) -> Array:
        clipped = jnp.where(_per_row(fits, leaf), leaf, (leaf * _per_row(down, leaf)) * _per_row(factor, leaf))
        return jnp.where(_per_row(keep, leaf), clipped, 0).astype(wide_dtype(original))

    return ClippedRows([clip_leaf(w, leaf) for w, leaf in zip(wide, leaves, strict=True)], jnp.where(keep, norms, 0))


def clip_and_add(leaves: list[Array], rule: Flat, slack: float, is_padding: Array | None = None):
    """Clip rows and add them: the sums as unevaluated pairs (hi, lo), and the norms before clipping."""
    clipped = clip_rows(leaves, rule, slack, is_padding)
    return [compensated_row_sum(rows) for rows in clipped.rows], clipped.norms


def rounded(pairs: list[tuple[Array, Array]]) -> list[Array]:
    """hi + lo, the one rounding of the sum."""
    return [hi + lo for hi, lo in pairs]


def zeros_like_sum(leaf: Array) -> Array:
    """What a leaf without a gradient contributes: zeros, in the dtype of a sum where it is floating."""
    return jnp.zeros(jnp.shape(leaf), wide_dtype(leaf) if is_floating(leaf) else jnp.result_type(leaf))


def merge_leaves(params: PyTree, which: tuple[bool, ...], values: list[Array]) -> PyTree:
    """A tree like ``params`` with ``values`` at the marked leaves and zeros at the others."""
    leaves, structure = jax.tree.flatten(params)
    remaining = iter(values)
    merged = [next(remaining) if mark else zeros_like_sum(leaf) for leaf, mark in zip(leaves, which, strict=True)]
    return jax.tree.unflatten(structure, merged)
