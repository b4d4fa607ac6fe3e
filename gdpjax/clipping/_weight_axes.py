"""The axes of a weight, and the factors of an outer product that have them.

The gradient of a weight that meets data in a contraction is a sum of outer products of a left factor (activations) and
a right factor (cotangents). Each axis of the weight is of one kind:

* "l": the left factor has it;
* "r": the right factor has it;
* "b": both have it. Such axes are blocks: the groups of a batched product, or the layers of a scan over layers.

A dense layer y = x W has ``axes = (("l", 0), ("r", 0))``, and one whose weight is stored transposed has
``(("r", 0), ("l", 0))``.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from gdpjax._core.types import Array

Axis = tuple[str, int]
"""("l" | "r" | "b", position among the axes of that kind in the factor)."""


def axes_of_kind(axes: Sequence[Axis], kind: str) -> list[int]:
    """Return the axes of the weight of this kind, in the order in which the factors hold them."""
    positions = []
    for axis, (own_kind, position) in enumerate(axes):
        if own_kind == kind:
            positions.append((position, axis))
    return [axis for _, axis in sorted(positions)]


def arrange(result: Array, axes: tuple[Axis, ...], shape: tuple[int, ...]) -> Array:
    """Arrange products [..., K, d, p] of K blocks as gradients [..., *shape] of the weight with these axes."""
    # Split the three axes into those of the weight, which come in the order of the factors.
    order = [*axes_of_kind(axes, "b"), *axes_of_kind(axes, "l"), *axes_of_kind(axes, "r")]
    leading = result.shape[:-3]
    grouped = result.reshape(*leading, *(shape[axis] for axis in order))

    # Bring them into the order of the weight.
    num_leading = len(leading)
    permutation = list(range(num_leading))
    for axis in range(len(order)):
        permutation.append(num_leading + order.index(axis))
    return jnp.transpose(grouped, tuple(permutation))
