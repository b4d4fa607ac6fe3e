"""Canaries: examples made to be recognised, the coins that include them, and the scores that look for them.

A canary is strong when nothing else in the training data looks like it. Three kinds, from the strongest attacker to the
weakest: *gradients*, for an attacker who chooses what the example contributes (white box: a random direction, or one
coordinate, of norm C); *mislabeled* examples; and *out-of-distribution* ones, plain noise.

Scores. A released gradient is the clipped sum plus noise over a constant, so its inner product with the canary's own
gradient is the sufficient statistic for whether it is in there, and over several steps the sum of those. An attacker
who sees only the model uses the loss of the canary, best compared with the loss of a model that never saw it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from gdpjax._core.arguments import check_array, check_callable, check_count, check_positions, check_tree
from gdpjax._core.checks import POSITIVE, REAL, check_scalar
from gdpjax._core.keys import as_key, bits, one_key_at_a_time, split
from gdpjax._core.shown import shown
from gdpjax._core.trees import num_elements, wide_dtype
from gdpjax._core.types import Array, PyTree


def flip_coins(key: Array, num_canaries: int) -> Array:
    """Which canaries to include: independent fair coins, what the one-run audits assume.

    Args:
      key: one PRNG key, used for nothing else; the attacker must not know it.
      num_canaries: m >= 1, static.

    Returns:
      bool[m]; exact.

    >>> flip_coins(jax.random.key(0), 5).shape
    (5,)
    """
    num_canaries = check_count("num_canaries", num_canaries)
    return bits(key, (num_canaries,)) >> 31 == 1


def gradient_canaries(key: Array, num_canaries: int, params: PyTree, norm: Array) -> PyTree:
    """Gradients in independent uniformly random directions.

    norm * g / ||g|| with g standard normal over all leaves together.

    Args:
      key: one PRNG key.
      num_canaries: m >= 1, static. Scores of different canaries disturb each other little while m is far below the
        number of parameters.
      params: tree of floating arrays; only shapes and dtypes are used.
      norm: l2 norm > 0 of each, usually the clip norm.

    Returns:
      A tree like ``params`` with a leading axis of m.

    Raises:
      ValueError: num_canaries or norm out of range.

    Reference: Nasr et al., arXiv:2302.07956, section 5; Andrew et al., arXiv:2302.03098.

    >>> canaries = gradient_canaries(jax.random.key(0), 3, {"w": jnp.zeros((2, 4))}, 1.0)
    >>> [round(float(jnp.linalg.norm(row)), 5) for row in canaries["w"]]
    [1.0, 1.0, 1.0]
    """
    num_canaries = check_count("num_canaries", num_canaries)
    check_scalar("norm", norm, POSITIVE)
    check_tree("params", params)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, params))
    keys = split(key, len(leaves))
    drawn = [_normal(k, (num_canaries, *leaf.shape), wide_dtype(leaf)) for k, leaf in zip(keys, leaves, strict=True)]
    squares = sum(jnp.sum(g.reshape(num_canaries, -1) ** 2, axis=1) for g in drawn)
    scale = norm / jnp.sqrt(squares)
    scaled = [(g * scale.reshape(-1, *[1] * (g.ndim - 1))).astype(g.dtype) for g in drawn]
    return jax.tree.unflatten(structure, scaled)


def _normal(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return one_key_at_a_time(lambda key: jax.random.normal(key, shape, dtype))(key)


def coordinate_canaries(key: Array, num_canaries: int, params: PyTree, norm: Array) -> PyTree:
    """Gradients with one nonzero coordinate each, all different: scores that do not disturb each other at all.

    Args:
      key: one PRNG key.
      num_canaries: m, static, at most the number of parameters.
      params: tree of floating arrays; only shapes and dtypes are used.
      norm: value > 0 of that coordinate, usually the clip norm.

    Returns:
      A tree like ``params`` with a leading axis of m.

    Raises:
      ValueError: num_canaries or norm out of range.

    Reference: Nasr et al., arXiv:2302.07956, section 5.

    >>> canaries = coordinate_canaries(jax.random.key(0), 8, {"w": jnp.zeros((2, 4))}, 1.0)
    >>> canaries["w"].sum(axis=0).tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    num_canaries = check_count("num_canaries", num_canaries)
    check_scalar("norm", norm, POSITIVE)
    check_tree("params", params)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, params))
    sizes = [num_elements(leaf) for leaf in leaves]
    if num_canaries > sum(sizes):
        raise ValueError(f"num_canaries must be at most the {sum(sizes)} parameters, got {num_canaries}")
    places = one_key_at_a_time(lambda key: jax.random.permutation(key, sum(sizes)))(as_key(key))[:num_canaries]
    found, start = [], 0
    for leaf, size in zip(leaves, sizes, strict=True):
        # A place outside this leaf has no one-hot row: zeros.
        rows = norm * jax.nn.one_hot(places - start, size, dtype=wide_dtype(leaf))
        found.append(rows.reshape(num_canaries, *leaf.shape))
        start += size
    return jax.tree.unflatten(structure, found)


