"""Matrix products: the layers of most models, and the product of two parameters (merged LoRA, W + A B).

For y = x W the gradient of W is the outer product of x and s, the cotangent of y. A ``dot_general`` does the same with
any number of axes. Each axis of the weight is of one of three kinds:

* It is contracted with the data. Then the left factor, x, has it.
* It is a batch axis of the product, which the data and the output have too. Then both factors have it: it is an axis of
  blocks.
* It is free: only the weight and the output have it. Then the right factor, s, has it.

The free axes of the data are positions. Each position has one outer product, and the gradient is their sum.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Outer
from gdpjax.clipping._tracing._jaxprs import is_literal, shape_of
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output
from gdpjax.clipping._weight_axes import Axis


class _OperandAxes(NamedTuple):
    """The axes of one operand of a product.

    Attributes:
      contracted: the axes that are summed over; the k-th meets the k-th of the other operand.
      blocks: the batch axes, which both operands and the output have.
      free: the axes that only this operand and the output have.
    """

    contracted: tuple[int, ...]
    blocks: tuple[int, ...]
    free: list[int]


def _operand_axes(eqn: Any, operand: int, ndim: int) -> _OperandAxes:
    """Return the axes of an operand that has ``ndim`` of them."""
    contracted, blocks = eqn.params["dimension_numbers"]
    used = {*contracted[operand], *blocks[operand]}
    free = [axis for axis in range(ndim) if axis not in used]
    return _OperandAxes(contracted[operand], blocks[operand], free)


@final
class Matmul(AbstractPrimitive):
    """``dot_general``, with any contracted and batched axes."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        data = eqn.invars[1 - operand]
        return jnp.issubdtype(data.aval.dtype, jnp.floating)

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Outer:
        ndim = eqn.invars[operand].aval.ndim
        weight = _operand_axes(eqn, operand, ndim)
        data = _operand_axes(eqn, 1 - operand, x.ndim)
        num_blocks = len(weight.blocks)
        num_weight = len(weight.free)
        num_data = len(data.free)

        # The axes of s, the output: the blocks, then the free axes of the first operand, then those of the second.
        if operand == 0:
            weight_start = num_blocks
            data_start = num_blocks + num_weight
        else:
            data_start = num_blocks
            weight_start = num_blocks + num_data
        blocks_of_s = range(num_blocks)
        data_of_s = range(data_start, data_start + num_data)
        weight_of_s = range(weight_start, weight_start + num_weight)

        # Bring both factors into the order [*positions, *blocks, *axes of the weight].
        left = jnp.transpose(x, (*data.free, *data.blocks, *data.contracted))
        right = jnp.transpose(s, (*data_of_s, *blocks_of_s, *weight_of_s))

        # Make one axis of the positions, which are the free axes of the data.
        num_positions = math.prod(x.shape[axis] for axis in data.free)
        left = left.reshape(num_positions, *left.shape[num_data:])
        right = right.reshape(num_positions, *right.shape[num_data:])

        # Note for each axis of the weight which factor has it, and where.
        axes: list[Axis] = [("r", 0)] * ndim
        for position, axis in enumerate(weight.blocks):
            axes[axis] = ("b", position)
        for position, axis in enumerate(weight.contracted):
            axes[axis] = ("l", position)
        for position, axis in enumerate(weight.free):
            axes[axis] = ("r", position)
        return Outer(left, right, tuple(axes))

    def data_gradient(self, eqn: Any, operand: int, values: Sequence[Any], s: Array) -> Array:
        # The product is linear in the data, so its transpose is enough: the product is not evaluated again.
        data = 1 - operand

        def output_of(x: Array) -> Array:
            inputs = list(values)
            inputs[data] = x
            (product,) = self.evaluate(eqn, inputs)
            return product

        transpose = jax.linear_transpose(output_of, shape_of(eqn.invars[data]))
        (gradient,) = transpose(s)
        return gradient

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def values_needed(self, eqn: Any, operand: int) -> list[Any]:
        return [eqn.invars[1 - operand]]

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        assert multiplier is not None  # the value of the other operand
        if isinstance(factor, Outer):
            pulled_back = _through_product(factor, eqn, operand, multiplier)
            if pulled_back is not None:
                return pulled_back
        return super().pull_back(factor, eqn, operand, multiplier)

    def multiplied(self, eqn: Any, made_by: dict[Any, Any]) -> list[Any] | None:
        if any(is_literal(atom) for atom in eqn.invars):
            return None
        return list(eqn.invars)

    def product(self, eqn: Any, first: Array, second: Array) -> Outer:
        # Here the output is the gradient, and what is contracted are the positions.
        left_axes = _operand_axes(eqn, 0, first.ndim)
        right_axes = _operand_axes(eqn, 1, second.ndim)
        left = _positions_first(first, left_axes)
        right = _positions_first(second, right_axes)

        # The gradient has the blocks first, then the free axes of the first operand, then those of the second.
        axes: list[Axis] = []
        for position in range(len(left_axes.blocks)):
            axes.append(("b", position))
        for position in range(len(left_axes.free)):
            axes.append(("l", position))
        for position in range(len(right_axes.free)):
            axes.append(("r", position))
        return Outer(left, right, tuple(axes))


