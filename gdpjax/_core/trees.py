"""Pytree helpers: names of leaves, one key per leaf, and sums with error bounds that do not depend on the compiler.

Rounding of a sum of squares. XLA may add the terms of a reduction in any order, and for n nonnegative terms any order
has relative error at most (n - 1) u (u the unit roundoff): useless at n = 1e6. `bounded_sum` therefore adds at most
`_RADIX` terms per reduction and repeats, so that the error is at most `sum_error_terms(n)` u, 32 per level.

Rounding of a sum of rows. `TwoSum` (Knuth) returns fl(a + b) and its exact error; a binary tree of them keeps
hi + lo equal to the exact sum up to O(log^2 B) u^2, so that what is lost is one rounding of the result.
"""

import hashlib
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.types import Array, PyTree

_RADIX = 32


def leaf_name(path: Any) -> str:
    """A leaf's path as people write it, such as ``['dense']['kernel']``."""
    return jax.tree_util.keystr(path) or "(the whole tree)"


def is_floating(leaf: Any) -> bool:
    """Whether a leaf holds real floating-point numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def wide_dtype(leaf: Any) -> Any:
    """The dtype in which a leaf is summed and noised: its own, or float32 where that is wider."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def _digest_words(name: str) -> tuple[int, int]:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def leaf_keys(key: Array, tree: PyTree) -> PyTree:
    """One key per leaf, from a 64-bit digest of its path: adding a leaf elsewhere does not change the others' noise."""
    paths, structure = jax.tree_util.tree_flatten_with_path(tree)
    names = [leaf_name(path) for path, _ in paths]
    if len(set(names)) != len(names):
        raise ValueError(f"two leaves of the tree have the same path, so they would get the same noise: {names}")
    words = [_digest_words(name) for name in names]
    keys = [jax.random.fold_in(jax.random.fold_in(key, first), second) for first, second in words]
    return jax.tree.unflatten(structure, keys)


def broadcast_trainable(trainable: PyTree | None, params: PyTree) -> PyTree:
    """``trainable`` (None or a pytree prefix of bools) as a full tree of bools over ``params``."""
    if trainable is None:
        return jax.tree.map(lambda _: True, params)
    try:
        full = jax.tree.map(lambda mark, part: jax.tree.map(lambda _: mark, part), trainable, params)
    except (ValueError, TypeError) as error:
        raise ValueError(f"trainable must be a pytree of bools that matches the parameters: {error}") from error
    for mark in jax.tree.leaves(full):
        if not isinstance(mark, (bool, np.bool_)):
            raise ValueError(f"trainable must hold Python bools, got {mark!r}")
    return full


def sum_error_terms(size: int) -> int:
    """k such that `bounded_sum` of ``size`` nonnegative terms has relative error at most k u / (1 - k u)."""
    levels = 0
    while size > 1:
        size = size // _RADIX + size % _RADIX if size > _RADIX else 1
        levels += 1
    return _RADIX * levels


def bounded_sum(terms: Array) -> Array:
    """Sum over the last axis in reductions of at most 32 terms; see the module docstring."""
    while (size := terms.shape[-1]) > _RADIX:
        even = size - size % _RADIX
        body = terms[..., :even].reshape(*terms.shape[:-1], _RADIX, even // _RADIX).sum(axis=-2)
        terms = jnp.concatenate([body, terms[..., even:]], axis=-1) if even < size else body
    return terms.sum(axis=-1)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """fl(a + b) and the exact error of that addition."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def compensated_add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    """Add two unevaluated sums hi + lo."""
    total, error = two_sum(left[0], right[0])
    return total, error + (left[1] + right[1])


def compensated_row_sum(rows: Array) -> tuple[Array, Array]:
    """The sum over the leading axis (of static size >= 1) as an unevaluated sum hi + lo, by a binary tree."""
    pair = (rows, jnp.zeros_like(rows))
    while (size := pair[0].shape[0]) > 1:
        half = size // 2
        added = compensated_add((pair[0][:half], pair[1][:half]), (pair[0][half : 2 * half], pair[1][half : 2 * half]))
        odd = (pair[0][2 * half :], pair[1][2 * half :])
        pair = added if size % 2 == 0 else tuple(jnp.concatenate([a, o]) for a, o in zip(added, odd, strict=True))
    return pair[0][0], pair[1][0]


def num_elements(leaf: Any) -> int:
    """Number of elements of an array-like leaf."""
    return math.prod(leaf.shape)