def with_gradient_canaries(loss_fn: Callable[..., Array]) -> Callable[..., Array]:
    """A loss of one row that is either an example or a canary with a gradient of its own.

    <params, canary> where is_canary, else loss_fn(params, *example), so that a row passes through clipping and noise
    like any other.

    Args:
      loss_fn: scalar loss of one example, ``loss_fn(params, *example)``.

    Returns:
      ``loss(params, canary, is_canary, *example)``: canary a tree like params, is_canary a bool. Canary rows need some
      example with a finite loss, examples some finite canary, zeros for instance.

    >>> loss = with_gradient_canaries(lambda w, x: jnp.sum(w * x) ** 2)
    >>> jax.grad(loss)(jnp.ones(2), jnp.array([0.6, 0.8]), True, jnp.zeros(2)).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    check_callable("loss_fn", loss_fn)

    def loss(params: PyTree, canary: PyTree, is_canary: Array, *example: Any) -> Array:
        products = jax.tree.map(lambda p, g: jnp.sum(p * g), params, canary)
        return jnp.where(is_canary, sum(jax.tree.leaves(products)), loss_fn(params, *example))

    return loss


def mislabel(key: Array, labels: Array, num_classes: int) -> Array:
    """A wrong label for each example, uniform over the other classes.

    Args:
      key: one PRNG key.
      labels: integers in 0, ..., num_classes - 1.
      num_classes: static, >= 2.

    Returns:
      Labels of the same shape and dtype, none as it was.

    Raises:
      ValueError: fewer than two classes, labels that are not integers.

    Reference: Steinke, Nasr and Jagielski, arXiv:2305.08846, section 6.

    >>> bool((mislabel(jax.random.key(0), jnp.arange(10), 10) != jnp.arange(10)).all())
    True
    """
    num_classes = check_count("num_classes", num_classes)
    labels = jnp.asarray(check_array("labels", labels))
    if num_classes < 2 or not jnp.issubdtype(labels.dtype, jnp.integer):
        raise ValueError(f"expected integer labels and num_classes >= 2, got {labels.dtype} and {num_classes}")
    # In int32: a sum of two labels need not fit their own type.
    shift = one_key_at_a_time(lambda key: jax.random.randint(key, labels.shape, 1, num_classes))(as_key(key))
    moved = labels.astype(jnp.int32) + shift
    return (moved % num_classes).astype(labels.dtype)


def out_of_distribution(
    key: Array, num_canaries: int, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0
) -> Array:
    """Examples that are nothing but uniform noise in the range of the data.

    Args:
      key: one PRNG key.
      num_canaries: m >= 1, static.
      shape: of one example.
      low, high: public range of the features, low < high.

    Returns:
      float[m, *shape].

    Raises:
      ValueError: numbers out of range.

    >>> out_of_distribution(jax.random.key(0), 4, (28, 28)).shape
    (4, 28, 28)
    """
    num_canaries = check_count("num_canaries", num_canaries)
    check_scalar("low", low, REAL)
    check_scalar("high", high, REAL)
    if not low < high:
        raise ValueError(f"expected low < high, got {low} and {high}")
    shape = (int(num_canaries), *(check_count("shape", size, least=0) for size in check_positions("shape", shape)))
    return one_key_at_a_time(lambda key: jax.random.uniform(key, shape, minval=low, maxval=high))(as_key(key))


def white_box_scores(released: PyTree, canaries: PyTree) -> Array:
    """How much of each canary's gradient is in what was released.

    sum_t <released_t, canary_i>

    Args:
      released: a tree of noisy gradients, or with a leading axis of steps, over which it is summed; each leaf by its
        own shape.
      canaries: the same tree with a leading axis of m: what `gradient_canaries` gave.

    Returns:
      float[m], higher where the canary is likelier to be in.

    Raises:
      ValueError: shapes that do not fit.

    Reference: Nasr et al., arXiv:2302.07956, section 5.

    >>> white_box_scores(jnp.array([[1.0, 2.0], [0.0, 1.0]]), jnp.eye(2)).tolist()
    [1.0, 3.0]
    """

    check_tree("released", released)
    check_tree("canaries", canaries)
    if jax.tree.structure(released) != jax.tree.structure(canaries):
        raise ValueError(f"expected two trees of one structure, got {shown(released)} and {shown(canaries)}")

    def of_leaf(value: Array, rows: Array) -> Array:
        value, rows = jnp.asarray(value), jnp.asarray(rows)
        if value.shape[1:] == rows.shape[1:] and value.ndim == rows.ndim:
            value = value.sum(axis=0)
        if value.shape != rows.shape[1:]:
            raise ValueError(f"expected a release of shape {rows.shape[1:]} or [steps, ...], got {value.shape}")
        return rows.reshape(rows.shape[0], -1) @ value.reshape(-1)

    return sum(jax.tree.leaves(jax.tree.map(of_leaf, released, canaries)))  # pyright: ignore[reportReturnType]


def black_box_scores(losses: Array, reference_losses: Array) -> Array:
    """How much lower the loss of each canary is than under a model that never saw it.

    reference_losses - losses

    Args:
      losses: float[m], of the audited model.
      reference_losses: float[m] or one number, of the initial model, say, or of one trained on other data.

    Returns:
      float[m], higher where the canary is likelier to be in.

    Raises:
      ValueError: shapes that do not fit.

    Reference: Carlini et al., arXiv:2112.03570, section 4.

    >>> black_box_scores(jnp.array([0.5, 2.0]), 1.0).tolist()
    [0.5, -1.0]
    """
    losses = jnp.asarray(check_array("losses", losses))
    reference = jnp.asarray(check_array("reference_losses", reference_losses))
    if losses.ndim != 1 or reference.shape not in ((), losses.shape):
        raise ValueError(f"expected two vectors of one loss a canary, got shapes {losses.shape}, {reference.shape}")
    return reference - losses
