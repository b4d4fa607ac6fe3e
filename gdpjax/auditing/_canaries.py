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
import numpy as np
from jaxtyping import Bool, Float, Integer, PRNGKeyArray, Real

from gdpjax._core.arguments import check_array, check_count, check_flag, check_positions
from gdpjax._core.checks import POSITIVE, REAL, check_scalar, checked_scalar
from gdpjax._core.keys import as_key, bits, one_key_at_a_time
from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array, PyTree, Scalar


def flip_coins(key: PRNGKeyArray, num_canaries: int) -> Bool[Array, " {num_canaries}"]:
    """Draw which canaries to include: independent fair coins, as the one-run audits assume.

    Args:
      key: one PRNG key, used for nothing else; the attacker must not know it.
      num_canaries: m >= 1, static.

    Returns:
      bool[m]; exact.

    >>> flip_coins(jax.random.key(0), 5).shape
    (5,)
    """
    num_canaries = check_count("num_canaries", num_canaries)
    words = bits(key, (num_canaries,))
    highest_bit = words >> 31
    return highest_bit == 1


def gradient_canaries(
    key: PRNGKeyArray, num_canaries: int, params: PyTree, norm: Scalar, *, coordinates: bool = False
) -> PyTree:
    """Draw gradients in independent uniformly random directions, or along different coordinates.

    Formula: norm * g / ||g|| with g standard normal over all leaves together, or a random coordinate vector.

    Args:
      key: one PRNG key.
      num_canaries: m >= 1, static. Scores of different canaries disturb each other little while m is far below the
        number of parameters.
      params: tree of floating arrays; only shapes and dtypes are used.
      norm: l2 norm > 0 of each, usually the clip norm.
      coordinates: give each one nonzero coordinate, all different, so that their scores do not disturb each other at
        all; then m is at most the number of parameters.

    Returns:
      A tree like ``params`` with a leading axis of m.

    Raises:
      ValueError: num_canaries or norm out of range.

    Reference: Nasr et al., arXiv:2302.07956, section 5; Andrew et al., arXiv:2302.03098.

    >>> canaries = gradient_canaries(jax.random.key(0), 3, {"w": jnp.zeros((2, 4))}, 1.0)
    >>> [round(float(jnp.linalg.norm(row)), 5) for row in canaries["w"]]
    [1.0, 1.0, 1.0]
    >>> canaries = gradient_canaries(jax.random.key(0), 8, {"w": jnp.zeros((2, 4))}, 1.0, coordinates=True)
    >>> canaries["w"].sum(axis=0).tolist()
    [[1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
    """
    num_canaries = check_count("num_canaries", num_canaries)
    check_scalar("norm", norm, POSITIVE)
    leaves, structure = jax.tree.flatten(jax.tree.map(jnp.asarray, params))
    sizes = [leaf.size for leaf in leaves]
    drawn = _coordinates if check_flag("coordinates", coordinates) else _directions
    rows = norm * drawn(as_key(key), num_canaries, sum(sizes))

    # Each leaf has columns of its own.
    canaries = []
    for leaf, columns in zip(leaves, jnp.split(rows, np.cumsum(sizes)[:-1], axis=1), strict=True):
        canaries.append(columns.reshape(num_canaries, *leaf.shape).astype(wide_dtype(leaf)))
    return jax.tree.unflatten(structure, canaries)


def _directions(key: Array, num_canaries: int, num_params: int) -> Array:
    """Return unit vectors in uniformly random directions, float32[num_canaries, num_params]."""

    def draw(key: Array) -> Array:
        return jax.random.normal(key, (num_canaries, num_params))

    normals = one_key_at_a_time(draw)(key)
    return normals / jnp.linalg.norm(normals, axis=1, keepdims=True)


def _coordinates(key: Array, num_canaries: int, num_params: int) -> Array:
    """Return different coordinate vectors, float32[num_canaries, num_params]."""
    num_canaries = check_count("num_canaries", num_canaries, most=num_params)

    def permute(key: Array) -> Array:
        return jax.random.permutation(key, num_params)

    return jax.nn.one_hot(one_key_at_a_time(permute)(key)[:num_canaries], num_params)


