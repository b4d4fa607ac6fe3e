"""Convolutions: the gradient of a kernel is one product of patches and cotangents, for each example."""

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
        window = _window(eqn)
        return (
            operand == 1 and eqn.params["batch_group_count"] == 1 and math.prod(window) <= _fast_convolution.MAX_WINDOW
        )

    def is_formed(self, eqn: Any, operand: int) -> bool:
        return _num_positions(eqn) > 1 or eqn.params["feature_group_count"] > 1

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> AbstractFactor:
        layout, window = _fast_convolution.layout_of(eqn), _window(eqn)
        if self.is_formed(eqn, operand):
            return Full(_fast_convolution.patches_times(layout, window, x, s))

        # One position: an outer product, as in a dense layer.
        numbers = eqn.params["dimension_numbers"]
        axes: list[Axis] = [("r", 0)] * eqn.invars[operand].aval.ndim
        axes[numbers.rhs_spec[1]] = ("l", len(window))
        for position, axis in enumerate(numbers.rhs_spec[2:]):
            axes[axis] = ("l", position)
        patches = _fast_convolution.patches_of(layout, window, x)
        return Outer(patches.reshape(1, *window, -1), s.reshape(1, -1), tuple(axes))

    def working_bytes(self, eqn: Any, operand: int) -> int:
        numbers, out = eqn.params["dimension_numbers"], eqn.outvars[0].aval
        channels = eqn.invars[0].aval.shape[numbers.lhs_spec[1]]
        bytes_of_position = num_bytes(out) // max(math.prod(out.shape), 1) * channels * math.prod(_window(eqn))
        return _num_positions(eqn) * bytes_of_position

    def is_rewritten(self, eqn: Any) -> bool:
        return _fast_convolution.is_rewritten(eqn)

    def evaluate(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        if not self.is_rewritten(eqn):
            return super().evaluate(eqn, values)
        x, kernel = values
        return [_fast_convolution.forward(_fast_convolution.layout_of(eqn), x, kernel)]

    def differentiable(self, eqn: Any, values: Sequence[Any]) -> list[Any]:
        x, kernel = values
        return [_fast_convolution.convolve(eqn, x, kernel)]

    def data_gradient(self, eqn: Any, operand: int, values: Sequence[Any], s: Array) -> Array:
        if not self.is_rewritten(eqn):
            return super().data_gradient(eqn, operand, values, s)
        x, kernel = values
        return _fast_convolution.input_gradient(_fast_convolution.layout_of(eqn), x, kernel, s)


def _window(eqn: Any) -> tuple[int, ...]:
    return tuple(eqn.invars[1].aval.shape[axis] for axis in eqn.params["dimension_numbers"].rhs_spec[2:])


def _num_positions(eqn: Any) -> int:
    shape, numbers = eqn.outvars[0].aval.shape, eqn.params["dimension_numbers"]
    return math.prod(shape) // max(shape[numbers.out_spec[1]], 1)
