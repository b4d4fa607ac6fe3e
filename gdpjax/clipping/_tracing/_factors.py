"""One example's gradient of one weight, before it is formed.

A dense layer y = x W has the gradient x^T s, where s is the cotangent of y. It is kept as its two factors:

    factor = Outer(x[None], s[None], axes=(("l", 0), ("r", 0)))   # W's axis 0 in the left factor, axis 1 in the right
    factor.formed(W.shape)                                        # the gradient as an array

In general a weight is used at several positions t, and its gradient is sum_t left_t right_t^T. There is a final class
for each form:

* `Outer` keeps the two factors of such a sum.
* `Sparse` is the gradient of a table: the rows that were looked up, and what each of them gets.
* `Tied` is the sum of both, for a table that is looked up and multiplied with.
* `Full` is the gradient itself.
* `Weighted` is an `Outer` times a matrix, entry by entry. It is added up over some of its axes without being formed.

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
"""Names of the axes of a weight in an einsum."""


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
          is_scanned: whether each iteration has a slice of the weight; otherwise all have the same weight.
        """
        raise NotImplementedError(f"{type(self).__name__} does not pass through a scan")  # pragma: no cover

    def row_gradients(self, shape: tuple[int, ...]) -> AbstractRowGradients:
        """Return the gradients of a batch, whose factors are stacked along a new first axis."""
        raise NotImplementedError(f"{type(self).__name__} has to be made compact first")  # pragma: no cover

    @property
    def num_products(self) -> int:
        """The number of outer products that are added up."""
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
        rows = [self.rows]
        values = [self.values]
        for other in others:
            if not isinstance(other, Sparse):
                return None
            rows.append(other.rows)
            values.append(other.values)
        return Sparse(jnp.concatenate(rows), jnp.concatenate(values))

    def leave_scan(self, is_scanned: bool) -> "Sparse":
        if is_scanned:
            raise NotImplementedError("a table that is scanned over is not tapped")  # pragma: no cover
        rows = self.rows.reshape(-1)
        values = self.values.reshape(-1, *self.values.shape[2:])
        return Sparse(rows, values)

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
      axes: for each axis of the weight the factor that has it ("l", "r", or "b" for blocks, which both have), and its
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
            by_position = factor.reshape(factor.shape[0], blocks, -1)
            return jnp.swapaxes(by_position, 0, 1)

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
        if self.num_products == 1 or positions_pay(self.num_products, *self.sizes):
            return self
        return Full(self.formed(shape))

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of entries of the two factors of one product in one block."""
        first_own = 1 + len(self.of_kind("b"))
        return math.prod(self.left.shape[first_own:]), math.prod(self.right.shape[first_own:])

    def joined(self, others: Sequence[AbstractFactor]) -> "Outer | None":
        left = [self.left]
        right = [self.right]
        for other in others:
            if not isinstance(other, Outer) or other.axes != self.axes:
                return None
            left.append(other.left)
            right.append(other.right)
        return Outer(jnp.concatenate(left), jnp.concatenate(right), self.axes)

    def leave_scan(self, is_scanned: bool) -> "Outer":
        if not is_scanned:
            # All iterations have the same weight: their outer products are added up.
            left = self.left.reshape(-1, *self.left.shape[2:])
            right = self.right.reshape(-1, *self.right.shape[2:])
            return Outer(left, right, self.axes)

        # Each iteration has a block of its own, along a new first axis of the weight.
        axes = [("b", 0)]
        for kind, position in self.axes:
            axes.append((kind, position + 1 if kind == "b" else position))
        left = jnp.swapaxes(self.left, 0, 1)
        right = jnp.swapaxes(self.right, 0, 1)
        return Outer(left, right, tuple(axes))

    def row_gradients(self, shape: tuple[int, ...]) -> AbstractRowGradients:
        left, right = jax.vmap(Outer.matrices)(self)  # [N, K, T, d] and [N, K, T, p]
        if left.shape[2] == 1:
            return OuterProducts(left[:, :, 0], right[:, :, 0], self.axes, shape)
        left = jnp.swapaxes(left, 1, 2)
        right = jnp.swapaxes(right, 1, 2)
        return PositionProducts(left, right, self.axes, shape)

    def with_axes(self, axes: Sequence[Axis]) -> "Outer":
        """Return the same factors for a weight whose axes are in another order."""
        return Outer(self.left, self.right, tuple(axes))

    def in_order(self) -> "Outer":
        """Return the same, with the axes of each factor in the order in which the weight has them."""
        # For each kind, the places of its axes in the factor, in the order of the weight.
        places: dict[str, list[int]] = {"b": [], "l": [], "r": []}
        axes = []
        for kind, position in self.axes:
            axes.append((kind, len(places[kind])))
            places[kind].append(position)

        first_own = 1 + len(places["b"])
        blocks = [1 + position for position in places["b"]]
        left_axes = [first_own + position for position in places["l"]]
        right_axes = [first_own + position for position in places["r"]]
        left = jnp.transpose(self.left, (0, *blocks, *left_axes))
        right = jnp.transpose(self.right, (0, *blocks, *right_axes))
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
        """Scale one factor.

        Args:
          scale: has the axes of the weight, and length one along those that the factor does not have.
          kind: the factor, "l" or "r".
        """
        # Bring the axes of the scale into the order of the factor, and drop those of length one.
        order = [*self.of_kind("b"), *self.of_kind(kind)]
        others = [axis for axis in range(scale.ndim) if axis not in order]
        moved = jnp.transpose(scale, (*order, *others))
        moved = moved.reshape(moved.shape[: len(order)])

        factor = self.left if kind == "l" else self.right
        scaled = factor.astype(wide_dtype(factor)) * moved
        if kind == "l":
            return Outer(scaled, self.right, self.axes)
        return Outer(self.left, scaled, self.axes)

    def reshaped(self, old: tuple[int, ...], new: tuple[int, ...]) -> "Outer | None":
        """Undo a reshape of the weight.

        Args:
          old: the shape of the weight before.
          new: its shape after, to which this gradient belongs.

        Returns:
          The gradient of the weight before, or None where axes of both factors are reshaped together.
        """
        groups = _common_groups(new, old)
        if groups is None:
            return None
        ordered = self.in_order()
        axes: list[Axis] = []
        shapes: dict[str, list[int]] = {"b": [], "l": [], "r": []}
        for new_axes, old_axes in groups:
            kinds = {ordered.axes[axis][0] for axis in new_axes}
            if len(kinds) > 1:
                return None
            kind = kinds.pop() if kinds else "r"  # axes of length one may come from nowhere
            for axis in old_axes:
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
        row_size = math.prod(shape[1:])
        if self._has_rows_apart and positions_pay(num_positions, shape[0], row_size):
            return self
        return Full(self.formed(shape))

    @property
    def _has_rows_apart(self) -> bool:
        """Whether one of the factors runs over the rows of the table, and the other one over all other axes."""
        kinds = [kind for kind, _ in self.outer.axes]
        return "b" not in kinds and kinds[0] not in kinds[1:]

    def row_gradients(self, shape: tuple[int, ...]) -> TiedTable:
        # One factor runs over the rows of the table, the other one over the entries of a row.
        outer = jax.vmap(Outer.in_order)(self.outer)
        first_kind, _ = outer.axes[0]
        if first_kind == "l":
            along_rows, others = outer.left, outer.right
        else:
            along_rows, others = outer.right, outer.left
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
        names = {}
        for kind in "blr":
            names[kind] = "".join(_LETTERS[axis] for axis in outer.of_kind(kind))
        matrix = _LETTERS[: len(outer.axes)]
        result = "".join(_LETTERS[axis] for axis in kept)

        # The matrix first meets the factor all of whose axes are summed over, and the other factor comes second: an
        # order of the three that is left to einsum might form the outer product.
        keeps_left = any(outer.axes[axis][0] == "l" for axis in kept)
        if keeps_left:
            first, second = outer.right, outer.left
            first_names = "T" + names["b"] + names["r"]
            second_names = "T" + names["b"] + names["l"]
        else:
            first, second = outer.left, outer.right
            first_names = "T" + names["b"] + names["l"]
            second_names = "T" + names["b"] + names["r"]
        between = "T" + "".join(axis for axis in matrix if axis in second_names or axis in result)

        dtype = functools.reduce(jnp.promote_types, [first.dtype, second.dtype, self.matrix.dtype], jnp.float32)
        values = self.matrix.astype(dtype)
        highest = jax.lax.Precision.HIGHEST
        product = jnp.einsum(f"{first_names},{matrix}->{between}", first.astype(dtype), values, precision=highest)
        return jnp.einsum(f"{between},{second_names}->{result}", product, second.astype(dtype), precision=highest)


def total_of(factors: Sequence[AbstractFactor], shape: tuple[int, ...]) -> AbstractFactor:
    """Add up the gradients of a weight that is used several times."""
    first, *others = factors
    if not others:
        return first
    joined = first.joined(others)
    if joined is not None:
        return joined

    # A table may be looked up and multiplied with.
    products = [factor for factor in factors if isinstance(factor, Outer)]
    lookups = [factor for factor in factors if isinstance(factor, Sparse)]
    if products and lookups and len(products) + len(lookups) == len(factors):
        outer = total_of(products, shape)
        sparse = total_of(lookups, shape)
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


def _common_groups(first: tuple[int, ...], second: tuple[int, ...]) -> list[tuple[list[int], list[int]]] | None:
    """Cut two shapes of equal size into the shortest groups of consecutive axes of equal size.

    [6, 5] and [2, 3, 5] have the groups ([0], [0, 1]) and ([1], [2]). None where there is no such cut.
    """
    groups = []
    first_next = second_next = 0
    while first_next < len(first) or second_next < len(second):
        # A group starts with one axis of each shape, if there is one.
        first_axes: list[int] = []
        second_axes: list[int] = []
        first_size = second_size = 1
        if first_next < len(first):
            first_axes.append(first_next)
            first_size = first[first_next]
            first_next += 1
        if second_next < len(second):
            second_axes.append(second_next)
            second_size = second[second_next]
            second_next += 1

        # Lengthen whichever side is smaller, until both have the same size.
        while first_size != second_size:
            if first_size < second_size:
                if first_next == len(first):
                    return None
                first_axes.append(first_next)
                first_size *= first[first_next]
                first_next += 1
            else:
                if second_next == len(second):
                    return None
                second_axes.append(second_next)
                second_size *= second[second_next]
                second_next += 1
        groups.append((first_axes, second_axes))
    return groups
