"""Convolutions: the gradient of a kernel is one product of patches and cotangents, for each example.

Each position of the output has a patch of the input, which is what the kernel sees there. The gradient is the sum over
positions of outer products, patch (x) cotangent, and is formed. Where the output has only one position, the gradient is
one outer product, and stays in factors.
"""

import math
from collections.abc import Sequence
from typing import Any, final

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Full, Outer
from gdpjax.clipping._tracing.primitives import _fast_convolution
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, num_bytes
from gdpjax.clipping._weight_axes import Axis


@final
class Convolution(AbstractPrimitive):
    """``conv_general_dilated``, with any strides, padding, dilations, groups and layout."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        is_kernel = operand == 1
        if not is_kernel or eqn.params["batch_group_count"] != 1:
            return False
        return math.prod(_window(eqn)) <= _fast_convolution.MAX_WINDOW

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> AbstractFactor:
        layout = _fast_convolution.layout_of(eqn)
        window = _window(eqn)
        has_groups = eqn.params["feature_group_count"] > 1
        if _num_positions(eqn) > 1 or has_groups:
            return Full(_fast_convolution.patches_times(layout, window, x, s))

        # At one position the gradient is an outer product of the patch and s, as in a dense layer.
        patch = _fast_convolution.patches_of(layout, window, x)
        left = patch.reshape(1, *window, -1)
        right = s.reshape(1, -1)

        # The patch has the kernel's axes of space and then its inputs; s has its outputs.
        _, kernel_inputs, *kernel_space = eqn.params["dimension_numbers"].rhs_spec
        axes: list[Axis] = [("r", 0)] * eqn.invars[operand].aval.ndim
        for position, axis in enumerate(kernel_space):
            axes[axis] = ("l", position)
        axes[kernel_inputs] = ("l", len(window))
        return Outer(left, right, tuple(axes))

    def working_bytes(self, eqn: Any, operand: int) -> int:
        # The patches: all channels of a window, for each position.
        out = eqn.outvars[0].aval
        bytes_per_entry = num_bytes(out) // max(math.prod(out.shape), 1)
        _, channel_axis, *_ = eqn.params["dimension_numbers"].lhs_spec
        num_channels = eqn.invars[0].aval.shape[channel_axis]
        entries_per_patch = num_channels * math.prod(_window(eqn))
        return _num_positions(eqn) * bytes_per_entry * entries_per_patch

    def is_rewritten(self, eqn: Any) -> bool:
        return _fast_convolution.is_rewritten(eqn)

    def evaluate(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        if not self.is_rewritten(eqn):
            return super().evaluate(eqn, values)
        x, kernel = values
        layout = _fast_convolution.layout_of(eqn)
        return [_fast_convolution.forward(layout, x, kernel)]

    def differentiable(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
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


def _num_positions(eqn: Any) -> int:
    """Return the number of positions of the output: all of its entries over its channels."""
    out = eqn.outvars[0].aval.shape
    _, channel_axis, *_ = eqn.params["dimension_numbers"].out_spec
    num_channels = out[channel_axis]
    return math.prod(out) // max(num_channels, 1)
