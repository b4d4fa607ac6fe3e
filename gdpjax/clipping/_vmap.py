"""Per-example gradients by `jax.vmap` of `jax.grad`: simple, general, and the oracle of every other strategy."""

from typing import Any

import jax

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._loss import Call, example_loss
from gdpjax.clipping._row_map import vmap_of


def example_grads(call: Call, batch: list[Any], positions: Array, has_convolution: bool) -> tuple[list[Array], Any]:
    """Differentiate the loss at every example.

    Args:
      call: all that the examples share.
      batch: for each batched argument, the rows [B, ...].
      positions: int32 [B], the places of these rows in the whole batch.
      has_convolution: whether the loss or its gradient has convolutions.

    Returns:
      For each trained leaf the gradients [B, ...], and (losses, aux): the losses [B], in float32 or wider, and all else
      that the loss returned, with a leading batch axis.
    """

    def loss(trained: list[Array], rows: list[Any], position: Array) -> tuple[Array, tuple[Array, Any]]:
        value, aux = example_loss(call, trained, rows, position)
        return value, (value, aux)

    map_rows = vmap_of(has_convolution)
    grad = map_rows(jax.grad(loss, has_aux=True), in_axes=(None, 0, 0))
    gradients, (values, aux) = grad(call.trained_leaves, batch, positions)
    return gradients, (values.astype(wide_dtype(values)), aux)