def _positions_first(x: Array, axes: _OperandAxes) -> Array:
    """Return an operand as [T, *blocks, *free], with the contracted axes as the T positions."""
    moved = jnp.transpose(x, (*axes.contracted, *axes.blocks, *axes.free))
    num_contracted = len(axes.contracted)
    num_positions = math.prod(moved.shape[:num_contracted])
    return moved.reshape(num_positions, *moved.shape[num_contracted:])


def _through_product(outer: Outer, eqn: Any, operand: int, other: Array) -> Outer | None:
    """Return the gradient of A, given the gradient of the product W = A B.

    The gradient of A is (the gradient of W) B^T. Where the gradient of W is left (x) right, and right has the columns
    of W, that is left (x) (right B^T). In general one factor has to hold all free axes of B, and the other one all free
    axes of A.

    Args:
      outer: the gradient of W.
      eqn: the product.
      operand: which of its operands is A.
      other: the value of B.

    Returns:
      The gradient of A, or None where it has to be formed.
    """
    ndim = len(eqn.invars[operand].aval.shape)
    a = _operand_axes(eqn, operand, ndim)
    b = _operand_axes(eqn, 1 - operand, jnp.ndim(other))
    if a.blocks or outer.of_kind("b"):
        return None

    # The axes of W: the free axes of the first operand come before those of the second.
    num_axes = len(a.free) + len(b.free)
    if operand == 0:
        a_in_w = range(len(a.free))
        b_in_w = range(len(a.free), num_axes)
    else:
        b_in_w = range(len(b.free))
        a_in_w = range(len(b.free), num_axes)

    # Find the factor that has the free axes of B.
    kinds_of_a = {outer.axes[axis][0] for axis in a_in_w}
    kinds_of_b = {outer.axes[axis][0] for axis in b_in_w}
    if len(kinds_of_b) != 1 or kinds_of_a & kinds_of_b:
        return None
    (kind,) = kinds_of_b

    # Contract that factor with B. In place of the free axes of B it then has the contracted ones, in their order in B.
    factor = outer.left if kind == "l" else outer.right
    places = [1 + outer.axes[axis][1] for axis in b_in_w]
    contracted = jnp.tensordot(factor, other, axes=(places, b.free))
    remaining = sorted(b.contracted)

    # The free axes of A are where they were in W. Those that met B are in the factor that was contracted.
    axes: list[Axis] = [("r", 0)] * ndim
    for axis, axis_of_w in zip(a.free, a_in_w, strict=True):
        axes[axis] = outer.axes[axis_of_w]
    for axis, axis_of_b in zip(a.contracted, b.contracted, strict=True):
        axes[axis] = (kind, remaining.index(axis_of_b))

    if kind == "l":
        return Outer(contracted, outer.right, tuple(axes))
    return Outer(outer.left, contracted, tuple(axes))
