"""Convolutions: the gradient of a kernel is one product of patches and cotangents, for each example.

Each position of the output has a patch of the input, which is what the kernel sees there. The gradient is the sum over
positions of outer products, patch (x) cotangent, and is formed.
"""

import math
from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._forms import Full
from gdpjax.clipping._tracing.primitives import _fast_convolution
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive


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
        x, kernel = values
        return [_fast_convolution.convolve(eqn, x, kernel)]

    def data_gradient(self, eqn: Any, operand: int, values: Sequence[Any], s: Array) -> Array:
        if not self.is_rewritten(eqn):
            return super().data_gradient(eqn, operand, values, s)
        x, kernel = values
        layout = _fast_convolution.layout_of(eqn)
        return _fast_convolution.input_gradient(layout, x, kernel, s)


def _window(eqn: Any) -> tuple[int, ...]:
    """Return the lengths of the kernel along its axes of space."""
    kernel = eqn.invars[1].aval.shape
    _, _, *space = eqn.params["dimension_numbers"].rhs_spec
    return tuple(kernel[axis] for axis in space)


def isolated_convolution(eqn: Any, x: Array, kernel: Array) -> Array:
    """Return the output of a ``conv_general_dilated`` equation, for one example, by a product of patches and kernel.

    Where both operands differ from row to row, `jax.vmap` makes one convolution of them, with the rows as groups of
    channels. XLA may compute the groups as one dense convolution, in which the other groups are multiplied by zeros: so
    it does on a CPU for several forms. A row that overflows then reaches all others, since zero times infinity is NaN.
    They are dropped with it, and one row changes what every other row adds to the sum. A product with the rows as a
    batch axis multiplies nothing of one row by anything of another.
    """
    layout = _fast_convolution.layout_of(eqn)
    batch_groups = eqn.params["batch_group_count"]
    x = jnp.transpose(x, layout.to_input)
    kernel = jnp.transpose(kernel, layout.to_kernel)
    *window, inputs, outputs = kernel.shape
    patches = _fast_convolution.cut_patches(layout, tuple(window), x)

    # As [batch groups, rows, positions, entries of the window, groups, channels of a group].
    num_rows = x.shape[0] // batch_groups
    space = patches.shape[1 : 1 + len(window)]
    window_size = math.prod(window)
    shape = batch_groups, num_rows, math.prod(space), window_size, layout.groups, inputs
    patches = patches.reshape(shape)

    # The outputs are divided among the groups, of the channels or of the batch: one of the two numbers is 1.
    of_group = outputs // (layout.groups * batch_groups)
    grouped = kernel.reshape(window_size, inputs, batch_groups, layout.groups, of_group)
    result = jnp.einsum(
        "bnpwgi,wibgo->npbgo",
        patches,
        grouped,
        precision=layout.precision,
        preferred_element_type=layout.dtype,
    )
    result = result.reshape(num_rows, *space, outputs)
    return jnp.transpose(result, _fast_convolution.inverse(layout.to_output))