def with_gradient_canaries(loss_fn: Callable[..., Array]) -> Callable[..., Array]:
    """Return a loss of one row that is either an example or a canary with a gradient of its own.

    The loss is <params, canary> where is_canary, else loss_fn(params, *example), so that a canary passes through
    clipping and noise like any other row.

    Args:
      loss_fn: scalar loss of one example, ``loss_fn(params, *example)``.

    Returns:
      ``loss(params, canary, is_canary, *example)``: canary a tree like params, is_canary a bool. Canary rows need some
      example with a finite loss, examples some finite canary, zeros for instance.

    >>> loss = with_gradient_canaries(lambda w, x: jnp.sum(w * x) ** 2)
    >>> jax.grad(loss)(jnp.ones(2), jnp.array([0.6, 0.8]), True, jnp.zeros(2)).tolist()
    [0.6000000238418579, 0.800000011920929]
    """

    def loss(params: PyTree, canary: PyTree, is_canary: Array, *example: Any) -> Array:
        # The gradient of <params, canary> is the canary.
        products = jax.tree.map(lambda param, gradient: jnp.sum(param * gradient), params, canary)
        inner_product = sum(jax.tree.leaves(products))
        return jnp.where(is_canary, inner_product, loss_fn(params, *example))

    return loss


def mislabel(key: PRNGKeyArray, labels: Integer[Array, "*examples"], num_classes: int) -> Integer[Array, "*examples"]:
    """Draw a wrong label for each example, uniform over the other classes.

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
    num_classes = check_count("num_classes", num_classes, least=2)
    labels = jnp.asarray(check_array("labels", labels, kinds="iu"))

    def draw_shift(key: Array) -> Array:
        return jax.random.randint(key, labels.shape, 1, num_classes)

    # Add in int32: a sum of two labels need not fit their own type.
    shift = one_key_at_a_time(draw_shift)(as_key(key))
    shifted = labels.astype(jnp.int32) + shift
    return (shifted % num_classes).astype(labels.dtype)


def out_of_distribution(
    key: PRNGKeyArray, num_canaries: int, shape: tuple[int, ...], low: float = 0.0, high: float = 1.0
) -> Float[Array, "{num_canaries} ..."]:
    """Draw examples that are nothing but uniform noise in the range of the data.

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
    low = checked_scalar("low", low, REAL)
    high = checked_scalar("high", high, REAL)
    if not low < high:
        raise ValueError(f"expected low < high, got {low} and {high}")
    example_shape = [check_count("shape", size, least=0) for size in check_positions("shape", shape)]

    def draw(key: Array) -> Array:
        return jax.random.uniform(key, (num_canaries, *example_shape), minval=low, maxval=high)

    return one_key_at_a_time(draw)(as_key(key))


def white_box_scores(released: PyTree, canaries: PyTree) -> Float[Array, " canaries"]:
    """Score how much of each canary's gradient is in what was released.

    Formula: score_i = sum_t <released_t, canary_i>.

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
    # A tree of other names is refused here.
    of_leaves = jax.tree.map(
        lambda value, rows: _leaf_scores(jnp.asarray(value), jnp.asarray(rows)), released, canaries
    )
    return sum(jax.tree.leaves(of_leaves))


def _leaf_scores(released: Array, canaries: Array) -> Array:
    """Return the inner products of one leaf of the release, with or without steps, and of each canary, float[m]."""
    num_canaries, *leaf_shape = canaries.shape
    expected = tuple(leaf_shape)
    has_steps = released.shape[1:] == expected and released.ndim == canaries.ndim
    total = released.sum(axis=0) if has_steps else released
    if total.shape != expected:
        raise ValueError(f"expected a release of shape {expected} or [steps, ...], got {total.shape}")
    return canaries.reshape(num_canaries, total.size) @ total.reshape(-1)


def black_box_scores(
    losses: Real[Array, " canaries"], reference_losses: Real[Array, " canaries"] | Scalar
) -> Float[Array, " canaries"]:
    """Score how much lower the loss of each canary is than under a model that never saw it.

    Formula: score_i = reference_losses_i - losses_i.

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


def check_scores(scores: Any, included: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the scores as float64[m] and the coins as bool[m].

    ValueError for NaN scores, for coins that are not 0 or 1 and for unequal lengths. A NaN has no place in a ranking,
    and sorting would put it at one end: that is a guess nobody decided on.
    """
    numbers = np.asarray(check_array("scores", scores)).astype(np.float64)
    coins = np.asarray(check_array("included", included, kinds="biuf"))
    is_coin = bool(np.isin(coins.astype(np.float64), (0.0, 1.0)).all())
    if numbers.ndim != 1 or numbers.shape != coins.shape or not numbers.size:
        raise ValueError(
            f"scores and included must be two vectors of equal length >= 1, got shapes {numbers.shape}, {coins.shape}"
        )
    is_nan = np.isnan(numbers)
    if is_nan.any():
        raise ValueError(
            f"scores must not be NaN, got NaN at index {int(is_nan.argmax())}; give such canaries a fixed "
            "score (0, say) whether or not they were included, or leave them out by a rule that does not look at that"
        )
    if not is_coin:
        raise ValueError("included must hold True or False (1 or 0) for each canary, got other values")
    return numbers, coins.astype(bool)
