"""Convolutions in the one layout that XLA's CPU backend computes fast everywhere.

    layout = layout_of(eqn)
    y = convolve(layout, x, kernel)                       # computes the equation; JAX can differentiate it
    patches_times(layout, window, x, cotangent_of_y)      # the gradient of the kernel, by one product

On a CPU, XLA is fast at convolutions in one layout: (batch, space, channels) for the input, and (space, input, output)
for the kernel. It brings other layouts into this one, but only in the entry computation of a program. Inside a scan, a
branch or a while loop it computes them by a naive loop, 5 to 100 times slower. Every model has two such convolutions:
those by which JAX computes the gradients of the input and of the kernel.

So this module writes a convolution with explicit transposes into the fast layout and out of it, and does the same with
its derivative:

* The gradient of the input is a convolution of the dilated cotangent with the reversed kernel.
* The gradient of the kernel is one product of cotangents and patches.

A convolution of few channels, such as the first one of a network, is computed as a product of patches and kernel too,
because XLA's fast code is made for many channels.

Patches are cut one axis after the other, the last one first. Windows along the last axis make rows of pixels that lie
side by side in memory, so that cutting along the other axes copies long stretches.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from gdpjax._core import xla
from gdpjax._core.types import Array
from gdpjax.clipping._tracing._jaxprs import is_precise

MAX_WINDOW = 128
"""Largest number of kernel positions for which patches are cut."""

_FEW_CHANNELS = 4
"""Largest number of channels of a convolution that is a product with patches."""


class Layout(NamedTuple):
    """A convolution's options, and the permutations that bring its operands into the fast layout.

    Attributes:
      strides: for each axis of space, the step from the patch of one position to that of the next.
      padding: for each axis of space, how many zeros come before and after the input.
      input_dilation: for each axis of space, the distance of neighbouring entries of the input, with zeros between.
      kernel_dilation: for each axis of space, the same for neighbouring entries of the kernel.
      groups: the number of groups of channels; the outputs of a group depend on its inputs alone.
      precision: the precision that the equation asks for.
      dtype: the dtype of the output.
      to_input: the permutation of the input to [n, *space, channels].
      to_kernel: the permutation of the kernel to [*window, input, output].
      to_output: the permutation of the output to [n, *space, channels].
    """

    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    input_dilation: tuple[int, ...]
    kernel_dilation: tuple[int, ...]
    groups: int
    precision: Any
    dtype: Any
    to_input: tuple[int, ...]
    to_kernel: tuple[int, ...]
    to_output: tuple[int, ...]


def inverse(permutation: Sequence[int]) -> tuple[int, ...]:
    """Return the permutation that undoes another one."""
    return tuple(np.argsort(permutation).tolist())


def layout_of(eqn: Any) -> Layout:
    """Read the options of a ``conv_general_dilated`` equation."""
    params = eqn.params
    numbers = params["dimension_numbers"]
    input_batch, input_channels, *input_space = numbers.lhs_spec
    kernel_outputs, kernel_inputs, *window = numbers.rhs_spec
    output_batch, output_channels, *output_space = numbers.out_spec
    return Layout(
        strides=tuple(params["window_strides"]),
        padding=tuple((low, high) for low, high in params["padding"]),
        input_dilation=tuple(params["lhs_dilation"]),
        kernel_dilation=tuple(params["rhs_dilation"]),
        groups=params["feature_group_count"],
        precision=params["precision"],
        dtype=eqn.outvars[0].aval.dtype,
        to_input=(input_batch, *input_space, input_channels),
        to_kernel=(*window, kernel_inputs, kernel_outputs),
        to_output=(output_batch, *output_space, output_channels),
    )


def is_rewritten(eqn: Any) -> bool:
    """Return whether an equation is a convolution that this module computes in place of JAX."""
    if xla.platform() != "cpu":
        return False
    variables = (*eqn.invars, *eqn.outvars)
    is_empty = any(0 in v.aval.shape for v in variables)
    return all(map(is_precise, variables)) and not is_empty and eqn.params["batch_group_count"] == 1


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def convolve(layout: Layout, x: Array, kernel: Array) -> Array:
    """Return the output of a convolution, whose derivative rule is that of this module."""
    return forward(layout, x, kernel)


def _forward_rule(layout: Layout, x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return forward(layout, x, kernel), (x, kernel)


def _backward_rule(layout: Layout, saved: tuple[Array, Array], cotangent: Array) -> tuple[Array, Array]:
    x, kernel = saved
    return input_gradient(layout, x, kernel, cotangent), kernel_gradient(layout, x, kernel, cotangent)


convolve.defvjp(_forward_rule, _backward_rule)


def forward(layout: Layout, x: Array, kernel: Array) -> Array:
    """Return the output of a convolution, without a derivative rule."""
    x = jnp.transpose(x, layout.to_input)
    kernel = jnp.transpose(kernel, layout.to_kernel)
    window = kernel.shape[:-2]
    has_few_channels = layout.groups == 1 and x.shape[-1] <= _FEW_CHANNELS
    if has_few_channels and 1 < math.prod(window) <= MAX_WINDOW:
        # Multiply each patch, as one long row, by the kernel as a matrix.
        patches = cut_patches(layout, window, x)
        num_axes = x.ndim - 1
        result = jnp.einsum(
            "...k,ko->...o",
            patches.reshape(*patches.shape[:num_axes], -1),
            kernel.reshape(-1, kernel.shape[-1]),
            precision=layout.precision,
            preferred_element_type=layout.dtype,
        )
    else:
        result = _in_fast_layout(layout, x, kernel)
    return jnp.transpose(result, inverse(layout.to_output))


def _in_fast_layout(layout: Layout, x: Array, kernel: Array) -> Array:
    """Convolve x [n, *space, channels] with a kernel [*window, channels of a group, outputs]."""
    last = x.ndim - 1
    space = tuple(range(1, last))
    window = tuple(range(last - 1))
    numbers = lax.ConvDimensionNumbers((0, last, *space), (last, last - 1, *window), (0, last, *space))
    return lax.conv_general_dilated(
        x,
        kernel,
        layout.strides,
        layout.padding,
        lhs_dilation=layout.input_dilation,
        rhs_dilation=layout.kernel_dilation,
        dimension_numbers=numbers,
        feature_group_count=layout.groups,
        precision=layout.precision,
        preferred_element_type=layout.dtype,
    )


def _dilated(size: int, dilation: int) -> int:
    """Return the length of an axis after ``dilation - 1`` zeros are put between neighbouring entries."""
    return 1 + dilation * (size - 1)


def input_gradient(layout: Layout, x: Array, kernel: Array, cotangent: Array) -> Array:
    """Return the gradient of x. Only the shape and the dtype of x are used."""
    shape = tuple(x.shape[axis] for axis in layout.to_input)
    dtype = jnp.promote_types(kernel.dtype, cotangent.dtype)
    kernel = jnp.transpose(kernel, layout.to_kernel).astype(dtype)
    cotangent = jnp.transpose(cotangent, layout.to_output).astype(dtype)
    window = kernel.shape[:-2]

    # Exchange the inputs and the outputs of each group of channels, and reverse the kernel along its window.
    inputs_of_group = kernel.shape[-2]
    grouped = kernel.reshape(*window, inputs_of_group, layout.groups, -1)
    outputs_of_group = grouped.shape[-1]
    exchanged = jnp.swapaxes(grouped, -1, -3).reshape(*window, outputs_of_group, -1)
    reversed_kernel = lax.rev(exchanged, tuple(range(len(window))))

    # Pad the cotangent so that every input meets all the outputs that it went into.
    padding = []
    for axis, (low, _) in enumerate(layout.padding):
        inputs = _dilated(shape[1 + axis], layout.input_dilation[axis])
        reach = _dilated(window[axis], layout.kernel_dilation[axis])
        outputs = _dilated(cotangent.shape[1 + axis], layout.strides[axis])
        before = reach - low - 1
        padding.append((before, inputs + reach - 1 - outputs - before))
    exchanged_strides = {"strides": layout.input_dilation, "input_dilation": layout.strides}
    backward = layout._replace(padding=tuple(padding), dtype=dtype, **exchanged_strides)
    gradient = _in_fast_layout(backward, cotangent, reversed_kernel)
    return jnp.transpose(gradient, inverse(layout.to_input)).astype(x.dtype)


def kernel_gradient(layout: Layout, x: Array, kernel: Array, cotangent: Array) -> Array:
    """Return the gradient of the kernel. Only the shape and the dtype of the kernel are used."""
    window = tuple(kernel.shape[axis] for axis in layout.to_kernel[:-2])
    if math.prod(window) > MAX_WINDOW:
        # The patches would take too much memory.
        transpose = jax.linear_transpose(lambda k: forward(layout, x, k), kernel)
        (gradient,) = transpose(cotangent)
        return gradient
    return patches_times(layout, window, x, cotangent).astype(kernel.dtype)


def patches_times(layout: Layout, window: tuple[int, ...], x: Array, cotangent: Array) -> Array:
    """Return the gradient of a kernel: the sum over positions of patch (x) cotangent.

    Args:
      layout: the convolution.
      window: the lengths of the kernel along its axes of space.
      x: the input, in the equation's own layout.
      cotangent: the cotangent of the output, in the equation's own layout.

    Returns:
      The gradient in the kernel's own layout, in float32 or wider.
    """
    x = jnp.transpose(x, layout.to_input)
    cotangent = jnp.transpose(cotangent, layout.to_output)
    dtype = jnp.promote_types(jnp.promote_types(x.dtype, cotangent.dtype), jnp.float32)

    # Positions come last in the cotangents and first in the patches: no other order is as fast.
    patches = cut_patches(layout, window, x)
    num_outputs = cotangent.shape[-1]
    by_output = jnp.swapaxes(cotangent.reshape(-1, num_outputs), 0, 1)
    num_positions = by_output.shape[1]

    # In the einsums t is the position, o the output, g the group, w the place in the window, i the input channel, and
    # k stands for w and i together: a TPU moves a quarter less where there are no groups.
    product = functools.partial(jnp.einsum, precision=layout.precision, preferred_element_type=dtype)
    groups = layout.groups
    channels = x.shape[-1] // groups
    if groups == 1:
        gradient = product("ot,tk->ok", by_output, patches.reshape(num_positions, -1))
    else:
        by_window = patches.reshape(num_positions, math.prod(window), groups, channels)
        by_group = by_output.reshape(groups, num_outputs // groups, num_positions)
        gradient = product("got,twgi->gowi", by_group, by_window)

    # From [outputs, *window, channels] to [*window, channels, outputs], and to the kernel's own layout.
    gradient = gradient.reshape(num_outputs, *window, channels)
    return jnp.transpose(jnp.moveaxis(gradient, 0, -1), inverse(layout.to_kernel))


def cut_patches(layout: Layout, window: tuple[int, ...], x: Array) -> Array:
    """Return the patches [n, *out, *window, channels] of x [n, *space, channels], cut axis by axis from the last."""
    borders = []
    for (low, high), dilation in zip(layout.padding, layout.input_dilation, strict=True):
        borders.append((low, high, dilation - 1))
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *borders, (0, 0, 0)])
    for axis in reversed(range(len(window))):
        place = 1 + axis
        step = layout.strides[axis]
        dilation = layout.kernel_dilation[axis]
        reach = dilation * (window[axis] - 1)
        num_outputs = (x.shape[place] - 1 - reach) // step + 1

        # For each entry of the window, take the entries of x that it meets at all positions.
        cut = []
        for offset in range(window[axis]):
            start = offset * dilation
            stop = start + (num_outputs - 1) * step + 1
            cut.append(lax.slice_in_dim(x, start, stop, step, axis=place))
        # The new axis of the window goes before those of the axes that were cut already.
        x = jnp.stack(cut, axis=1 + len(window))
    return x


def isolated_convolution(eqn: Any, x: Array, kernel: Array) -> Array:
    """Return the output of a ``conv_general_dilated`` equation, for one example, by a product of patches and kernel.

    Where both operands differ from row to row, `jax.vmap` makes one convolution of them, with the rows as groups of
    channels. XLA may compute the groups as one dense convolution, in which the other groups are multiplied by zeros: so
    it does on a CPU for several forms. A row that overflows then reaches all others, since zero times infinity is NaN.
    They are dropped with it, and one row changes what every other row adds to the sum. A product with the rows as a
    batch axis multiplies nothing of one row by anything of another.
    """
    layout = layout_of(eqn)
    x = jnp.transpose(x, layout.to_input)
    kernel = jnp.transpose(kernel, layout.to_kernel)
    batch_groups = eqn.params["batch_group_count"]
    *window, inputs, outputs = kernel.shape
    patches = cut_patches(layout, tuple(window), x)

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
    return jnp.transpose(result, inverse(layout.to_output))
