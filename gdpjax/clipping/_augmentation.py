"""Augmentation multiplicity: several augmented copies of an example are ONE example.

    loss_fn = average_augmentations(loss_fn, 16, augmented_argnums=1)    # x of one example: [16, ...]
    grad_fn = clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))

An example x_i with K augmented copies x_i1, ..., x_iK has the gradient

    g_i = (1/K) sum_k grad loss(params, x_ik),

and it is g_i that is clipped, so the example moves the clipped sum by at most C whatever K is. Copies that were rows of
the batch would be clipped one by one and move it by K C.

Averaging and differentiating commute, so the gradient of the mean of the K losses is g_i. The averaging is therefore a
transformation of the loss of one example, made before `clipped_grad`, and every strategy, rule and key policy of
`clipped_grad` applies unchanged.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.arguments import check_count, check_positions
from gdpjax._core.types import PyTree
from gdpjax.clipping._loss_checks import check_keys, check_loss_value, split_aux


def average_augmentations(
    loss_fn: Callable[..., Any],
    multiplicity: int,
    *,
    augmented_argnums: int | tuple[int, ...] = (),
    key_argnums: int | tuple[int, ...] = (),
    has_aux: bool = False,
) -> Callable[..., Any]:
    """Turn a loss of one example into the mean of its losses over K augmented copies of that example.

    loss(params, x_1, ..., x_K) = (1/K) sum_k loss_fn(params, x_k)

    Its gradient is averaged over the copies BEFORE `clipped_grad` clips it: the sensitivity does not depend on K. The
    copies come in one of two ways, or both:

    * made outside: the arguments ``augmented_argnums`` of one example carry a leading axis of K copies (``[B, K, ...]``
      in the batch); arguments such as the label, not listed, are shared by the copies.
    * made inside, from a key: ``loss_fn`` augments with the key it is given, as in
      ``lambda params, x, y, key: loss(params, augment(key, x), y)``, and copy k gets ``fold_in(key, k)`` in place of
      each of ``key_argnums``. Name the same ``key_argnums`` to `clipped_grad`, which first folds in the example.

    Args:
      loss_fn: scalar loss of ONE copy of one example.
      multiplicity: K, a static whole number >= 1.
      augmented_argnums: arguments with a leading axis of K copies.
      key_argnums: arguments that are one typed PRNG key each.
      has_aux: ``loss_fn`` returns (loss, aux); aux gets a leading axis of K.

    Returns:
      A function of the same arguments, the loss of one example for `clipped_grad` or `per_example_grad`. The K copies
      are a vmap: K times the time and memory of one.

    Raises:
      ValueError: neither augmented_argnums nor key_argnums, the same argument in both, a K that is not such a number;
        when it is called, an augmented argument without an axis of K copies, or a key that is not one.

    Reference: De et al., arXiv:2204.13650, Section 3.2 (augmentation multiplicity).

    >>> from gdpjax.clipping import clipped_grad
    >>> loss_fn = average_augmentations(lambda w, x, y: y * jnp.dot(w, x), 2, augmented_argnums=1)
    >>> x = jnp.array([[[3.0, 4.0], [0.0, 0.0]], [[0.0, 0.4], [0.0, 0.6]]])  # two examples with two copies each
    >>> grad_fn = clipped_grad(loss_fn, 1.0, batch_argnums=(1, 2))
    >>> total = jax.jit(grad_fn)(jnp.zeros(2), x, jnp.ones(2))
    >>> [round(float(v), 3) for v in total]
    [0.6, 1.3]
    """
    multiplicity = check_count("multiplicity", multiplicity)
    augmented_argnums = check_positions("augmented_argnums", augmented_argnums)
    key_argnums = check_positions("key_argnums", key_argnums)
    mapped_argnums = augmented_argnums + key_argnums
    if not mapped_argnums or len(set(mapped_argnums)) != len(mapped_argnums):
        raise ValueError(
            "name the arguments in which copies differ, each once: augmented_argnums (an axis of copies) or "
            f"key_argnums (one key per copy); got augmented_argnums={augmented_argnums}, key_argnums={key_argnums}"
        )

    def mean_loss(*args: Any, **loss_kwargs: Any) -> Any:
        # Augmented arguments have an axis of copies, and a key gives one key to each copy.
        copies = list(args)
        axes: list[int | None] = [None] * len(args)
        for number in augmented_argnums:
            _check_copies(number, args[number], multiplicity)
            axes[number] = 0
        check_keys(args, key_argnums)
        numbers = jnp.arange(multiplicity, dtype=jnp.int32)
        for number in key_argnums:
            copies[number] = jax.vmap(jax.random.fold_in, (None, 0))(args[number], numbers)
            axes[number] = 0

        # The loss of each copy, and their mean.
        def loss_of_copy(*copy: Any) -> tuple[Any, Any]:
            value, aux = split_aux(loss_fn(*copy, **loss_kwargs), has_aux)
            check_loss_value(value)
            return value, aux

        losses, aux = jax.vmap(loss_of_copy, in_axes=tuple(axes))(*copies)
        mean = jnp.mean(losses)
        return (mean, aux) if has_aux else mean

    return mean_loss


def _check_copies(number: int, argument: PyTree, multiplicity: int) -> None:
    """Refuse an augmented argument without a leading axis of copies."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(argument):
        if jnp.shape(leaf)[:1] != (multiplicity,):
            raise ValueError(
                f"argument {number}{jax.tree_util.keystr(path)} of one example must have a leading axis of "
                f"{multiplicity} augmented copies, got shape {jnp.shape(leaf)}; in a batch it is the axis after the "
                "batch axis, and keep_batch_dim does not go with it (give the loss x[None] inside loss_fn)"
            )
