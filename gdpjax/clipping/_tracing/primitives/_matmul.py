"""Matrix products: the layers of most models, and the product of two parameters (merged LoRA, W + A B)."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import jax.extend.core as jex
import jax.numpy as jnp

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import AbstractFactor, Outer
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive, is_floating_output
from gdpjax.clipping._weight_axes import Axis


class _Roles(NamedTuple):
    """The axes of the weight and of the data of a product: contracted ones, blocks, and the others."""

    weight_contract: tuple[int, ...]
    weight_blocks: tuple[int, ...]
    weight_free: list[int]
    data_contract: tuple[int, ...]
    data_blocks: tuple[int, ...]
    data_free: list[int]


def _free(ndim: int, *used: Sequence[int]) -> list[int]:
    return [axis for axis in range(ndim) if all(axis not in group for group in used)]


def _roles(eqn: Any, operand: int) -> _Roles:
    contract, blocks = eqn.params["dimension_numbers"]
    other = 1 - operand
    return _Roles(
        contract[operand],
        blocks[operand],
        _free(eqn.invars[operand].aval.ndim, contract[operand], blocks[operand]),
        contract[other],
        blocks[other],
        _free(eqn.invars[other].aval.ndim, contract[other], blocks[other]),
    )


@final
class Matmul(AbstractPrimitive):
    """``dot_general``, with any contracted and batched axes."""

    def is_site(self, eqn: Any, operand: int) -> bool:
        return jnp.issubdtype(eqn.invars[1 - operand].aval.dtype, jnp.floating)

    def num_products(self, eqn: Any, operand: int) -> int:
        shape = eqn.invars[1 - operand].aval.shape
        return math.prod(shape[axis] for axis in _roles(eqn, operand).data_free)

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Outer:
        roles = _roles(eqn, operand)
        num_blocks, num_data, num_weight = len(roles.weight_blocks), len(roles.data_free), len(roles.weight_free)
        times = math.prod(x.shape[axis] for axis in roles.data_free)

        # The output has the blocks first, then the free axes of the first operand, then those of the second.
        data_first = num_blocks + (0 if operand == 1 else num_weight)
        weight_first = num_blocks + (num_data if operand == 1 else 0)
        s_data = range(data_first, data_first + num_data)
        s_weight = range(weight_first, weight_first + num_weight)
        left = jnp.transpose(x, (*roles.data_free, *roles.data_blocks, *roles.data_contract))
        right = jnp.transpose(s, (*s_data, *range(num_blocks), *s_weight))

        axes: list[Axis] = [("r", 0)] * eqn.invars[operand].aval.ndim
        for kind, group in (("b", roles.weight_blocks), ("l", roles.weight_contract), ("r", roles.weight_free)):
            for position, axis in enumerate(group):
                axes[axis] = (kind, position)
        return Outer(
            left.reshape(times, *left.shape[num_data:]), right.reshape(times, *right.shape[num_data:]), tuple(axes)
        )

    def is_linear(self, eqn: Any, operand: int) -> bool:
        return is_floating_output(eqn)

    def values_needed(self, eqn: Any, operand: int) -> list[Any]:
        return [eqn.invars[1 - operand]]

    def pull_back(self, factor: AbstractFactor, eqn: Any, operand: int, multiplier: Array | None) -> AbstractFactor:
        assert multiplier is not None
        moved = _through_product(factor, eqn, operand, multiplier) if isinstance(factor, Outer) else None
        return super().pull_back(factor, eqn, operand, multiplier) if moved is None else moved

    def multiplied(self, eqn: Any, made_by: dict[Any, Any]) -> list[Any] | None:
        return None if any(isinstance(v, jex.Literal) for v in eqn.invars) else list(eqn.invars)

    def product(self, eqn: Any, first: Array, second: Array) -> Outer:
        contract, blocks = eqn.params["dimension_numbers"]
        factors = []
        axes: list[Axis] = [("b", position) for position in range(len(blocks[0]))]
        for number, (kind, x) in enumerate((("l", first), ("r", second))):
            free = _free(x.ndim, contract[number], blocks[number])
            moved = jnp.transpose(x, (*contract[number], *blocks[number], *free))
            num_contracted = len(contract[number])
            times = math.prod(moved.shape[:num_contracted])
            factors.append(moved.reshape(times, *moved.shape[num_contracted:]))
            axes += [(kind, position) for position in range(len(free))]
        left, right = factors
        return Outer(left, right, tuple(axes))


def _through_product(outer: Outer, eqn: Any, operand: int, other: Array) -> Outer | None:
    """Return the gradient of A from that of W = A B: left (x) (right B^T).

    B's own axes of W must lie in one factor, in which A has none.
    """
    contract, blocks = eqn.params["dimension_numbers"]
    if blocks[0] or outer.of_kind("b"):
        return None
    ndim = len(eqn.invars[operand].aval.shape)
    ours, theirs = _free(ndim, contract[operand]), _free(jnp.ndim(other), contract[1 - operand])

    # W has the free axes of its first operand before those of the second.
    our_first, their_first = (0, len(ours)) if operand == 0 else (len(theirs), 0)
    our_axes = range(our_first, our_first + len(ours))
    their_axes = range(their_first, their_first + len(theirs))
    kinds = {outer.axes[axis][0] for axis in their_axes}
    if len(kinds) != 1 or any(outer.axes[axis][0] in kinds for axis in our_axes):
        return None
    (kind,) = kinds

    # Contract that factor with B; what remains are the contracted axes of B, in order.
    factor = outer.left if kind == "l" else outer.right
    places = [1 + outer.axes[axis][1] for axis in their_axes]
    moved = jnp.tensordot(factor, other, axes=(places, theirs))
    remaining = sorted(contract[1 - operand])
    axes: list[Axis] = [("r", 0)] * ndim
    for axis, place in zip(ours, our_axes, strict=True):
        axes[axis] = outer.axes[place]
    for mine, its in zip(contract[operand], contract[1 - operand], strict=True):
        axes[mine] = (kind, remaining.index(its))
    left, right = (moved, outer.right) if kind == "l" else (outer.left, moved)
    return Outer(left, right, tuple(axes))
