"""One example's gradient of one weight, before it is formed.

For a weight W that meets data in a contraction, the gradient of one example is sum_t left_t right_t^T: activations
times cotangents, added up over the positions t at which W is used. There is a final class for each form:

* `Outer` keeps the two factors of such a sum;
* `Sparse` is the gradient of a table: the rows that were looked up, and what each of them gets;
* `Tied` is the sum of both, for a table that is looked up and multiplied with;
* `Full` is the gradient itself;
* `Weighted` is an `Outer` times a matrix, entry by entry, on its way to a sum over some of its axes, for which no
  product has to be formed.

None of them has a batch axis: `row_gradients` maps them over the examples.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import final

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._gradients import (
    AbstractRowGradients,
    FormedGradients,
    OuterProducts,
    PositionProducts,
    TableRows,
    TiedTable,
    positions_pay,
)
from gdpjax.clipping._weight_axes import Axis, arrange, axes_of_kind

_LETTERS = "abcdefghijklmnopqrstuvwxyz"


class AbstractFactor(abc.ABC):
    """One example's gradient of one weight, in some form."""

    @abc.abstractmethod
    def formed(self, shape: tuple[int, ...]) -> Array:
        """Return the gradient of the weight with this shape, in float32 or wider unless it is formed already."""

    @abc.abstractmethod
    def scaled(self, scale: Array) -> "AbstractFactor":
        """Return the gradient times a number, in float32 or wider."""

    def compact(self, shape: tuple[int, ...]) -> "AbstractFactor":
        """Return the form in which the gradient is kept for a batch: by default it is formed."""
        return Full(self.formed(shape))

    def joined(self, others: Sequence["AbstractFactor"]) -> "AbstractFactor | None":
        """Return the sum with others in the same form, or None where it has to be formed."""
        return None

    def leave_scan(self, is_scanned: bool) -> "AbstractFactor":
        """Merge the gradients of all iterations of a scan, which are stacked along a new first axis.

        Args:
          is_scanned: each iteration has a slice of the weight; otherwise all iterations have the same weight.
        """
        raise NotImplementedError(f"{type(self).__name__} does not pass through a scan")  # pragma: no cover

    def row_gradients(self, shape: tuple[int, ...]) -> AbstractRowGradients:
        """Return the gradients of a batch, whose factors are stacked along a new first axis."""
        raise NotImplementedError(f"{type(self).__name__} has to be made compact first")  # pragma: no cover

    @property
    def num_products(self) -> int:
        """How many outer products are added up."""
        return 1


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Full(AbstractFactor):
    """The gradient as it is.

    Attributes:
      gradient: an array like the weight.
    """

    gradient: Array

    def formed(self, shape: tuple[int, ...]) -> Array:
        return self.gradient

    def scaled(self, scale: Array) -> "Full":
        return Full(_times(self.gradient, scale))

    def compact(self, shape: tuple[int, ...]) -> "Full":
        return self

    def leave_scan(self, is_scanned: bool) -> "Full":
        return self if is_scanned else Full(self.gradient.sum(axis=0))

    def row_gradients(self, shape: tuple[int, ...]) -> FormedGradients:
        return FormedGradients(self.gradient)


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Sparse(AbstractFactor):
    """The gradient of a table of which T rows were looked up.

    Attributes:
      rows: [T], indices along the first axis of the table; those out of range are dropped.
      values: [T, ...], what each of these rows gets; equal indices are added up.
    """

    rows: Array
    values: Array

    def formed(self, shape: tuple[int, ...]) -> Array:
        dtype = wide_dtype(self.values)
        return jnp.zeros(shape, dtype).at[self.rows].add(self.values.astype(dtype), mode="drop")

    def scaled(self, scale: Array) -> "Sparse":
        return Sparse(self.rows, _times(self.values, scale))

    def compact(self, shape: tuple[int, ...]) -> "Sparse":
        return self

    def joined(self, others: Sequence[AbstractFactor]) -> "Sparse | None":
        every = [self, *(other for other in others if isinstance(other, Sparse))]
        if len(every) <= len(others):
            return None
        return Sparse(
            jnp.concatenate([factor.rows for factor in every]), jnp.concatenate([factor.values for factor in every])
        )

    def leave_scan(self, is_scanned: bool) -> "Sparse":
        if is_scanned:
            raise NotImplementedError("a table that is scanned over is not tapped")  # pragma: no cover
        return Sparse(self.rows.reshape(-1), self.values.reshape(-1, *self.values.shape[2:]))

    def row_gradients(self, shape: tuple[int, ...]) -> TableRows:
        return TableRows.of_lookups(self.rows, self.values, shape)


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Outer(AbstractFactor):
    """A sum over t of outer products left[t] (x) right[t].

    Attributes:
      left: [T, *blocks, *axes of the left factor].
      right: [T, *blocks, *axes of the right factor].
      axes: for each axis of the weight, the factor that has it ("l", "r", or "b" for blocks, which both have), and its
        place among the axes of that kind.
    """

    left: Array
    right: Array
    axes: tuple[Axis, ...] = dataclasses.field(metadata=dict(static=True))

    @property
    def num_products(self) -> int:
        return self.left.shape[0]

    def of_kind(self, kind: str) -> list[int]:
        """Return the axes of the weight of this kind, in the order in which the factors hold them."""
        return axes_of_kind(self.axes, kind)

    def matrices(self) -> tuple[Array, Array]:
        """Return left [K, T, d] and right [K, T, p] of K blocks, with d rows and p columns each."""
        num_blocks = len(self.of_kind("b"))

        def by_block(factor: Array) -> Array:
            blocks = math.prod(factor.shape[1 : 1 + num_blocks])
            return jnp.swapaxes(factor.reshape(factor.shape[0], blocks, -1), 0, 1)

        return by_block(self.left), by_block(self.right)

    def formed(self, shape: tuple[int, ...]) -> Array:
        left, right = self.matrices()
        dtype = jnp.promote_types(jnp.promote_types(left.dtype, right.dtype), jnp.float32)
        product = jnp.einsum("ktd,ktp->kdp", left, right, preferred_element_type=dtype)
        return arrange(product, self.axes, shape)

    def scaled(self, scale: Array) -> "Outer":
        return Outer(self.left, _times(self.right, scale), self.axes)

    def compact(self, shape: tuple[int, ...]) -> AbstractFactor:
        # The norm of one product is the product of two norms; only a sum of several can cancel.
        left, right = self.matrices()
        is_kept = self.num_products == 1 or positions_pay(self.num_products, left.shape[-1], right.shape[-1])
        return self if is_kept else Full(self.formed(shape))

    def joined(self, others: Sequence[AbstractFactor]) -> "Outer | None":
        every = [self, *(other for other in others if isinstance(other, Outer) and other.axes == self.axes)]
        if len(every) <= len(others):
            return None
        left = jnp.concatenate([factor.left for factor in every])
        return Outer(left, jnp.concatenate([factor.right for factor in every]), self.axes)

    def leave_scan(self, is_scanned: bool) -> "Outer":
        if not is_scanned:
            # All iterations have the same weight: their outer products are added up.
            left = self.left.reshape(-1, *self.left.shape[2:])
            return Outer(left, self.right.reshape(-1, *self.right.shape[2:]), self.axes)
        # Each iteration has a block of its own, along a new first axis of the weight.
        axes = [("b", 0)]
        for kind, position in self.axes:
            axes.append((kind, position + 1 if kind == "b" else position))
        return Outer(jnp.swapaxes(self.left, 0, 1), jnp.swapaxes(self.right, 0, 1), tuple(axes))

    def row_gradients(self, shape: tuple[int, ...]) -> AbstractRowGradients:
        left, right = jax.vmap(Outer.matrices)(self)  # [N, K, T, d] and [N, K, T, p]
        if left.shape[2] == 1:
            return OuterProducts(left[:, :, 0], right[:, :, 0], self.axes, shape)
        return PositionProducts(jnp.swapaxes(left, 1, 2), jnp.swapaxes(right, 1, 2), self.axes, shape)

    def with_axes(self, axes: Sequence[Axis]) -> "Outer":
        """Return the same factors for a weight whose axes are in another order."""
        return Outer(self.left, self.right, tuple(axes))

    def in_order(self) -> "Outer":
        """Return the same, with the axes of each factor in the order in which the weight has them."""
        orders = {}
        for kind in "blr":
            axes = self.of_kind(kind)
            orders[kind] = sorted(range(len(axes)), key=axes.__getitem__)
        blocks = [1 + place for place in orders["b"]]
        start = 1 + len(blocks)
        left = jnp.transpose(self.left, (0, *blocks, *(start + place for place in orders["l"])))
        right = jnp.transpose(self.right, (0, *blocks, *(start + place for place in orders["r"])))

        counts = {"b": 0, "l": 0, "r": 0}
        axes = []
        for kind, _ in self.axes:
            axes.append((kind, counts[kind]))
            counts[kind] += 1
        return Outer(left, right, tuple(axes))

    def along(self, axis: int, change: Callable[[Array, int], Array]) -> "Outer":
        """Apply change(factor, axis of the factor) to the factors that have an axis of the weight."""
        kind, position = self.axes[axis]
        place = 1 + position
        if kind != "b":
            place += len(self.of_kind("b"))
        left = change(self.left, place) if kind in "bl" else self.left
        right = change(self.right, place) if kind in "br" else self.right
        return Outer(left, right, self.axes)

    def scaled_along(self, scale: Array, kind: str) -> "Outer":
        """Scale the factor of that kind by entries that lie along its axes alone (``scale`` is like the weight)."""
        factor = self.left if kind == "l" else self.right
        order = [*self.of_kind("b"), *self.of_kind(kind)]
        others = [axis for axis in range(scale.ndim) if axis not in order]
        moved = jnp.transpose(scale, (*order, *others))
        moved = moved.reshape(moved.shape[: len(order)])
        scaled = factor.astype(wide_dtype(factor)) * moved
        return Outer(scaled, self.right, self.axes) if kind == "l" else Outer(self.left, scaled, self.axes)

    def reshaped(self, old: tuple[int, ...], new: tuple[int, ...]) -> "Outer | None":
        """Return the gradient of a weight of shape ``old``, of which this is that of its reshape to ``new``.

        None where a group of axes that are reshaped together mixes the factors.
        """
        groups = _common_groups(new, old)
        if groups is None:
            return None
        ordered = self.in_order()
        axes: list[Axis] = []
        shapes: dict[str, list[int]] = {"b": [], "l": [], "r": []}
        for own, theirs in groups:
            kinds = {ordered.axes[axis][0] for axis in own} or {"r"}
            if len(kinds) > 1:
                return None
            (kind,) = kinds
            for axis in theirs:
                axes.append((kind, len(shapes[kind])))
                shapes[kind].append(old[axis])
        left = ordered.left.reshape(self.num_products, *shapes["b"], *shapes["l"])
        right = ordered.right.reshape(self.num_products, *shapes["b"], *shapes["r"])
        return Outer(left, right, tuple(axes))


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tied(AbstractFactor):
    """The gradient of a table that is multiplied with and of which rows are looked up.

    Attributes:
      outer: the gradient of the multiplications.
      sparse: that of the look-ups.
    """

    outer: Outer
    sparse: Sparse

    def formed(self, shape: tuple[int, ...]) -> Array:
        return self.outer.formed(shape) + self.sparse.formed(shape)

    def scaled(self, scale: Array) -> "Tied":
        return Tied(self.outer.scaled(scale), self.sparse.scaled(scale))

    def compact(self, shape: tuple[int, ...]) -> AbstractFactor:
        num_positions = self.outer.num_products + self.sparse.rows.shape[0]
        is_kept = self._has_rows_apart and positions_pay(num_positions, shape[0], math.prod(shape[1:]))
        return self if is_kept else Full(self.formed(shape))

    @property
    def _has_rows_apart(self) -> bool:
        """Whether one of the factors runs over the rows of the table, and the other one over all other axes."""
        kinds = [kind for kind, _ in self.outer.axes]
        return "b" not in kinds and kinds[0] not in kinds[1:]

    def row_gradients(self, shape: tuple[int, ...]) -> TiedTable:
        outer = jax.vmap(Outer.in_order)(self.outer)
        along_rows, others = outer.left, outer.right
        if outer.axes[0][0] == "r":
            along_rows, others = others, along_rows
        others = others.reshape(*others.shape[:2], -1)
        values = self.sparse.values.reshape(*self.sparse.values.shape[:2], -1)
        return TiedTable(along_rows, others, self.sparse.rows, values, shape)


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weighted(AbstractFactor):
    """The entries of an outer product times those of a matrix.

    Attributes:
      outer: the outer product.
      matrix: like the weight.
    """

    outer: Outer
    matrix: Array

    def formed(self, shape: tuple[int, ...]) -> Array:
        outer = self.outer.formed(shape)
        return outer * self.matrix.astype(outer.dtype)

    def scaled(self, scale: Array) -> "Weighted":
        return Weighted(self.outer.scaled(scale), self.matrix)

    def summed(self, kept: Sequence[int]) -> Array:
        """Add the gradient up over all axes but those ``kept``, which stay in order; nothing larger is formed."""
        outer = self.outer
        names = {kind: "".join(_LETTERS[axis] for axis in outer.of_kind(kind)) for kind in "blr"}
        to = "".join(_LETTERS[axis] for axis in kept)
        matrix = _LETTERS[: len(outer.axes)]

        # The factor that keeps its axes comes second; the matrix meets the other one first, as an order of the three
        # that is left to einsum might form the outer product.
        first, second, gone, stays = outer.left, outer.right, names["l"], names["r"]
        if any(outer.axes[axis][0] == "l" for axis in kept):
            first, second, gone, stays = second, first, stays, gone
        dtype = functools.reduce(jnp.promote_types, [x.dtype for x in (first, second, self.matrix)], jnp.float32)
        here = "T" + names["b"] + gone
        there = "T" + names["b"] + stays
        between = "T" + "".join(axis for axis in matrix if axis in there or axis in to)

        highest = jax.lax.Precision.HIGHEST
        values = self.matrix.astype(dtype)
        product = jnp.einsum(f"{here},{matrix}->{between}", first.astype(dtype), values, precision=highest)
        return jnp.einsum(f"{between},{there}->{to}", product, second.astype(dtype), precision=highest)


