"""Checks of the arguments of a loss before anything is computed.

Each function looks at one role: parameters, batched arguments, keys, padding, or the value of the loss. Every refusal
is a ValueError that names the argument or the leaf, and says what to do instead.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_array
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
    if isinstance(leaf, float):
        raise ValueError(
            f"parameter {name} is a Python float; make it a jax.numpy array, or split the arrays off "
            "the model (equinox.partition(model, equinox.is_inexact_array)) and combine them inside the loss"
        )
    if not hasattr(leaf, "dtype"):
        raise ValueError(
            f"parameter {name} is not an array but {type(leaf).__name__}; differentiate the array part "
            "of the model only (flax.nnx.split, equinox.partition) and merge inside the loss"
        )
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        raise ValueError(f"parameter {name} is a PRNG key; split it off the parameters and pass it by key_argnums")
    if mark and is_floating(leaf) and leaf.dtype.itemsize < 2:
        raise ValueError(f"parameter {name} is {leaf.dtype}; keep trained parameters in 16 bits or more")
    if mark and jnp.issubdtype(leaf.dtype, jnp.complexfloating):
        raise ValueError(f"parameter {name} is complex; pass its real and imaginary parts instead")


def check_batch_size(args: Sequence[Any], batch_argnums: tuple[int, ...]) -> int:
    """Return the length that the leading axes of all batched arguments share.

    Raises:
      ValueError: they have no leading axes, or unequal ones.
    """
    sizes: dict[str, int] = {}
    for number in batch_argnums:
        for path, leaf in jax.tree_util.tree_flatten_with_path(args[number])[0]:
            name = f"argument {number}{jax.tree_util.keystr(path)}"
            if jnp.ndim(leaf) == 0:
                raise ValueError(f"{name} is batched but has no axis; give it a leading batch axis or leave it out")
            sizes[name] = jnp.shape(leaf)[0]
    if not sizes:
        raise ValueError(f"the batched arguments {batch_argnums} hold no arrays")
    if len(set(sizes.values())) > 1:
        raise ValueError(f"batched arguments must have leading axes of equal length, got {sizes}")
    return next(iter(sizes.values()))


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
    if isinstance(is_padding, list | tuple):
        is_padding = np.asarray(is_padding)
    check_array("is_padding", is_padding, kinds="biuf")
    if jnp.shape(is_padding) != (batch_size,) or jnp.result_type(is_padding) != jnp.bool_:
        raise ValueError(
            f"is_padding must be bool[{batch_size}], True for rows to ignore, got "
            f"{jnp.result_type(is_padding)}{list(jnp.shape(is_padding))}"
        )
    return jnp.asarray(is_padding)


def split_aux(result: Any, has_aux: bool) -> tuple[Any, Any]:
    """Return what a loss returned as (loss, aux), with None for aux without ``has_aux``."""
    if not has_aux:
        return result, None
    if not (isinstance(result, tuple) and len(result) == 2):
        raise ValueError(f"with has_aux=True loss_fn must return (loss, aux), got {type(result).__name__}")
    return result


def check_loss_value(value: Any) -> None:
    """Refuse a loss of one example that is not a real scalar."""
    if isinstance(value, tuple):
        raise ValueError(
            "loss_fn returned a tuple: return the loss alone; only gdpjax.clipped_grad takes (loss, aux), with "
            "has_aux=True and return_info=True"
        )
    if not hasattr(value, "shape") or value.shape != ():
        shape = getattr(value, "shape", type(value).__name__)
        raise ValueError(
            f"loss_fn must return a scalar for ONE example, got shape {shape}; it receives no batch axis, so do not "
            "average over one (keep_batch_dim=True gives it an axis of length 1, to be reduced)"
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(f"loss_fn must return a real floating-point scalar, got {value.dtype}")


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
    if isinstance(error, NameError) and "axis name" in str(error):
        raise ValueError(
            f"loss_fn names an axis across examples ({error}); it sees one example only, and a statistic of the "
            "batch (such as BatchNorm's) would let one example reach every gradient: use GroupNorm or LayerNorm"
        ) from error
    if "BatchStat" in str(error):
        raise ValueError(
            f"the model in loss_fn has a BatchNorm that updates its statistics ({error}); statistics of the batch "
            "would let one example reach every gradient: use GroupNorm or LayerNorm, or call model.eval() to use "
            "the frozen statistics of a public data set"
        ) from error


def refuse_call_as_schedule(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse one number as the only argument, which is how optax.inject_hyperparams calls every function."""
    if len(args) == 1 and not kwargs and np.ndim(args[0]) == 0 and hasattr(args[0], "dtype"):
        raise ValueError(
            "the clipped_grad function was called with one number, as a schedule is: under optax.inject_hyperparams "
            'name it in static_args, such as optax.inject_hyperparams(gdpjax.dpsgd, static_args=("clip", '
            '"key", "nesterov")) (for gdpjax.privatize: "clip")'
        )
