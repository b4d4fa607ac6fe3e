"""Buffers of past noise with the shapes of the parameters, and products with coefficients that keep 48 bits.

A buffer has one leading axis before the axes of each leaf. It is read as a whole and written in one place, so that no
data move between steps, and it is sharded as its leaf is.

Coefficients are float64 numbers where they are known, and noise is float32. A strategy whose decays lie near 1 raises
them to powers as high as the number of steps, so coefficients in float32 would be those of another matrix. A
coefficient is therefore kept as the sum of a high and a low float32 number, and its product with z is high z + low z.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.checks import is_traced
from gdpjax._core.trees import rounded_to, wide_dtype
from gdpjax._core.types import Array, PyTree

_MOST_UNROLLED = 64
"""Slots up to which a sum over them is written out, which is several times as fast as a reduction on the CPU."""


def zeros_like_each(like: PyTree, num_slots: int | None = None) -> PyTree:
    """Return zeros for each leaf, after a leading axis of ``num_slots`` if that is given, sharded as the leaf is."""
    leading = () if num_slots is None else (num_slots,)

    def zeros(leaf: Any) -> Array:
        leaf = leaf if hasattr(leaf, "dtype") else jnp.asarray(leaf)
        shape = (*leading, *leaf.shape)
        sharding = _sharding(leaf, leading)
        return jnp.zeros(shape, wide_dtype(leaf), device=sharding)

    return jax.tree.map(zeros, like)


def _sharding(leaf: Any, leading: tuple[int, ...]) -> Any:
    """Return the sharding of a leaf with an unsharded axis for the slots, or None where it has none that is named.

    A traced leaf has one if axes of its mesh are explicit; where they are automatic, the compiler chooses.
    """
    sharding = _explicit_sharding(leaf) if is_traced(leaf) else getattr(leaf, "sharding", None)
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None
    spec = jax.sharding.PartitionSpec(*[None] * len(leading), *sharding.spec)
    return jax.sharding.NamedSharding(sharding.mesh, spec)


def _explicit_sharding(leaf: Array) -> Any:
    """Return the sharding in the type of an array, or None where no axis of its mesh is explicit."""
    sharding = jax.typeof(leaf).sharding
    return sharding if sharding.mesh.explicit_axes else None


def split_high_and_low(coefficients: Any) -> Array:
    """Return float32 numbers [2, ...] whose sum is the coefficients; the second is 0 where they are traced."""
    if is_traced(coefficients) or isinstance(coefficients, jax.Array):
        high = rounded_to(jnp.asarray(coefficients), jnp.float32)
        return jnp.stack([high, coefficients - high]).astype(jnp.float32)
    coefficients = np.asarray(coefficients, np.float64)
    high = coefficients.astype(np.float32)
    low = (coefficients - high).astype(np.float32)
    return jnp.asarray(np.stack([high, low]))


def multiply(high_and_low: Array, tree: PyTree) -> PyTree:
    """Return (high + low) leaf for each leaf; shape [2], or [2, slots] for buffers of so many slots."""

    def product(leaf: Array) -> Array:
        num_axes = leaf.ndim - (high_and_low.ndim - 1)
        axes = (1,) * num_axes
        wide = high_and_low.reshape(*high_and_low.shape, *axes)
        high, low = wide.astype(leaf.dtype)
        return high * leaf + low * leaf

    return jax.tree.map(product, tree)


def add(left: PyTree, right: PyTree) -> PyTree:
    """Return the sum leaf by leaf."""
    return jax.tree.map(jnp.add, left, right)


def subtract(left: PyTree, right: PyTree) -> PyTree:
    """Return the difference leaf by leaf."""
    return jax.tree.map(jnp.subtract, left, right)


def sum_of_slots(high_and_low: Array, buffers: PyTree) -> PyTree:
    """Return the sum over the slots of (high + low) slot, for high and low numbers of shape [2, slots]."""
    num_slots = high_and_low.shape[1]
    if num_slots > _MOST_UNROLLED:
        weighted = multiply(high_and_low, buffers)
        return jax.tree.map(lambda leaf: jnp.sum(leaf, axis=0), weighted)

    # Written out, it is one pass over the memory.
    total = multiply(high_and_low[:, 0], slot_of(buffers, 0))
    for slot in range(1, num_slots):
        total = add(total, multiply(high_and_low[:, slot], slot_of(buffers, slot)))
    return total


def slot_of(buffers: PyTree, slot: int) -> PyTree:
    """Return one slot of each buffer."""
    return jax.tree.map(lambda leaf: leaf[slot], buffers)


def as_noise(tree: PyTree) -> PyTree:
    """Return a draw in float32 or wider."""
    return jax.tree.map(lambda leaf: leaf.astype(wide_dtype(leaf)), tree)


def lag_of_each_slot(step: Array, num_slots: int) -> Array:
    """Return how many steps ago the slots of a ring buffer were written, 0 for the one of ``step``."""
    return jnp.mod(step - jnp.arange(num_slots), num_slots)


def write(buffers: PyTree, step: Array, tree: PyTree) -> PyTree:
    """Return the ring buffer with its oldest slot, number step modulo the slots, replaced by ``tree``."""

    def replaced(buffer: Array, leaf: Array) -> Array:
        slot = jnp.mod(step, buffer.shape[0])
        leaf = leaf.astype(buffer.dtype)
        sharding = _explicit_sharding(buffer)
        if sharding is not None:
            # A draw is the same on all devices by its type; each keeps the part that lies beside its parameters.
            of_slot = jax.sharding.PartitionSpec(*sharding.spec[1:])
            leaf = jax.sharding.reshard(leaf, jax.sharding.NamedSharding(sharding.mesh, of_slot))
        return jax.lax.dynamic_update_index_in_dim(buffer, leaf, slot, 0)

    return jax.tree.map(replaced, buffers, tree)


def written(buffers: PyTree, step: Array) -> PyTree:
    """Return what `write` has put into the ring buffer at ``step``."""

    def slot_of_step(buffer: Array) -> Array:
        slot = jnp.mod(step, buffer.shape[0])
        return jax.lax.dynamic_index_in_dim(buffer, slot, 0, keepdims=False)

    return jax.tree.map(slot_of_step, buffers)