def added(factors: Sequence[AbstractFactor], shape: tuple[int, ...]) -> AbstractFactor:
    """Add up the gradients of a weight that is used several times."""
    first, *others = factors
    if not others:
        return first
    joined = first.joined(others)
    if joined is not None:
        return joined

    # A table that is looked up and multiplied with.
    products = [factor for factor in factors if isinstance(factor, Outer)]
    lookups = [factor for factor in factors if isinstance(factor, Sparse)]
    if products and lookups and len(products) + len(lookups) == len(factors):
        outer, sparse = added(products, shape), added(lookups, shape)
        if isinstance(outer, Outer) and isinstance(sparse, Sparse):
            return Tied(outer, sparse)

    total = first.formed(shape)
    for factor in others:
        total = total + factor.formed(shape)
    return Full(total)


def _times(x: Array, scale: Array) -> Array:
    """Multiply in float32 or wider; a scale may lie outside the range of half precision."""
    x = x.astype(wide_dtype(x))
    return x * scale.astype(wide_dtype(scale)).astype(x.dtype)


def _common_groups(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[list[int], list[int]]] | None:
    """Cut two shapes of equal size into the shortest groups of consecutive axes of equal size."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        first = list(range(i, min(i + 1, len(a))))
        second = list(range(j, min(j + 1, len(b))))
        i, j = i + len(first), j + len(second)
        # Lengthen whichever group is smaller, until both have the same size.
        while (ours := math.prod(a[axis] for axis in first)) != (theirs := math.prod(b[axis] for axis in second)):
            if (ours < theirs and i == len(a)) or (theirs < ours and j == len(b)):
                return None
            if ours < theirs:
                first.append(i)
                i += 1
            else:
                second.append(j)
                j += 1
        groups.append((first, second))
    return groups
