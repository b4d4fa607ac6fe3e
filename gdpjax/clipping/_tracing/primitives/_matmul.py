"""Matrix products: the layers of most models, and the product of two parameters (merged LoRA, W + A B).

For y = x W the gradient of W is the outer product of x and the cotangent s of y. A ``dot_general`` says this for any
number of axes. Each axis of the weight is one of three kinds:

* contracted with the data: it lies in the left factor, x;
* a block, which the data has too, as the groups of a batched product: both factors have it;
* free: it lies in the right factor, s.

The free axes of the data are positions. One outer product for each position is added up.
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
      contracted: the axes that are summed over, in the order of the other operand's.
      blocks: the axes that both operands and the output have.
      free: the axes that only this operand and the output have.
    """

    contracted: tuple[int, ...]
    blocks: tuple[int, ...]
    free: list[int]


def _operand_axes(eqn: Any, operand: int, ndim: int) -> _OperandAxes:
    """Return the axes of an operand, which has ``ndim``."""
    contracted, blocks = eqn.params["dimension_numbers"]
    used = {*contracted[operand], *blocks[operand]}
    free = [axis for axis in range(ndim) if axis not in used]
    return _OperandAxes(contracted[operand], blocks[operand], free)


@final
class Matmul(AbstractPrimitive):
    """``dot_general``, with any contracted and batched axes."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        return jnp.issubdtype(eqn.invars[1 - operand].aval.dtype, jnp.floating)

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Outer:
        ndim = eqn.invars[operand].aval.ndim
        weight = _operand_axes(eqn, operand, ndim)
        data = _operand_axes(eqn, 1 - operand, x.ndim)
        num_blocks = len(weight.blocks)
        num_weight = len(weight.free)
        num_data = len(data.free)

        # The output has the blocks first, then the free axes of the first operand, then those of the second.
        if operand == 0:
            weight_start = num_blocks
            data_start = num_blocks + num_weight
        else:
            data_start = num_blocks
            weight_start = num_blocks + num_data
        blocks_of_s = range(num_blocks)
        data_of_s = range(data_start, data_start + num_data)
        weight_of_s = range(weight_start, weight_start + num_weight)

        # Both factors as [*positions, *blocks, *their own axes], and the positions as one axis.
        left = jnp.transpose(x, (*data.free, *data.blocks, *data.contracted))
        right = jnp.transpose(s, (*data_of_s, *blocks_of_s, *weight_of_s))
        num_positions = math.prod(x.shape[axis] for axis in data.free)
        left = left.reshape(num_positions, *left.shape[num_data:])
        right = right.reshape(num_positions, *right.shape[num_data:])

        axes: list[Axis] = [("r", 0)] * ndim
        for kind, group in (("b", weight.blocks), ("l", weight.contracted), ("r", weight.free)):
            for position, axis in enumerate(group):
                axes[axis] = (kind, position)
        return Outer(left, right, tuple(axes))

    def data_gradient(self, eqn: Any, operand: int, values: Sequence[Any], s: Array) -> Array:
        # The product is linear in the data, so that nothing has to be evaluated again.
        def output(x: Array) -> Array:
            operands = list(values)
            operands[1 - operand] = x
            (product,) = self.evaluate(eqn, operands)
            return product

        transpose = jax.linear_transpose(output, shape_of(eqn.invars[1 - operand]))
        (gradient,) = transpose(s)
        return gradient

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def values_needed(self, eqn: Any, operand: int) -> list[Any]:
        return [eqn.invars[1 - operand]]

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        assert multiplier is not None
        if isinstance(factor, Outer):
            moved = _through_product(factor, eqn, operand, multiplier)
            if moved is not None:
                return moved
        return super().pull_back(factor, eqn, operand, multiplier)

    def multiplied(self, eqn: Any, made_by: dict[Any, Any]) -> list[Any] | None:
        if any(is_literal(atom) for atom in eqn.invars):
            return None
        return list(eqn.invars)

    def product(self, eqn: Any, first: Array, second: Array) -> Outer:
        # The gradient has the blocks first, then the free axes of the first operand, then those of the second.
        _, (blocks, _) = eqn.params["dimension_numbers"]
        axes: list[Axis] = [("b", position) for position in range(len(blocks))]
        factors = []
        for operand, kind, x in ((0, "l", first), (1, "r", second)):
            own = _operand_axes(eqn, operand, x.ndim)
            moved = jnp.transpose(x, (*own.contracted, *own.blocks, *own.free))
            num_contracted = len(own.contracted)
            num_positions = math.prod(moved.shape[:num_contracted])
            factors.append(moved.reshape(num_positions, *moved.shape[num_contracted:]))
            axes += [(kind, position) for position in range(len(own.free))]
        left, right = factors
        return Outer(left, right, tuple(axes))


def _through_product(outer: Outer, eqn: Any, operand: int, other: Array) -> Outer | None:
    """Return the gradient of A from that of W = A B: left (x) (right B^T).

    The free axes of B, which are axes of W, must lie in one factor, and those of A in the other one.

    Args:
      outer: the gradient of W.
      eqn: the product.
      operand: which operand A is.
      other: the value of B.

    Returns:
      The gradient of A, or None where it has to be formed.
    """
    ndim = len(eqn.invars[operand].aval.shape)
    a = _operand_axes(eqn, operand, ndim)
    b = _operand_axes(eqn, 1 - operand, jnp.ndim(other))
    if a.blocks or outer.of_kind("b"):
        return None

    # W has the free axes of its first operand before those of the second.
    num_axes = len(a.free) + len(b.free)
    if operand == 0:
        a_in_w = range(len(a.free))
        b_in_w = range(len(a.free), num_axes)
    else:
        b_in_w = range(len(b.free))
        a_in_w = range(len(b.free), num_axes)
    kinds_of_a = {outer.axes[axis][0] for axis in a_in_w}
    kinds_of_b = {outer.axes[axis][0] for axis in b_in_w}
    if len(kinds_of_b) != 1 or kinds_of_a & kinds_of_b:
        return None
    (kind,) = kinds_of_b

    # Contract that factor with B; what remains are the contracted axes of B, in order.
    factor = outer.left if kind == "l" else outer.right
    places = [1 + outer.axes[axis][1] for axis in b_in_w]
    contracted = jnp.tensordot(factor, other, axes=(places, b.free))
    remaining = sorted(b.contracted)

    axes: list[Axis] = [("r", 0)] * ndim
    for axis, axis_of_w in zip(a.free, a_in_w, strict=True):
        axes[axis] = outer.axes[axis_of_w]
    for axis, axis_of_b in zip(a.contracted, b.contracted, strict=True):
        axes[axis] = (kind, remaining.index(axis_of_b))

    if kind == "l":
        return Outer(contracted, outer.right, tuple(axes))
    return Outer(outer.left, contracted, tuple(axes))
