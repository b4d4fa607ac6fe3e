"""A convolution as a product of patches and kernel, for which `jax.vmap` keeps the rows of a batch apart.

    y = isolated_convolution(eqn, x, kernel)     # computes the equation, for one example

Where both operands differ from row to row, `jax.vmap` makes one convolution of them, with the rows as groups of
channels. XLA may compute the groups as one dense convolution, in which the other groups are multiplied by zeros: so it
does on a CPU for several forms. A row that overflows then reaches all others, since zero times infinity is NaN. They
are dropped with it, and one row changes what every other row adds to the sum.

A product with the rows as a batch axis multiplies nothing of one row by anything of another.
"""

import math
from typing import Any

import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._tracing.primitives._fast_convolution import Layout, layout_of


def isolated_convolution(eqn: Any, x: Array, kernel: Array) -> Array:
    """Return the output of a ``conv_general_dilated`` equation."""
    layout = layout_of(eqn)
    batch_groups = eqn.params["batch_group_count"]
    x = jnp.transpose(x, layout.to_input)
    kernel = jnp.transpose(kernel, layout.to_kernel)
    *window, inputs, outputs = kernel.shape
    patches = _patches(layout, tuple(window), x)

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
    return jnp.transpose(result, layout.from_output)


def _patches(layout: Layout, window: tuple[int, ...], x: Array) -> Array:
    """Return the patches [n, *out, *window, channels] of x [n, *space, channels]."""
    # Put in the zeros of padding and dilation.
    borders = []
    for (low, high), dilation in zip(layout.padding, layout.input_dilation, strict=True):
        borders.append((low, high, dilation - 1))
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *borders, (0, 0, 0)])

    # Along each axis of space, take the entries that each position sees. The axis becomes two: positions and window.
    num_axes = len(window)
    for axis in range(num_axes):
        stride = layout.strides[axis]
        dilation = layout.kernel_dilation[axis]
        reach = dilation * (window[axis] - 1)
        place = 1 + 2 * axis
        num_positions = (x.shape[place] - 1 - reach) // stride + 1
        seen = stride * jnp.arange(num_positions)[:, None] + dilation * jnp.arange(window[axis])
        x = jnp.take(x, seen, axis=place)

    positions = [1 + 2 * axis for axis in range(num_axes)]
    entries = [2 + 2 * axis for axis in range(num_axes)]
    return jnp.transpose(x, (0, *positions, *entries, x.ndim - 1))
