"""One example's gradient of one weight, before it is formed: outer products, sparse rows, or the full array.

For a weight W that meets data in a contraction, the gradient of one example is sum_t left_t right_t^T: activations
times cotangents, summed over the positions t at which W is used. `Outer` keeps the two factors, and says for each axis
of W whether it runs over the left factor ("l"), the right one ("r") or both ("b": blocks, such as the groups of a
batched product or the layers of a scan over layers). `Sparse` is the gradient of a table of which rows were looked up.
`Full` is the gradient itself. `Weighted` is an `Outer` times a matrix, entry by entry, on its way to a sum over some of
its axes, which needs no product to be formed. All are without a batch axis: the engine maps them over the examples.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array

_LETTERS = "abcdefghijklmnopqrstuvwxyz"

Axis = tuple[str, int]
"""("l" | "r" | "b", position among the axes of that kind)."""


@jax.tree_util.register_pytree_node_class
class Outer:
    """sum over t of left[t] (x) right[t]; left is [T, blocks..., lefts...], right [T, blocks..., rights...]."""

    def __init__(self, left: Array, right: Array, axes: tuple[Axis, ...]):
        self.left, self.right, self.axes = left, right, axes

    def tree_flatten(self):
        return (self.left, self.right), self.axes

    @classmethod
    def tree_unflatten(cls, axes: tuple[Axis, ...], parts: tuple[Array, Array]) -> "Outer":
        return cls(*parts, axes)

    def of_kind(self, kind: str) -> list[int]:
        """The axes of the weight of this kind, in the order in which the factors hold them."""
        found = [(position, axis) for axis, (k, position) in enumerate(self.axes) if k == kind]
        return [axis for _, axis in sorted(found)]


class Sparse(NamedTuple):
    """Rows ``rows[t]`` (out of range: dropped) of the first axis get ``values[t]``, added up."""

    rows: Array
    values: Array


class Full(NamedTuple):
    """The gradient as it is."""

    gradient: Array


class Weighted(NamedTuple):
    """The entries of an outer product times those of a matrix."""

    outer: Outer
    matrix: Array


Factor = Outer | Sparse | Full
Passing = Factor | Weighted
"""A factor on its way from a site to a parameter."""


def weight_axis(outer: Outer, axis: int) -> tuple[bool, bool, int]:
    """(in the left factor, in the right factor, the axis of those factors) for an axis of the weight."""
    kind, position = outer.axes[axis]
    blocks = len(outer.of_kind("b"))
    return kind in "bl", kind in "br", 1 + position + (0 if kind == "b" else blocks)


def in_order(outer: Outer) -> Outer:
    """The same, with the axes of each factor in the order in which the weight has them."""
    kinds = {kind: outer.of_kind(kind) for kind in "blr"}
    ranks = {kind: sorted(range(len(axes)), key=axes.__getitem__) for kind, axes in kinds.items()}
    blocks = [1 + i for i in ranks["b"]]
    start = 1 + len(blocks)
    left = jnp.transpose(outer.left, (0, *blocks, *(start + i for i in ranks["l"])))
    right = jnp.transpose(outer.right, (0, *blocks, *(start + i for i in ranks["r"])))
    counts = {"b": 0, "l": 0, "r": 0}
    axes: list[Axis] = []
    for kind, _ in outer.axes:
        axes.append((kind, counts[kind]))
        counts[kind] += 1
    return Outer(left, right, tuple(axes))


def as_matrices(outer: Outer) -> tuple[Array, Array]:
    """left [K, T, d] and right [K, T, p]: K blocks, d rows and p columns."""

    def matrices(factor: Array) -> Array:
        blocks = factor.shape[1 : 1 + len(outer.of_kind("b"))]
        flat = factor.reshape(factor.shape[0], math.prod(blocks), -1)
        return jnp.swapaxes(flat, 0, 1)

    return matrices(outer.left), matrices(outer.right)


def arrange(result: Array, axes: tuple[Axis, ...], shape: tuple[int, ...]) -> Array:
    """[..., K, d, p] as gradients [..., *shape] of the weight whose axes these are."""
    order = [axis for kind in "blr" for _, axis in sorted((p, i) for i, (k, p) in enumerate(axes) if k == kind)]
    lead = result.ndim - 3
    grouped = result.reshape(*result.shape[:lead], *(shape[axis] for axis in order))
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return jnp.transpose(grouped, (*range(lead), *(lead + i for i in inverse)))


def full_gradient(factor: Passing, shape: tuple[int, ...]) -> Array:
    """The gradient of the weight, in float32 or wider: what the others stand for."""
    if isinstance(factor, Full):
        return factor.gradient
    if isinstance(factor, Weighted):
        outer = full_gradient(factor.outer, shape)
        return outer * factor.matrix.astype(outer.dtype)
    if isinstance(factor, Sparse):
        dtype = jnp.promote_types(factor.values.dtype, jnp.float32)
        return jnp.zeros(shape, dtype).at[factor.rows].add(factor.values.astype(dtype), mode="drop")
    left, right = as_matrices(factor)
    dtype = jnp.promote_types(jnp.promote_types(left.dtype, right.dtype), jnp.float32)
    product = jnp.einsum("ktd,ktp->kdp", left, right, preferred_element_type=dtype)
    return arrange(product, factor.axes, shape)


def summed(factor: Weighted, kept: Sequence[int]) -> Array:
    """The gradient added up over all axes but those ``kept``, which stay in order; nothing larger is formed."""
    outer = factor.outer
    names = {kind: [_LETTERS[axis] for axis in outer.of_kind(kind)] for kind in "blr"}
    to = "".join(_LETTERS[axis] for axis in kept)
    matrix = "".join(_LETTERS[axis] for axis in range(len(outer.axes)))
    parts = [(outer.left, "l"), (outer.right, "r")]
    if any(outer.axes[axis][0] == "l" for axis in kept):
        parts.reverse()
    (first, gone), (second, stays) = parts
    dtype = functools.reduce(jnp.promote_types, [x.dtype for x in (first, second, factor.matrix)], jnp.float32)
    first, second, values = (x.astype(dtype) for x in (first, second, factor.matrix))
    blocks = "T" + "".join(names["b"])
    # The matrix meets one factor first: all three at once might be multiplied in another order.
    here, there = blocks + "".join(names[gone]), blocks + "".join(names[stays])
    between = "T" + "".join(axis for axis in matrix if axis in there or axis in to)
    highest = jax.lax.Precision.HIGHEST
    product = jnp.einsum(f"{here},{matrix}->{between}", first, values, precision=highest)
    return jnp.einsum(f"{between},{there}->{to}", product, second, precision=highest)


def is_rank_one(factor: Factor) -> bool:
    """Whether every block is one outer product, whose norm is the product of two norms."""
    return isinstance(factor, Outer) and factor.left.shape[0] == 1


def added(factors: list[Factor], shape: tuple[int, ...]) -> Factor:
    """The gradient of a weight that is used several times."""
    if len(factors) == 1:
        return factors[0]
    first = factors[0]
    outers = [f for f in factors if isinstance(f, Outer)]
    if len(outers) == len(factors) and all(f.axes == outers[0].axes for f in outers):
        return Outer(
            jnp.concatenate([f.left for f in outers]), jnp.concatenate([f.right for f in outers]), outers[0].axes
        )
    tables = [f for f in factors if isinstance(f, Sparse)]
    if len(tables) == len(factors):
        index = [f.rows for f in tables]
        return Sparse(jnp.concatenate(index), jnp.concatenate([f.values for f in tables]))
    total = full_gradient(first, shape)
    for factor in factors[1:]:
        total = total + full_gradient(factor, shape)
    return Full(total)
