"""Steps: linear equations between a parameter and the weight that it becomes, and how gradients go back through them.

A parameter may be cast, transposed, reshaped, split, concatenated, scaled, added to something or multiplied by another
parameter (merged LoRA, W + A B) before data meets it. Pulling the *factors* of the gradient back costs next to nothing
and forms no gradient of the weight: a slice cuts a factor, a product with B multiplies the right factor by B^T, a
scale for each column scales a factor. The gradient of such a scale itself is the outer product times the matrix that
was scaled, entry by entry, added up over the columns: a product of the left factor with that matrix. Where factors
cannot follow (a reshape across them), the gradient is formed and JAX's transpose of the equation is used.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from gdpjax._core.trees import wide_dtype
from gdpjax._core.types import Array
from gdpjax.clipping._factors import (
    Axis,
    Full,
    Outer,
    Passing,
    Weighted,
    full_gradient,
    in_order,
    summed,
    weight_axis,
)
from gdpjax.clipping._ghost._jaxpr import evaluate

UNARY = frozenset(
    {"convert_element_type", "transpose", "squeeze", "reshape", "broadcast_in_dim", "expand_dims", "slice", "rev",
    "neg",
     "copy", "copy_p", "reduce_precision", "pad", "sharding_constraint"}
)  # fmt: skip
LINEAR = frozenset({"concatenate", "add", "sub", "add_any"})
BILINEAR = frozenset({"mul", "dot_general"})
SCALES = frozenset({"mul", "div"})
"""Whose operands may be smaller than the output, along axes of length one."""
ELEMENTWISE = LINEAR - {"concatenate"} | SCALES | frozenset(
    {"neg", "copy", "copy_p", "convert_element_type", "reduce_precision", "sharding_constraint", "select_n", "clamp",
    "max", "min", "abs", "sign", "sqrt", "rsqrt", "cbrt", "square", "integer_pow", "pow", "exp", "exp2", "log", "expm1",
    "log1p", "tanh", "logistic", "erf", "sin", "cos"}
)  # fmt: skip
"""Of which an entry of the output depends on the same entry of the operands alone, those of length one spread out."""


def passes(eqn: Any, operand: int) -> bool:
    """Whether factors can go back through this equation, given the values of its operands.

    It is linear in the operand, for any fixed values of the others; or a quotient by it.
    """
    name = eqn.primitive.name
    if not jnp.issubdtype(eqn.outvars[0].aval.dtype, jnp.floating):
        return False
    if name in SCALES or name in ("concatenate", "dot_general"):
        return len(eqn.outvars) == 1
    if name in LINEAR:
        return len(eqn.outvars) == 1 and eqn.invars[operand].aval.shape == eqn.outvars[0].aval.shape
    return name in UNARY and operand == 0 and len(eqn.outvars) == 1


def needs_other(eqn: Any) -> bool:
    """Whether the step needs values: `wanted`, from which `other` makes what `pulled_back` takes."""
    return eqn.primitive.name in BILINEAR or eqn.primitive.name in SCALES


def wanted(eqn: Any, operand: int) -> list[Any]:
    """The operands whose values the step needs: the other one, or both."""
    if not needs_other(eqn):
        return []
    return list(eqn.invars) if eqn.primitive.name == "div" and operand == 1 else [eqn.invars[1 - operand]]


def other(eqn: Any, operand: int, values: Sequence[Array]) -> Array:
    """What the cotangent is multiplied by, given the values of what is `wanted`."""
    if eqn.primitive.name != "div":
        return jnp.asarray(values[0])
    *above, below = (jnp.asarray(value) for value in values)
    below = below.astype(wide_dtype(below))
    return -above[0].astype(below.dtype) / below / below if above else 1 / below


def pulled_back(factor: Passing, eqn: Any, operand: int, other: Array | None) -> Passing:
    """The gradient of the operand, given that of the equation's output."""
    rule = _OUTER.get(eqn.primitive.name)
    if isinstance(factor, Outer) and rule is not None:
        moved = rule(factor, eqn, operand, other)
        if moved is not None:
            return moved
    if not isinstance(factor, Outer) and eqn.primitive.name == "convert_element_type":
        return factor
    if isinstance(factor, Weighted) and eqn.primitive.name == "broadcast_in_dim":
        return Full(_added_up(factor, eqn))
    if eqn.primitive.name in SCALES:
        assert other is not None
        return Full(_scaled_full(full_gradient(factor, eqn.outvars[0].aval.shape), eqn.invars[operand].aval, other))
    return Full(_transposed(full_gradient(factor, eqn.outvars[0].aval.shape), eqn, operand, other))


