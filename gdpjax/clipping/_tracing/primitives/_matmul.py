"""Matrix products: the layers of most models.

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
from gdpjax.clipping._forms import Axis, Outer
from gdpjax.clipping._tracing._jaxprs import shape_of
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive


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
