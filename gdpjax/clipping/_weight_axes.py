"""The axes of a weight that each factor of its outer products has.

Where a weight is multiplied by data, its gradient is a sum of outer products of a left factor (activations) and a right
factor (cotangents). Each axis of the weight is of one of three kinds:

* "l": the left factor has it.
* "r": the right factor has it.
* "b": both have it. Such an axis counts blocks: the groups of a batched product, or the layers of a scan over layers.

A dense layer y = x W has ``axes = (("l", 0), ("r", 0))``, and one whose weight is stored transposed has
``(("r", 0), ("l", 0))``.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from gdpjax._core.types import Array

Axis = tuple[str, int]
"""The kind, "l", "r" or "b", and the place among the axes of that kind in the factors."""


def axes_of_kind(axes: Sequence[Axis], kind: str) -> list[int]:
    """Return the axes of the weight of this kind, in the order in which the factors hold them."""
    positions = []
    for axis, (own_kind, position) in enumerate(axes):
        if own_kind == kind:
            positions.append((position, axis))
    return [axis for _, axis in sorted(positions)]


def arrange(result: Array, axes: tuple[Axis, ...], shape: tuple[int, ...]) -> Array:
    """Return products of the factors, one matrix for each block, as gradients in the shape of the weight.

    Args:
      result: [..., K, d, p] for K blocks, d entries of the left factor and p of the right one.
      axes: the axes of the weight.
      shape: the shape of the weight.

    Returns:
      [..., *shape].
    """
    # Split K, d and p into the axes of the weight. They come in the order of the factors.
    order = [*axes_of_kind(axes, "b"), *axes_of_kind(axes, "l"), *axes_of_kind(axes, "r")]
    leading = result.shape[:-3]
    grouped = result.reshape(*leading, *(shape[axis] for axis in order))

    # Bring the axes into the order of the weight.
    num_leading = len(leading)
    permutation = list(range(num_leading))
    for axis in range(len(order)):
        permutation.append(num_leading + order.index(axis))
    return jnp.transpose(grouped, tuple(permutation))
