"""Matrix products and look-ups, where most weights meet data, and the linear maps that a weight may pass before.

*Products.* For y = x W the gradient of W is the outer product of x and s, the cotangent of y. A ``dot_general`` does
the same with any number of axes. Each axis of the weight is of one of two kinds:

* It is contracted with the data. Then the left factor, x, has it.
* It is free: only the weight and the output have it. Then the right factor, s, has it.

The free axes of the data are positions. Each position has one outer product, and the gradient is their sum. A weight
that has an axis for each of several products, a batch axis, is left to JAX.

In a convolution each position of the output has a patch of the input, which is what the kernel sees there. The gradient
of the kernel is the sum over positions of patch (x) cotangent, and is formed.

*Look-ups.* The gradient of a table is `Sparse`: a row that was looked up gets the cotangent of the output that it
became.

*Maps.* A cast leaves a gradient as it is, and a transpose exchanges the axes of the factors of an outer product.
Through a concatenation a gradient goes back formed. A parameter that goes through any other equation is left to JAX.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._forms import AbstractFactor, Full, Outer, Sparse
from gdpjax.clipping._tracing.primitives import _fast_convolution
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output

# Products.


def _axes_of(eqn: Any, operand: int, ndim: int) -> tuple[list[int], list[int]]:
    """Return the axes of an operand that are summed over, in the order of the other operand's, and the others."""
    contracted = eqn.params["dimension_numbers"][0][operand]
    free = [axis for axis in range(ndim) if axis not in contracted]
    return list(contracted), free


@final
class Matmul(AbstractPrimitive):
    """``dot_general``, with any contracted axes of the weight."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        data = eqn.invars[1 - operand]
        _, batch_axes = eqn.params["dimension_numbers"]
        return jnp.issubdtype(data.aval.dtype, jnp.floating) and not batch_axes[operand]

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Outer:
        contracted, free = _axes_of(eqn, operand, eqn.invars[operand].aval.ndim)
        contracted_of_x, positions = _axes_of(eqn, 1 - operand, x.ndim)
        num_positions = math.prod(x.shape[axis] for axis in positions)

        # The output has the free axes of the first operand, and then those of the second one.
        left = jnp.transpose(x, (*positions, *contracted_of_x))
        right = jnp.moveaxis(s, range(len(free)), range(-len(free), 0)) if operand == 0 else s
        left = left.reshape(num_positions, *left.shape[len(positions) :])
        right = right.reshape(num_positions, *right.shape[len(positions) :])
        return Outer(left, right, left_axes=tuple(contracted), right_axes=tuple(free))


@final
class Convolution(AbstractPrimitive):
    """``conv_general_dilated``, with any strides, padding, dilations, groups and layout."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        is_kernel = operand == 1
        if not is_kernel or eqn.params["batch_group_count"] != 1:
            return False
        return math.prod(_window(eqn)) <= _fast_convolution.MAX_WINDOW

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Full:
        return Full(_fast_convolution.patches_times(_fast_convolution.layout_of(eqn), _window(eqn), x, s))

    def working_bytes(self, eqn: Any, operand: int) -> int:
        # The patches: all channels of a window, for each position, which is each entry of the output in one channel.
        numbers = eqn.params["dimension_numbers"]
        out = eqn.outvars[0].aval
        num_positions = out.size // max(out.shape[numbers.out_spec[1]], 1)
        num_channels = eqn.invars[0].aval.shape[numbers.lhs_spec[1]]
        return num_positions * num_channels * math.prod(_window(eqn)) * out.dtype.itemsize

    def is_rewritten(self, eqn: Any) -> bool:
        return _fast_convolution.is_rewritten(eqn)

    def evaluate(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        if not self.is_rewritten(eqn):
            return super().evaluate(eqn, values)
        return [_fast_convolution.forward(_fast_convolution.layout_of(eqn), *values)]

    def differentiable(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        return [_fast_convolution.convolve(_fast_convolution.layout_of(eqn), *values)]

    def data_gradient(self, eqn: Any, operand: int, values: Sequence[Any], s: Array) -> Array:
        if not self.is_rewritten(eqn):
            return super().data_gradient(eqn, operand, values, s)
        x, kernel = values
        return _fast_convolution.input_gradient(_fast_convolution.layout_of(eqn), x, kernel, s)


def _window(eqn: Any) -> tuple[int, ...]:
    """Return the lengths of the kernel along its axes of space."""
    kernel = eqn.invars[1].aval.shape
    _, _, *space = eqn.params["dimension_numbers"].rhs_spec
    return tuple(kernel[axis] for axis in space)


# Look-ups.


@final
class Gather(AbstractPrimitive):
    """``gather`` of whole rows of the first axis."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        numbers = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        if operand != 0 or not shape or numbers.operand_batching_dims:
            return False
        # Each index names a place along the first axis, and takes all entries along the others.
        takes_first_axis = numbers.collapsed_slice_dims == (0,) and numbers.start_index_map == (0,)
        takes_whole_rows = tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])
        return takes_first_axis and takes_whole_rows

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
        shape = eqn.invars[operand].aval.shape
        # In s, the axes of the rows are the offset_dims. The other axes are those of the indices.
        values = _axes_last(s, eqn.params["dimension_numbers"].offset_dims)
        return _table_rows(x, values, eqn.params["mode"], shape)


@final
class DynamicSlice(AbstractPrimitive):
    """``dynamic_slice`` of one row of the first axis."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        shape = eqn.invars[0].aval.shape
        if operand != 0 or not shape:
            return False
        return tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
        # A slice that would pass the end of the table starts earlier, so the index counts as the last row.
        shape = eqn.invars[operand].aval.shape
        return _table_rows(x, s, lax.GatherScatterMode.CLIP, shape)


def _axes_last(values: Array, last: Sequence[int]) -> Array:
    """Return the same array with these axes last, in this order."""
    others = [axis for axis in range(values.ndim) if axis not in last]
    return jnp.transpose(values, (*others, *last))


def _table_rows(index: Array, values: Array, mode: Any, shape: tuple[int, ...]) -> Sparse:
    """Return the gradient of a table of this shape.

    Args:
      index: which rows of the table, in any shape.
      values: the gradient of each of these rows, [*shape of index, *shape of a row].
      mode: what happens to an index out of range. With CLIP it counts as the nearest row, otherwise it is dropped.
      shape: the shape of the table.
    """
    num_rows = shape[0]
    values = values.reshape(-1, *shape[1:])
    index = index.reshape(-1)
    if mode == lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, num_rows - 1)
    # Here a negative index is out of range. Later `.at` would count it from the end, so move it past the end.
    index = jnp.where(index < 0, num_rows, index)
    return Sparse(index, values)


# Linear maps.


@final
class Cast(AbstractPrimitive):
    """Changes of the dtype or of the rounding, and copies."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return operand == 0 and is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int) -> AbstractFactor:
        return factor


@final
class Transposition(AbstractPrimitive):
    """``transpose``."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int) -> AbstractFactor:
        if not isinstance(factor, Outer):
            return super().pull_back(factor, eqn, operand)
        # Axis i of the output was axis permutation[i] of the operand.
        permutation = eqn.params["permutation"]
        left_axes = tuple(permutation[axis] for axis in factor.left_axes)
        right_axes = tuple(permutation[axis] for axis in factor.right_axes)
        return Outer(factor.left, factor.right, left_axes, right_axes)


@final
class Concatenation(AbstractPrimitive):
    """``concatenate``, as of the kernels of the gates of an LSTM."""

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)