def _transposed(gradient: Array, eqn: Any, operand: int, other: Array | None) -> Array:
    """JAX's own transpose of the equation with respect to one operand, in the dtype of the gradient."""
    aval = eqn.invars[operand].aval
    if eqn.primitive.name in ("convert_element_type", "reduce_precision"):
        return gradient.reshape(aval.shape)

    def apply(value: Array) -> Array:
        values = [
            value if i == operand
            else jnp.zeros(v.aval.shape, v.aval.dtype) if other is None else jnp.asarray(other)
            for i, v in enumerate(eqn.invars)
        ]  # fmt: skip
        return evaluate(eqn, values)[0]

    out = eqn.outvars[0].aval
    (back,) = jax.linear_transpose(apply, jax.ShapeDtypeStruct(aval.shape, aval.dtype))(gradient.astype(out.dtype))
    return back


def _scaled_full(gradient: Array, aval: Any, other: Array) -> Array:
    """The gradient of an operand of a product, added up over the axes along which it was spread."""
    wide = gradient.astype(wide_dtype(gradient))
    return _unspread(wide * other.astype(wide.dtype), aval.shape)


def _unspread(gradient: Array, shape: tuple[int, ...]) -> Array:
    if not shape:
        return gradient.sum()
    axes = tuple(axis for axis, size in enumerate(shape) if size != gradient.shape[axis])
    return gradient.sum(axis=axes, keepdims=True) if axes else gradient


def _added_up(factor: Weighted, eqn: Any) -> Array:
    """The gradient of what was spread to the shape of an outer product times a matrix."""
    shape, to = eqn.invars[0].aval.shape, eqn.params["broadcast_dimensions"]
    kept = [axis for axis, size in zip(to, shape, strict=True) if size > 1]
    return summed(factor, kept).reshape(shape)


def _follow(outer: Outer, axes: tuple[Axis, ...]) -> Outer:
    return Outer(outer.left, outer.right, axes)


