"""One example's gradient of one weight, before it is formed.

A dense layer y = x W has the gradient x^T s, where s is the cotangent of y. It is kept as its two factors:

    factor = Outer(x[None], s[None], axes=(("l", 0), ("r", 0)))   # W's axis 0 in the left factor, axis 1 in the right
    factor.formed(W.shape)                                        # the gradient as an array

In general a weight is used at several positions t, and its gradient is sum_t left_t right_t^T. Each form of a gradient
has a class:

* `Outer` keeps the two factors of such a sum.
* `Sparse` is the gradient of a table: the rows that were looked up, and what each of them gets.
* `Tied` is the sum of an `Outer` and a `Sparse`, for a table that is multiplied by data and looked up too.
* `Full` is the gradient itself, as an array.

The classes describe one example, without a batch axis. The engine maps them over the examples by `jax.vmap`, so that
their arrays get a leading axis, and `AbstractFactor.row_gradients` returns what `_gradients` holds of that batch.
`compact` decides in which form a gradient is kept.
"""

import abc
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, final

import jax
import jax.numpy as jnp

from gdpjax._core.shown import shown
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
from gdpjax.clipping._gradients._scaled import per_row
from gdpjax.clipping._weight_axes import Axis, arrange, axes_of_kind


class AbstractFactor(abc.ABC):
    """One example's gradient of one weight, in some form."""

    @abc.abstractmethod
    def formed(self, shape: tuple[int, ...]) -> Array:
        """Return the gradient as an array of the shape of the weight, in float32 or wider unless it is `Full`."""

    @abc.abstractmethod
    def scaled(self, scale: Array) -> "AbstractFactor":
        """Return the gradient times a number, in float32 or wider."""

    def compact(self, shape: tuple[int, ...]) -> "AbstractFactor":
        """Return the gradient in the form in which it is kept until it is clipped: by default it is formed."""
        return Full(self.formed(shape))

    def joined(self, others: Sequence["AbstractFactor"]) -> "AbstractFactor | None":
        """Return the sum of this gradient and others in the same form, or None where the sum has to be formed."""
        return None

    def leave_scan(self, is_scanned: bool) -> "AbstractFactor":
        """Return the gradient of a weight from its gradients in the iterations of a scan.

        The arrays of this factor have a leading axis of iterations.

        Args:
          is_scanned: whether each iteration uses a slice of the weight of its own. Otherwise all use the whole weight,
            and their gradients are added up.
        """
        raise NotImplementedError(f"{type(self).__name__} does not pass through a scan")  # pragma: no cover

    def row_gradients(self, shape: tuple[int, ...]) -> AbstractRowGradients:
        """Return the gradients of a batch. The arrays of this factor have a leading axis of examples."""
        raise NotImplementedError(f"{type(self).__name__} has to be made compact first")  # pragma: no cover

    def shape_of_weight(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the weight that this is a gradient of; ``shape`` where the factor does not say it.

        Raises:
          ValueError: the arrays do not fit together.
        """
        return shape

    @property
    def num_products(self) -> int:
        """The number of outer products that are added up."""
        return 1


@final
@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Full(AbstractFactor):
    """The gradient itself.

    Attributes:
      gradient: an array like the weight.
    """

    gradient: Array

    def shape_of_weight(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return self.gradient.shape

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
      values: [T, ...], the gradient of each of these rows. Where an index occurs again, the values are added up.
    """

    rows: Array
    values: Array

    def shape_of_weight(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        if self.rows.ndim != 1 or self.values.shape[:1] != self.rows.shape:
            raise ValueError(f"rows {list(self.rows.shape)} and values {list(self.values.shape)}, not [T] and [T, ...]")
        return (*shape[:1], *self.values.shape[1:])

    def formed(self, shape: tuple[int, ...]) -> Array:
        dtype = wide_dtype(self.values)
        # Added as zeros: a GPU that is to be deterministic does not drop what is out of range.
        is_row = (self.rows >= 0) & (self.rows < shape[0])
        values = jnp.where(per_row(is_row, self.values), self.values, 0).astype(dtype)
        return jnp.zeros(shape, dtype).at[jnp.where(is_row, self.rows, 0)].add(values)

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
        # The look-ups of all iterations are look-ups in one table.
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
      axes: for each axis of the weight its kind ("l", "r" or "b": see `_weight_axes`) and its place among the axes of
        that kind.
    """

    left: Array
    right: Array
    axes: tuple[Axis, ...] = dataclasses.field(metadata=dict(static=True))

    def shape_of_weight(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        blocks, left, right = (self.of_kind(kind) for kind in ("b", "l", "r"))
        first_own = 1 + len(blocks)
        num_axes = len(blocks) + len(left) + len(right)
        ranks = first_own + len(left), first_own + len(right)
        has_ranks = num_axes == len(self.axes) and ranks == (self.left.ndim, self.right.ndim)
        if not has_ranks or self.left.shape[:first_own] != self.right.shape[:first_own]:
            raise ValueError(
                f"left {list(self.left.shape)} and right {list(self.right.shape)}, not [T, *blocks, *own axes] for the "
                f"axes {self.axes}"
            )

        # Each axis of the weight is an axis of one of the factors, or of both.
        sizes = {}
        for axis, size in zip(blocks + left, self.left.shape[1:], strict=True):
            sizes[axis] = size
        for axis, size in zip(right, self.right.shape[first_own:], strict=True):
            sizes[axis] = size
        return tuple(sizes[axis] for axis in range(len(self.axes)))

    @property
    def num_products(self) -> int:
        return self.left.shape[0]

    def of_kind(self, kind: str) -> list[int]:
        """Return the axes of the weight of this kind, in the order in which the factors hold them."""
        return axes_of_kind(self.axes, kind)

    def matrices(self) -> tuple[Array, Array]:
        """Return the factors as matrices, left [K, T, d] and right [K, T, p], for K blocks of d rows and p columns."""
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
        # The norm of one outer product is the product of two norms. A sum of several can cancel, so its norm is not
        # read off the factors; it is formed, unless keeping its positions pays.
        if self.num_products == 1 or positions_pay(self.num_products, *self.sizes):
            return self
        return Full(self.formed(shape))

    @property
    def sizes(self) -> tuple[int, int]:
        """The numbers of entries, d and p, of the two factors of one outer product in one block."""
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
            # All iterations have the same weight: the positions of all of them are positions of one sum.
            left = self.left.reshape(-1, *self.left.shape[2:])
            right = self.right.reshape(-1, *self.right.shape[2:])
            return Outer(left, right, self.axes)

        # Each iteration has a block of its own, along a new first axis of the weight. The other blocks come after it.
        axes = [("b", 0)]
        for kind, position in self.axes:
            place = position + 1 if kind == "b" else position
            axes.append((kind, place))
        left = jnp.swapaxes(self.left, 0, 1)
        right = jnp.swapaxes(self.right, 0, 1)
        return Outer(left, right, tuple(axes))

    def row_gradients(self, shape: tuple[int, ...]) -> AbstractRowGradients:
        left, right = jax.vmap(Outer.matrices)(self)  # [N, K, T, d] and [N, K, T, p]
        num_positions = left.shape[2]
        if num_positions == 1:
            return OuterProducts(left[:, :, 0], right[:, :, 0], self.axes, shape)
        left = jnp.swapaxes(left, 1, 2)
        right = jnp.swapaxes(right, 1, 2)
        return PositionProducts(left, right, self.axes, shape)

    def in_order(self) -> "Outer":
        """Return the same gradient, with the axes of each factor in the order in which the weight has them."""
        # List the places in the factor of the axes of each kind, in the order of the weight.
        places: dict[str, list[int]] = {"b": [], "l": [], "r": []}
        axes = []
        for kind, position in self.axes:
            axes.append((kind, len(places[kind])))
            places[kind].append(position)

        # Transpose the factors: positions, blocks, and then each one's own axes.
        first_own = 1 + len(places["b"])
        blocks = [1 + position for position in places["b"]]
        left_axes = [first_own + position for position in places["l"]]
        right_axes = [first_own + position for position in places["r"]]
        left = jnp.transpose(self.left, (0, *blocks, *left_axes))
        right = jnp.transpose(self.right, (0, *blocks, *right_axes))
        return Outer(left, right, tuple(axes))

    def along(self, axis: int, change: Callable[[Array, int], Array]) -> "Outer":
        """Return the gradient after a change along one axis of the weight.

        Args:
          axis: the axis of the weight.
          change: (array, axis of the array) to the changed array. It is applied to each factor that has the axis.
        """
        # A factor is laid out as [T, *blocks, *its own axes].
        kind, position = self.axes[axis]
        place = 1 + position
        if kind != "b":
            place += len(self.of_kind("b"))
        left = change(self.left, place) if kind in "bl" else self.left
        right = change(self.right, place) if kind in "br" else self.right
        return Outer(left, right, self.axes)

    def reshaped(self, old: tuple[int, ...], new: tuple[int, ...]) -> "Outer | None":
        """Return the gradient of a weight before a reshape; this is its gradient after the reshape.

        Args:
          old: the shape of the weight before the reshape.
          new: its shape after the reshape.

        Returns:
          The gradient in factors, or None where the reshape joins axes of different factors.
        """
        groups = _common_groups(new, old)
        if groups is None:
            return None

        # Each group of axes is reshaped by itself, so its axes have to lie in one factor.
        ordered = self.in_order()
        axes: list[Axis] = []
        shapes: dict[str, list[int]] = {"b": [], "l": [], "r": []}
        for new_axes, old_axes in groups:
            kinds = {ordered.axes[axis][0] for axis in new_axes}
            if len(kinds) > 1:
                return None
            kind = kinds.pop() if kinds else "r"  # without axes in ``new``, those of ``old`` have length one
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
    """The gradient of a table that is multiplied by data and of which rows are looked up, as in a language model.

    Attributes:
      outer: the part of the gradient that comes from the multiplications.
      sparse: the part that comes from the look-ups.
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
        """Whether one factor has the first axis of the table, and the other factor all other axes."""
        kinds = [kind for kind, _ in self.outer.axes]
        return "b" not in kinds and kinds[0] not in kinds[1:]

    def row_gradients(self, shape: tuple[int, ...]) -> TiedTable:
        # One factor has the axis of the rows of the table, the other factor the axes of a row.
        outer = jax.vmap(Outer.in_order)(self.outer)
        first_kind, _ = outer.axes[0]
        if first_kind == "l":
            along_rows, others = outer.left, outer.right
        else:
            along_rows, others = outer.right, outer.left
        others = others.reshape(*others.shape[:2], -1)
        values = self.sparse.values.reshape(*self.sparse.values.shape[:2], -1)
        return TiedTable(along_rows, others, self.sparse.rows, values, shape)


def total_of(factors: Sequence[AbstractFactor], shape: tuple[int, ...]) -> AbstractFactor:
    """Return the sum of the gradients of a weight that is used several times."""
    first, *others = factors
    if not others:
        return first

    # Gradients in the same form stay in it.
    joined = first.joined(others)
    if joined is not None:
        return joined

    # A table may be multiplied by data and looked up too.
    products = [factor for factor in factors if isinstance(factor, Outer)]
    lookups = [factor for factor in factors if isinstance(factor, Sparse)]
    if products and lookups and len(products) + len(lookups) == len(factors):
        outer = total_of(products, shape)
        sparse = total_of(lookups, shape)
        if isinstance(outer, Outer) and isinstance(sparse, Sparse):
            return Tied(outer, sparse)

    # Other sums are formed.
    total = first.formed(shape)
    for factor in others:
        total = total + factor.formed(shape)
    return Full(total)


def _times(x: Array, scale: Array) -> Array:
    """Return x times a scale, in float32 or wider: a scale may lie outside the range of half precision."""
    x = x.astype(wide_dtype(x))
    scale = scale.astype(wide_dtype(scale)).astype(x.dtype)
    return x * scale


def _common_groups(first: tuple[int, ...], second: tuple[int, ...]) -> list[tuple[list[int], list[int]]] | None:
    """Cut two shapes into the shortest groups of consecutive axes such that groups have equal numbers of entries.

    The shapes [6, 5] and [2, 3, 5] have the groups ([0], [0, 1]) and ([1], [2]): axis 0 of the first shape was reshaped
    to axes 0 and 1 of the second.

    Returns:
      For each group its axes in the first shape and in the second, or None where there is no such cut.
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


def check_factor(factor: Any, shape: tuple[int, ...], primitive: str) -> AbstractFactor:
    """Return what a family of primitives gave as a factor.

    Raises:
      ValueError: it is no factor of a weight of this shape.
    """
    expected = f"expected the factor of {primitive} to be a Full, Sparse or Outer for a weight {list(shape)}"
    if not isinstance(factor, AbstractFactor):
        raise ValueError(f"{expected}, got {shown(factor)}")
    try:
        found = factor.shape_of_weight(shape)
    except ValueError as error:
        raise ValueError(f"{expected}, got {error}") from None
    if found != shape:
        raise ValueError(f"{expected}, got one for a weight {list(found)}: see its axes")
    return factor
