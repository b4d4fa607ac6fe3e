"""Per-example gradients by `jax.vmap` of `jax.grad`: simple, general, and the oracle of every other strategy."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax._core.trees import is_floating
from gdpjax.clipping._loss import Call, example_loss


class ExampleGrads(NamedTuple):
    """Gradients of the trained leaves, losses and aux, each with a leading batch axis."""

    leaves: list[Array]
    values: Array
    aux: Any


def example_grads(call: Call, batch: list[Any], indices: Array) -> ExampleGrads:
    """Per-example gradients for the rows ``batch`` whose positions in the whole batch are ``indices``."""

    def loss(trained: list[Array], rows: list[Any], index: Array) -> tuple[Array, tuple[Array, Any]]:
        value, aux = example_loss(call, trained, rows, index)
        return value, (value, aux)

    grad = jax.vmap(jax.grad(loss, has_aux=True), in_axes=(None, 0, 0))
    gradients, (values, aux) = grad(call.trained_leaves, batch, indices)
    return ExampleGrads(gradients, values.astype(wide_dtype(values)), aux)


def zero_rows(rows: Array, is_padding: Array | None) -> Array:
    """``rows`` with padding rows replaced by zeros."""
    if is_padding is None:
        return rows
    return jnp.where(is_padding.reshape(is_padding.shape + (1,) * (rows.ndim - 1)), jnp.zeros((), rows.dtype), rows)


def per_example_tree(call: Call, gradients: list[Array]) -> Any:
    """Gradients as a tree like the parameters: padding rows and leaves without gradient are zeros."""
    leaves, structure = jax.tree.flatten(call.params)
    remaining = iter(gradients)
    merged = [
        zero_rows(next(remaining), call.is_padding)
        if mark
        else jnp.zeros((call.batch_size, *leaf.shape), wide_dtype(leaf) if is_floating(leaf) else jnp.result_type(leaf))
        for leaf, mark in zip(leaves, call.which, strict=True)
    ]
    return jax.tree.unflatten(structure, merged)
