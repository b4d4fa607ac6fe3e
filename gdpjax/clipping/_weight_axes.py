"""Which factor of an outer product has which axis of the weight.

The gradient of a weight that meets data in a contraction is a sum of outer products of a left factor (activations) and
a right factor (cotangents). Each axis of the weight runs over the left factor ("l"), the right one ("r"), or both
("b"): blocks, such as the groups of a batched product or the layers of a scan over layers.
"""

from collections.abc import Sequence

import jax.numpy as jnp

from gdpjax._core.types import Array

Axis = tuple[str, int]
"""("l" | "r" | "b", position among the axes of that kind)."""


def axes_of_kind(axes: Sequence[Axis], kind: str) -> list[int]:
    """Return the axes of the weight of this kind, in the order in which the factors hold them."""
    found = [(position, axis) for axis, (own, position) in enumerate(axes) if own == kind]
    return [axis for _, axis in sorted(found)]


def arrange(result: Array, axes: tuple[Axis, ...], shape: tuple[int, ...]) -> Array:
    """Arrange products [..., K, d, p] of K blocks as gradients [..., *shape] of the weight with these axes."""
    order = [*axes_of_kind(axes, "b"), *axes_of_kind(axes, "l"), *axes_of_kind(axes, "r")]
    lead = result.ndim - 3
    grouped = result.reshape(*result.shape[:lead], *(shape[axis] for axis in order))
    inverse = sorted(range(len(order)), key=order.__getitem__)
    return jnp.transpose(grouped, (*range(lead), *(lead + place for place in inverse)))