def _cast(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer:
    return outer


def _transpose(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer:
    axes: list[Axis] = [("r", 0)] * len(outer.axes)
    for axis, source in enumerate(eqn.params["permutation"]):
        axes[source] = outer.axes[axis]
    return _follow(outer, tuple(axes))


def regrouped(outer: Outer, old: tuple[int, ...], new: tuple[int, ...]) -> Outer | None:
    """The weight has shape ``new``; make the factors those of its reshape to ``old``, if no group mixes the factors."""
    groups = _common_groups(new, old)
    if groups is None:
        return None
    outer = in_order(outer)
    axes: list[Axis] = []
    shapes: dict[str, list[int]] = {"b": [], "l": [], "r": []}
    for ours, theirs in groups:
        kinds = {outer.axes[axis][0] for axis in ours} or {"r"}
        if len(kinds) > 1:
            return None
        (kind,) = kinds
        for axis in theirs:
            axes.append((kind, len(shapes[kind])))
            shapes[kind].append(old[axis])
    times = outer.left.shape[0]
    left = outer.left.reshape(times, *shapes["b"], *shapes["l"])
    return Outer(left, outer.right.reshape(times, *shapes["b"], *shapes["r"]), tuple(axes))


def _common_groups(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[list[int], list[int]]] | None:
    """Cut two shapes of equal size into the shortest groups of consecutive axes of equal size."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(a) or j < len(b):
        first, second = list(range(i, min(i + 1, len(a)))), list(range(j, min(j + 1, len(b))))
        i, j = i + len(first), j + len(second)
        while (ours := math.prod(a[k] for k in first)) != (theirs := math.prod(b[k] for k in second)):
            if (ours < theirs and i == len(a)) or (theirs < ours and j == len(b)):
                return None
            if ours < theirs:
                first, i = [*first, i], i + 1
            else:
                second, j = [*second, j], j + 1
        groups.append((first, second))
    return groups


def _reshape(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer | None:
    if eqn.primitive.name == "reshape" and eqn.params["dimensions"] is not None:
        return None
    return regrouped(outer, eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape)


def _broadcast(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer | None:
    old, new = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    kept = eqn.params["broadcast_dimensions"]
    only_adds_ones = tuple(new[axis] for axis in kept) == old and tuple(sorted(kept)) == tuple(kept)
    if not only_adds_ones or any(size != 1 for axis, size in enumerate(new) if axis not in kept):
        return None
    return regrouped(outer, old, new)


def _each_factor(outer: Outer, axis: int, change: Callable[[Array, int], Array]) -> Outer:
    in_left, in_right, place = weight_axis(outer, axis)
    left = change(outer.left, place) if in_left else outer.left
    return Outer(left, change(outer.right, place) if in_right else outer.right, outer.axes)


def _slice(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer | None:
    shape, strides = eqn.invars[0].aval.shape, eqn.params["strides"]
    if strides is not None and any(step != 1 for step in strides):
        return None
    for axis, (start, stop) in enumerate(zip(eqn.params["start_indices"], eqn.params["limit_indices"], strict=True)):
        if (start, stop) != (0, shape[axis]):
            pad = lambda x, place, lo=start, hi=shape[axis] - stop: lax.pad(  # noqa: E731
                x, jnp.zeros((), x.dtype), [(lo, hi, 0) if i == place else (0, 0, 0) for i in range(x.ndim)]
            )
            outer = _each_factor(outer, axis, pad)
    return outer


def _concatenate(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer:
    axis = eqn.params["dimension"]
    sizes = [v.aval.shape[axis] for v in eqn.invars]
    start = list(itertools.accumulate(sizes, initial=0))[operand]
    cut = lambda x, place: lax.slice_in_dim(x, start, start + sizes[operand], axis=place)  # noqa: E731
    return _each_factor(outer, axis, cut)


def _rev(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer:
    for axis in eqn.params["dimensions"]:
        outer = _each_factor(outer, axis, lambda x, place: jnp.flip(x, place))
    return outer


def _scaled(outer: Outer, scale: Array) -> Outer:
    right = outer.right.astype(wide_dtype(outer.right))  # a scale may lie outside the range of half precision
    return Outer(outer.left, right * scale.astype(right.dtype), outer.axes)


def _neg(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer:
    return Outer(outer.left, -outer.right, outer.axes)


def _sub(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer:
    return outer if operand == 0 else _neg(outer, eqn, operand, other)


def _scale(outer: Outer, eqn: Any, operand: int, other: Any) -> Passing:
    """A product with ``other``, of which axes are left out (of length one) where its entries are all the same."""
    shape, own = eqn.outvars[0].aval.shape, eqn.invars[operand].aval.shape
    other = jnp.asarray(other)
    if own == shape and not other.ndim:
        return _scaled(outer, other)
    kinds = {outer.axes[axis][0] for axis, size in enumerate(other.shape) if size > 1}
    if own == shape and ("l" not in kinds or "r" not in kinds):
        return _scaled_by_axes(outer, other, "l" if "l" in kinds else "r")
    weighted = Weighted(outer, jnp.broadcast_to(other, shape))
    if own == shape:
        return weighted
    return Full(summed(weighted, [axis for axis, size in enumerate(own) if size > 1]).reshape(own))


def _scaled_by_axes(outer: Outer, scale: Array, kind: str) -> Outer:
    """The factor of that kind times entries that lie along its axes alone."""
    factor = outer.left if kind == "l" else outer.right
    order = [*outer.of_kind("b"), *outer.of_kind(kind)]
    along = jnp.transpose(scale, (*order, *(axis for axis in range(scale.ndim) if axis not in order)))
    scaled = factor.astype(wide_dtype(factor)) * along.reshape(along.shape[: len(order)])
    return Outer(scaled, outer.right, outer.axes) if kind == "l" else Outer(outer.left, scaled, outer.axes)


def _product(outer: Outer, eqn: Any, operand: int, other: Any) -> Outer | None:
    """W = A B: the gradient of A is left (x) (right B^T), if B's own axes of W are in one factor and A's are not."""
    (contract, batch), ndim = eqn.params["dimension_numbers"], len(eqn.invars[operand].aval.shape)
    if batch[0] or outer.of_kind("b"):
        return None
    ours = [axis for axis in range(ndim) if axis not in contract[operand]]
    theirs = [axis for axis in range(jnp.ndim(other)) if axis not in contract[1 - operand]]
    first = 0 if operand == 0 else len(theirs)
    our_axes = [first + i for i in range(len(ours))]
    their_axes = [i + (len(ours) if operand == 0 else 0) for i in range(len(theirs))]
    kinds = {outer.axes[axis][0] for axis in their_axes}
    if len(kinds) != 1 or any(outer.axes[axis][0] in kinds for axis in our_axes):
        return None
    (kind,) = kinds
    factor = outer.left if kind == "l" else outer.right
    order = [1 + outer.axes[axis][1] for axis in their_axes]
    moved = jnp.tensordot(factor, jnp.asarray(other), axes=(order, theirs))  # [T, contracted axes of B, in order]
    axes: list[Axis] = [("r", 0)] * ndim
    for axis, place in zip(ours, our_axes, strict=True):
        axes[axis] = outer.axes[place]
    in_order = sorted(contract[1 - operand])
    for mine, its in zip(contract[operand], contract[1 - operand], strict=True):
        axes[mine] = (kind, in_order.index(its))
    left, right = (moved, outer.right) if kind == "l" else (outer.left, moved)
    return Outer(left, right, tuple(axes))


_OUTER: dict[str, Callable[[Outer, Any, int, Any], Passing | None]] = {
    "convert_element_type": _cast, "copy": _cast, "copy_p": _cast, "reduce_precision": _cast,
    "sharding_constraint": _cast, "add": _cast, "add_any": _cast, "sub": _sub, "neg": _neg, "mul": _scale,
    "div": _scale, "transpose": _transpose, "reshape": _reshape, "squeeze": _reshape, "expand_dims": _reshape,
    "broadcast_in_dim": _broadcast, "slice": _slice, "concatenate": _concatenate, "rev": _rev, "dot_general": _product,
}  # fmt: skip
