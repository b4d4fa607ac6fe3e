"""Sites: the equations in which a weight meets data, one rule for each family of primitive.

A rule says whether it understands an equation y = f(W, x) with the weight at a given operand (`matches`), and what the
gradient of W is, given x and the cotangent s of y (`factor`). Only what has a rule here is kept factored; every other
use of a parameter is differentiated by JAX, one example at a time. To add a rule, write these two functions and put
them into `RULES`; docs/gradients.md has a skeleton.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._factors import Axis, Factor, Full, Outer, Sparse
from gdpjax.clipping._ghost._convolution import MAX_WINDOW, layout_of, patches_of, patches_times


class Rule(NamedTuple):
    """matches(eqn, operand): understood? factor(eqn, operand, x, s): the weight's gradient."""

    matches: Callable[[Any, int], bool]
    factor: Callable[[Any, int, Any, Array], Factor]


class _Roles(NamedTuple):
    """The axes of the weight and of the data of a dot_general."""

    weight_contract: tuple[int, ...]
    weight_batch: tuple[int, ...]
    data_contract: tuple[int, ...]
    data_batch: tuple[int, ...]


def _roles(eqn: Any, operand: int) -> _Roles:
    contract, batch = eqn.params["dimension_numbers"]
    return _Roles(contract[operand], batch[operand], contract[1 - operand], batch[1 - operand])


def _free(ndim: int, *used: tuple[int, ...]) -> list[int]:
    return [axis for axis in range(ndim) if all(axis not in group for group in used)]


def _dot_matches(eqn: Any, operand: int) -> bool:
    return jnp.issubdtype(eqn.invars[1 - operand].aval.dtype, jnp.floating)


def _dot_factor(eqn: Any, operand: int, x: Array, s: Array) -> Outer:
    roles = _roles(eqn, operand)
    weight_ndim = eqn.invars[operand].aval.ndim
    data_free = _free(x.ndim, roles.data_contract, roles.data_batch)
    weight_free = _free(weight_ndim, roles.weight_contract, roles.weight_batch)
    batch = len(roles.weight_batch)
    # y has the batch axes first, then the free axes of the first operand, then those of the second.
    s_data = [batch + i + (0 if operand == 1 else len(weight_free)) for i in range(len(data_free))]
    s_weight = [batch + i + (len(data_free) if operand == 1 else 0) for i in range(len(weight_free))]
    times = math.prod(x.shape[axis] for axis in data_free)
    left = jnp.transpose(x, (*data_free, *roles.data_batch, *roles.data_contract))
    right = jnp.transpose(s, (*s_data, *range(batch), *s_weight))
    axes: list[Axis] = [("r", weight_free.index(axis)) if axis in weight_free else ("b", 0) for axis in
                        range(weight_ndim)]  # fmt: skip
    for kind, group in (("b", roles.weight_batch), ("l", roles.weight_contract)):
        for position, axis in enumerate(group):
            axes[axis] = (kind, position)
    return Outer(
        left.reshape(times, *left.shape[len(data_free) :]), right.reshape(times, *right.shape[len(data_free) :]),
        tuple(axes),
    )  # fmt: skip


def _conv_matches(eqn: Any, operand: int) -> bool:
    window = [eqn.invars[1].aval.shape[axis] for axis in eqn.params["dimension_numbers"].rhs_spec[2:]]
    return operand == 1 and eqn.params["batch_group_count"] == 1 and math.prod(window) <= MAX_WINDOW


def _conv_factor(eqn: Any, operand: int, x: Array, s: Array) -> Factor:
    layout, weight = layout_of(eqn), eqn.invars[operand].aval
    numbers = eqn.params["dimension_numbers"]
    window = tuple(weight.shape[axis] for axis in layout.to_kernel[:-2])
    s_moved = jnp.transpose(s, layout.to_output)
    if math.prod(s_moved.shape[:-1]) > 1 or layout.groups > 1:
        return Full(patches_times(layout, window, x, s))
    axes: list[Axis] = [("r", 0)] * len(weight.shape)
    axes[numbers.rhs_spec[1]] = ("l", len(window))
    for position, axis in enumerate(numbers.rhs_spec[2:]):
        axes[axis] = ("l", position)
    patches = patches_of(layout, window, x)
    return Outer(patches.reshape(1, *window, -1), s_moved.reshape(1, -1), tuple(axes))


def _gather_matches(eqn: Any, operand: int) -> bool:
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
    return (
        operand == 0 and len(shape) >= 1 and numbers.collapsed_slice_dims == (0,) and numbers.start_index_map == (0,)
        and not numbers.operand_batching_dims and tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])
    )  # fmt: skip


def _gather_factor(eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
    numbers, shape = eqn.params["dimension_numbers"], eqn.invars[operand].aval.shape
    slices = numbers.offset_dims
    s = jnp.transpose(s, (*(axis for axis in range(s.ndim) if axis not in slices), *slices))
    index = x.reshape(-1)
    if eqn.params["mode"] == lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, shape[0] - 1)
    # A negative index is out of range here, where `.at` would count it from the end.
    return Sparse(jnp.where(index < 0, shape[0], index), s.reshape(-1, *shape[1:]))


def _slice_matches(eqn: Any, operand: int) -> bool:
    shape = eqn.invars[0].aval.shape
    return operand == 0 and len(shape) >= 1 and tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])


def _slice_factor(eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
    return Sparse(jnp.clip(x.reshape(1), 0, eqn.invars[operand].aval.shape[0] - 1), s)


RULES: dict[str, Rule] = {
    "dot_general": Rule(_dot_matches, _dot_factor),
    "conv_general_dilated": Rule(_conv_matches, _conv_factor),
    "gather": Rule(_gather_matches, _gather_factor),
    "dynamic_slice": Rule(_slice_matches, _slice_factor),
}
"""Primitive name to rule."""

TABLES = frozenset({"gather", "dynamic_slice", "scatter-add"})
"""Those whose factor is `Sparse`; a scatter-add is the rule of a custom derivative."""


def matches(eqn: Any, operand: int) -> bool:
    """Whether a rule keeps the gradient of this operand factored."""
    rule = RULES.get(eqn.primitive.name)
    return rule is not None and rule.matches(eqn, operand)


def data_operand(eqn: Any, operand: int) -> int:
    """The operand whose value the rule wants: the other one, or the (first) index."""
    return 1 - operand if len(eqn.invars) == 2 else 1
