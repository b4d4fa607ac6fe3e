"""Walk through pytrees: names of leaves, one key per leaf, and sums whose error bounds hold for every compiler.

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
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core.arguments import check_flag
from gdpjax._core.keys import as_key, fold_in, refuse_key_of_a_loop
from gdpjax._core.types import Array, PyTree

Node = TypeVar("Node")

_RADIX = 8
"""The number of parts, or of rows, that one tree of additions adds."""


def leaf_name(path: Any) -> str:
    """Return a leaf's path as people write it, such as ``['dense']['kernel']``."""
    return jax.tree_util.keystr(path) or "(the whole tree)"


def nodes_of(tree: PyTree, kind: type[Node]) -> list[Node]:
    """Return the nodes of a tree that are of a class, such as the state of one transformation."""
    nodes = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [node for node in nodes if isinstance(node, kind)]


def is_floating(leaf: Any) -> bool:
    """Return whether a leaf holds real floating-point numbers."""
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def refuse_complex(tree: PyTree, what: str) -> None:
    """Raise ValueError if a leaf is complex: neither clipping nor noise is defined for it here."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    for path, leaf in leaves:
        if jnp.issubdtype(jnp.result_type(leaf), jnp.complexfloating):
            raise ValueError(f"{what} {leaf_name(path)} is complex; pass its real and imaginary parts instead")


def wide_dtype(leaf: Any) -> Any:
    """Return the dtype in which a leaf is summed and noised: its own, or float32 where that is wider."""
    return jnp.promote_types(leaf.dtype, jnp.float32)


def rounded_to(x: Array, dtype: Any) -> Array:
    """Return x rounded to the precision of a smaller dtype, in its own dtype.

    A compiler may leave out a conversion to the smaller dtype and back, as that for GPUs does, but not this operation.
    """
    info = jnp.finfo(dtype)
    rounded = jax.lax.reduce_precision(x, info.nexp, info.nmant)
    if dtype != jnp.float16:
        return rounded
    # Gradients in float16 are often subnormal, which the operation above makes zero.
    subnormal = jnp.round(x / info.smallest_subnormal) * info.smallest_subnormal
    return jnp.where(jnp.abs(x) < info.smallest_normal, subnormal, rounded)


def zeros_like_sum(leaf: Array) -> Array:
    """Return what a leaf without a gradient contributes: zeros, in the dtype of a sum where it is floating."""
    dtype = wide_dtype(leaf) if is_floating(leaf) else jnp.result_type(leaf)
    return jnp.zeros(jnp.shape(leaf), dtype)


def leaf_keys(key: Array, tree: PyTree) -> PyTree:
    """Return one key for each leaf, by a digest of its path: a leaf that is added leaves the noise of the others."""
    names = leaf_names(tree)
    return jax.tree.unflatten(jax.tree.structure(tree), keys_of_leaves(key, names))


def keys_of_leaves(key: Array, names: list[str]) -> list[Array]:
    """Return the keys of the leaves of these names, each from a 64-bit digest of its name.

    They are derived together: a derivation is a loop in the compiled program, which a model of many leaves would hold
    many times.
    """
    refuse_key_of_a_loop(key)
    key = as_key(key)
    if not names:
        return []
    digests = np.array([_two_words(name) for name in names], np.uint32)

    def derive(words: Array) -> Array:
        return fold_in(fold_in(key, words[0]), words[1])

    keys = jax.vmap(derive)(jnp.asarray(digests))
    return [keys[i] for i in range(len(names))]


def _two_words(name: str) -> tuple[int, int]:
    """Return a 64-bit digest of a name, as two words."""
    digest = hashlib.sha256(name.encode()).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:8], "little")


def leaf_names(tree: PyTree) -> list[str]:
    """Return the paths of the leaves as texts; ValueError if two of them are the same."""
    paths, _ = jax.tree_util.tree_flatten_with_path(tree)
    names = [leaf_name(path) for path, _ in paths]
    if len(set(names)) != len(names):
        raise ValueError(f"two leaves of the tree have the same path, so they would get the same noise: {names}")
    return names


def broadcast_trainable(trainable: PyTree | None, params: PyTree) -> PyTree:
    """Return ``trainable`` (None or a pytree prefix of bools) as a full tree of bools over ``params``."""
    full = jax.tree.broadcast(True if trainable is None else trainable, params)
    for mark in jax.tree.leaves(full):
        check_flag("a leaf of trainable", mark)
    return full


def sum_error_terms(size: int) -> int:
    """Return the k for which `bounded_sum` of ``size`` terms >= 0 has a relative error of at most k u / (1 - k u)."""
    num_additions = 0
    while size > _RADIX:
        # Each round adds _RADIX parts by a tree; what does not divide evenly is left for the next one.
        size = size // _RADIX + size % _RADIX
        num_additions += _depth(_RADIX)
    return num_additions + _depth(size)


def _depth(size: int) -> int:
    """Return the number of additions that a term goes through in a tree that adds ``size`` terms by pairs."""
    return max(size - 1, 0).bit_length()


def most_sum_error_terms(size: int) -> int:
    """Return a number that is at least `sum_error_terms` of every size up to ``size``; that one is not monotone."""
    num_rounds = 0
    while size > _RADIX:
        num_rounds += 1
        size = max(size // _RADIX + _RADIX - 1, _RADIX)
        if size < 2 * _RADIX:
            # Of these sizes, one more round is enough, and a last tree.
            return _depth(_RADIX) * (num_rounds + 2)
    return _depth(_RADIX) * (num_rounds + 1)


def _identity(terms: Array) -> Array:
    return terms


def _tree_sum(parts: list[Array]) -> Array:
    """Return the sum of parts of one shape, by a tree of additions of pairs."""
    while len(parts) > 1:
        sums = [a + b for a, b in zip(parts[::2], parts[1::2], strict=False)]
        # An odd one out goes to the next level.
        without_partner = parts[2 * len(sums) :]
        parts = sums + without_partner
    return parts[0]


def bounded_sum(terms: Array, of: Callable[[Array], Array] = _identity) -> Array:
    """Return the sum of ``of(terms)`` over the last axis by a tree of additions; see the module docstring.

    The function is applied to the parts and not to the whole, which a compiler would write to memory.

    Args:
      terms: float[..., n] with n >= 1.
      of: an elementwise function.

    Returns:
      float[...].
    """
    while terms.shape[-1] > _RADIX:
        # Add _RADIX parts of equal length, and leave what does not divide evenly for the next round.
        length = terms.shape[-1] // _RADIX
        parts = []
        for i in range(_RADIX):
            part = terms[..., i * length : (i + 1) * length]
            parts.append(of(part))
        sums = _tree_sum(parts)
        rest = terms[..., _RADIX * length :]
        terms = jnp.concatenate([sums, of(rest)], axis=-1) if rest.shape[-1] else sums
        # From here on the terms are values of the function.
        of = _identity
    return _tree_sum([of(terms[..., i]) for i in range(terms.shape[-1])])


def power_of_two(exponent: Array, dtype: Any) -> Array:
    """Return 2**exponent, limited to the dtype's normal range; exact, without the power function of `jnp.ldexp`."""
    info = np.finfo(dtype)
    integer_dtype = jnp.int64 if info.bits == 64 else jnp.int32
    bias = info.maxexp - 1
    limited = jnp.clip(exponent, info.minexp, info.maxexp - 1)
    biased = limited.astype(integer_dtype) + bias
    # The exponent's bits stand before those of the mantissa, which are 0.
    return jax.lax.bitcast_convert_type(biased << info.nmant, dtype)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Return fl(a + b) and the exact error of that addition (Knuth)."""
    total = a + b
    b_part = total - a
    a_part = total - b_part
    return total, (a - a_part) + (b - b_part)


def compensated_add(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
    """Add two unevaluated sums hi + lo."""
    left_hi, left_lo = left
    right_hi, right_lo = right
    total, error = two_sum(left_hi, right_hi)
    return total, error + (left_lo + right_lo)


def _compensated_tree(rows: list[Array]) -> tuple[Array, Array]:
    """Return the sum of rows as an unevaluated sum hi + lo, by a tree of additions of pairs."""
    sums = [(row, jnp.zeros_like(row)) for row in rows]
    while len(sums) > 1:
        next_sums = [compensated_add(a, b) for a, b in zip(sums[::2], sums[1::2], strict=False)]
        # An odd one out goes to the next level.
        without_partner = sums[2 * len(next_sums) :]
        sums = next_sums + without_partner
    return sums[0]


def compensated_row_sum(rows: Array) -> tuple[Array, Array]:
    """Return the sum over the leading axis as an unevaluated sum hi + lo.

    Groups of rows are added by trees and the groups by a loop: a tree over all rows is a program that compilers fuse
    into one with everything recomputed many times. The running pair is renormalised, so that lo stays a rounding error
    of hi.

    Args:
      rows: float[n, ...] with n >= 1, static.

    Returns:
      Two arrays float[...].
    """
    num_groups = rows.shape[0] // _RADIX
    if num_groups < 2:
        return _compensated_tree(list(rows))
    groups = rows[: _RADIX * num_groups].reshape(num_groups, _RADIX, *rows.shape[1:])
    rest = rows[_RADIX * num_groups :]

    def add_group(total: tuple[Array, Array], group: Array) -> tuple[tuple[Array, Array], None]:
        sum_of_group = _compensated_tree(list(group))
        hi, lo = compensated_add(total, sum_of_group)
        return two_sum(hi, lo), None

    zeros = jnp.zeros(rows.shape[1:], rows.dtype)
    total, _ = jax.lax.scan(add_group, (zeros, zeros), groups)
    if not rest.shape[0]:
        return total
    return compensated_add(total, _compensated_tree(list(rest)))


def num_elements(leaf: Any) -> int:
    """Return the number of elements of an array-like leaf."""
    return math.prod(leaf.shape)
