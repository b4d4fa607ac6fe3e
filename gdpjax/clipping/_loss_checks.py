"""Checks of the arguments of a loss before anything is computed.

Each function looks at one role: parameters, batched arguments, keys, padding, or the value of the loss. Every refusal
is a ValueError that names the argument or the leaf, and says what to do instead.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.keys import varying_axes
from gdpjax._core.shown import shown
from gdpjax._core.statistics import refuse_statistics
from gdpjax._core.trees import broadcast_trainable, is_floating, leaf_name, num_elements
from gdpjax._core.types import Array, PyTree


def check_parameters(params: PyTree, trainable: PyTree | None) -> tuple[bool, ...]:
    """Return for each leaf of the parameters whether it is differentiated.

    Args:
      params: the differentiated arguments.
      trainable: a pytree (prefix) of bools, or None.

    Raises:
      ValueError: a leaf is not an array that can be trained, or no leaf is.
    """
    marks = jax.tree.leaves(broadcast_trainable(trainable, params))
    is_trained = []
    for (path, leaf), mark in zip(jax.tree_util.tree_flatten_with_path(params)[0], marks, strict=True):
        _check_parameter(leaf_name(path), leaf, mark)
        # Integers have no gradient, and an empty array has none to clip.
        is_trained.append(bool(mark) and is_floating(leaf) and num_elements(leaf) > 0)
    if not any(is_trained):
        raise ValueError(
            "the parameters have no trainable floating-point leaf, so there is nothing to differentiate; check argnums "
            f"and trainable (got leaves of {[str(leaf.dtype) for leaf in jax.tree.leaves(params)]})"
        )
    refuse_statistics(params, is_trained)
    return tuple(is_trained)


def _check_parameter(name: str, leaf: Any, mark: bool) -> None:
    """Refuse a leaf that is not an array, or one that is to be trained and cannot be."""
    if not hasattr(leaf, "dtype"):
        raise ValueError(
            f"parameter {name} is not an array but {type(leaf).__name__}; differentiate the array part "
            "of the model only (flax.nnx.split, equinox.partition) and merge inside the loss"
        )
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    is_complex = jnp.issubdtype(leaf.dtype, jnp.complexfloating)
    if is_key or (mark and (is_complex or (is_floating(leaf) and leaf.dtype.itemsize < 2))):
        raise ValueError(
            f"parameter {name} is {leaf.dtype}; trained parameters are real, of 16 bits or more, and PRNG keys are "
            "given by key_argnums"
        )


def check_batch_size(args: Sequence[Any], batch_argnums: tuple[int, ...]) -> int:
    """Return the length that the leading axes of all batched arguments share.

    Raises:
      ValueError: they have no leading axes, or unequal ones.
    """
    sizes = {}
    for number in batch_argnums:
        for path, leaf in jax.tree_util.tree_leaves_with_path(args[number]):
            sizes[f"argument {number}{jax.tree_util.keystr(path)}"] = jnp.shape(leaf)[:1]
    if len(set(sizes.values())) != 1 or () in sizes.values():
        raise ValueError(f"batched arguments must have leading axes of equal length, got {sizes}")
    (batch_size,) = next(iter(sizes.values()))
    return batch_size


def check_keys(args: Sequence[Any], key_argnums: tuple[int, ...]) -> None:
    """Refuse key arguments that are not one typed PRNG key each."""
    for number in key_argnums:
        key = args[number]
        is_typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
        if not is_typed or key.shape != ():
            raise ValueError(f"argument {number} must be one typed PRNG key (jax.random.key), got {shown(key)}")


def check_padding(is_padding: Any, batch_size: int) -> Array | None:
    """Return the mask of padding as bool[batch_size], or None where none was given."""
    if is_padding is None:
        return None
    is_padding = jnp.asarray(is_padding)
    if jnp.shape(is_padding) != (batch_size,) or jnp.result_type(is_padding) != jnp.bool_:
        raise ValueError(
            f"is_padding must be bool[{batch_size}], True for rows to ignore, got "
            f"{jnp.result_type(is_padding)}{list(jnp.shape(is_padding))}"
        )
    return is_padding


def split_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    """Return what a loss returned as (loss, aux), with None for aux without ``has_aux``."""
    if not has_aux:
        return result, None
    value, aux = result
    return value, aux


def check_loss_value(value: Any) -> None:
    """Refuse a loss of one example that is not a real scalar."""
    if not is_floating(value) or value.shape != ():
        raise ValueError(
            f"loss_fn must return a scalar for ONE example, a real floating-point number, got {shown(value)}; it "
            "receives no batch axis, so do not average over one (keep_batch_dim=True gives it an axis of length 1, to "
            "be reduced), and only gdpjax.clipped_grad with has_aux=True takes (loss, aux)"
        )


def refuse_varying_arguments(args: Sequence[Any]) -> None:
    """Refuse arrays that vary over the axes of a shard_map that checks this.

    There JAX adds the gradients of shared parameters up over the devices, before any clipping.
    """
    for number, arg in enumerate(args):
        for path, leaf in jax.tree_util.tree_flatten_with_path(arg)[0]:
            axes = varying_axes(leaf) if isinstance(leaf, jax.Array) else ()
            if axes:
                raise ValueError(
                    f"argument {number}{jax.tree_util.keystr(path)} varies over the mesh axes "
                    f"{sorted(axes)} of a shard_map that checks this, where gradients are added up "
                    "over devices before they could be clipped; use no shard_map, as a batch on a mesh is spread over "
                    "it anyway, or jax.shard_map(..., check_vma=False) for the sums alone, with the noise outside of it"
                )


def refuse_batch_norm_error(error: Exception) -> None:
    """Turn an error of the loss into a ValueError with advice, if a BatchNorm or a named batch axis caused it.

    Args:
      error: what the loss raised when it was given one example.

    Raises:
      ValueError: from ``error``, with advice.
    """
    names_an_axis = isinstance(error, NameError) and "axis name" in str(error)
    if names_an_axis or "BatchStat" in str(error):
        raise ValueError(
            f"loss_fn names an axis across examples, or updates the statistics of a BatchNorm ({error}); statistics of "
            "the batch would let one example reach every gradient: use GroupNorm or LayerNorm, or call model.eval() to "
            "use the frozen statistics of a public data set"
        ) from error
