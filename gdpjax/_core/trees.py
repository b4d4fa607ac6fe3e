"""Pytree helpers: names of leaves, one key per leaf, and sums with error bounds that do not depend on the compiler.

Rounding of a sum of squares. XLA may add the terms of a reduction in any order, and merge nested reductions into one:
for n nonnegative terms that means a relative error of up to (n - 1) u (u the unit roundoff), useless at n = 1e6.
`bounded_sum` therefore writes a tree of single additions, which no compiler may reassociate: an error of at most
`sum_error_terms(n)` u, about log2(n).

Rounding of a sum of rows. `two_sum` (Knuth) returns fl(a + b) and the exact error of that addition. Added so, in trees
of `_RADIX` rows and a running pair that is renormalised after each, hi + lo equals the exact sum up to 2 u^2 (B + 9) of
the rows' sizes: what is lost is one rounding of the result.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.keys import as_key, fold_in, refuse_key_of_a_loop
from gdpjax._core.shown import shown
from gdpjax._core.types import Array, PyTree

_RADIX = 8


def leaf_name(path: Any) -> str:
    """A leaf's path as people write it, such as ``['dense']['kernel']``."""
    return jax.tree_util.keystr(path) or "(the whole tree)"


def is_floating(leaf: Any) -> bool:
    """Whether a leaf holds real floating-point numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def refuse_complex(tree: PyTree, what: str) -> None:
    """ValueError if a leaf is complex: neither clipping nor noise is defined for it here."""
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if jnp.issubdtype(jnp.result_type(leaf), jnp.complexfloating):
            raise ValueError(f"{what} {leaf_name(path)} is complex; pass its real and imaginary parts instead")


def wide_dtype(leaf: Any) -> Any:
    """The dtype in which a leaf is summed and noised: its own, or float32 where that is wider."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def zeros_like_sum(leaf: Array) -> Array:
    """Return what a leaf without a gradient contributes: zeros, in the dtype of a sum where it is floating."""
    return jnp.zeros(jnp.shape(leaf), wide_dtype(leaf) if is_floating(leaf) else jnp.result_type(leaf))


def _digest_words(name: str) -> tuple[int, int]:
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def leaf_keys(key: Array, tree: PyTree) -> PyTree:
    """One key per leaf, from a 64-bit digest of its path: adding a leaf elsewhere does not change the others' noise."""
    names = leaf_names(tree)
    return jax.tree.unflatten(jax.tree.structure(tree), keys_of_leaves(key, names))


def keys_of_leaves(key: Array, names: list[str]) -> list[Array]:
    """Return the keys of the leaves of these names, each from a 64-bit digest of its name.

    They are derived together: a derivation is a loop in the compiled program, which a model of many leaves would hold
    many times.
    """
    key = as_key(key)
    refuse_key_of_a_loop(key)
    if not names:
        return []
    digests = np.array([_digest_words(name) for name in names], np.uint32)

    def derive(words: Array) -> Array:
        return fold_in(fold_in(key, words[0]), words[1])

    keys = jax.vmap(derive)(jnp.asarray(digests))
    return [keys[i] for i in range(len(names))]


def leaf_names(tree: PyTree) -> list[str]:
    """Return the paths of the leaves as texts; ValueError if two of them are the same."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [leaf_name(path) for path, _ in paths]
    if len(set(names)) != len(names):
        raise ValueError(f"two leaves of the tree have the same path, so they would get the same noise: {names}")
    return names


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
            raise ValueError(f"trainable must hold Python bools, got {shown(mark)}")
    return full


def sum_error_terms(size: int) -> int:
    """k such that `bounded_sum` of ``size`` nonnegative terms has relative error at most k u / (1 - k u)."""
    terms = 0
    while size > _RADIX:
        size = size // _RADIX + size % _RADIX
        terms += (_RADIX - 1).bit_length()
    return terms + max(size - 1, 0).bit_length()


def most_sum_error_terms(size: int) -> int:
    """At least `sum_error_terms` of every smaller size too; that one is not monotone."""
    loops = 0
    while size > _RADIX:
        size, loops = max(size // _RADIX + _RADIX - 1, _RADIX), loops + 1
        if size < 2 * _RADIX:
            return (_RADIX - 1).bit_length() * (loops + 2)
    return (_RADIX - 1).bit_length() * (loops + 1)


def _add_pairs(parts: list[Array]) -> Array:
    while len(parts) > 1:
        paired = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        parts = paired + parts[2 * len(paired) :]
    return parts[0]


def bounded_sum(terms: Array, of: Callable[[Array], Array] = lambda x: x) -> Array:
    """Sum of ``of(terms)`` over the last axis (size >= 1) by a tree of additions; see the module docstring.

    The function is applied to the parts and not to the whole, which a compiler would write to memory.
    """
    while (size := terms.shape[-1]) > _RADIX:
        length = size // _RADIX
        body = _add_pairs([of(terms[..., i * length : (i + 1) * length]) for i in range(_RADIX)])
        tail = terms[..., _RADIX * length :]
        terms = jnp.concatenate([body, of(tail)], axis=-1) if tail.shape[-1] else body
        of = lambda x: x  # noqa: E731
    return _add_pairs([of(terms[..., i]) for i in range(terms.shape[-1])])


def power_of_two(exponent: Array, dtype: Any) -> Array:
    """2**exponent, limited to the normal range of the dtype; exact, and without the power function of `jnp.ldexp`."""
    info = np.finfo(dtype)
    bits = jnp.int64 if info.bits == 64 else jnp.int32
    biased = jnp.clip(exponent, info.minexp, info.maxexp - 1).astype(bits) + (info.maxexp - 1)
    return jax.lax.bitcast_convert_type(biased << info.nmant, dtype)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """fl(a + b) and the exact error of that addition."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def compensated_add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    """Add two unevaluated sums hi + lo."""
    total, error = two_sum(left[0], right[0])
    return total, error + (left[1] + right[1])


def _compensated_tree(rows: list[Array]) -> tuple[Array, Array]:
    pairs = [(row, jnp.zeros_like(row)) for row in rows]
    while len(pairs) > 1:
        added = [compensated_add(a, b) for a, b in zip(pairs[::2], pairs[1::2], strict=False)]
        pairs = added + pairs[2 * len(added) :]
    return pairs[0]


def compensated_row_sum(rows: Array) -> tuple[Array, Array]:
    """The sum over the leading axis (of static size >= 1) as an unevaluated sum hi + lo.

    Groups of rows are added by trees and the groups by a loop: a tree over all rows is a program that compilers fuse
    into one with everything recomputed many times. The running pair is renormalised, so that lo stays a rounding error
    of hi.
    """
    num_groups = rows.shape[0] // _RADIX
    if num_groups < 2:
        return _compensated_tree(list(rows))
    grouped = rows[: _RADIX * num_groups].reshape(num_groups, _RADIX, *rows.shape[1:])

    def add_group(carry: tuple[Array, Array], group: Array) -> tuple[tuple[Array, Array], None]:
        return two_sum(*compensated_add(carry, _compensated_tree(list(group)))), None

    zeros = jnp.zeros(rows.shape[1:], rows.dtype)
    total, _ = jax.lax.scan(add_group, (zeros, zeros), grouped)
    rest = rows[_RADIX * num_groups :]
    return compensated_add(total, _compensated_tree(list(rest))) if rest.shape[0] else total


def num_elements(leaf: Any) -> int:
    """Number of elements of an array-like leaf."""
    return math.prod(leaf.shape)
