"""Rows that are looked up in a table (embeddings), and rows that are added to one (their derivative)."""

from typing import Any, final

import jax.extend.core as jex
import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._tracing._factors import Sparse
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive


def _table_rows(index: Array, values: Array, mode: Any, num_rows: int) -> Sparse:
    index = index.reshape(-1)
    if mode == lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, num_rows - 1)
    # A negative index is out of range here, where `.at` would count it from the end.
    return Sparse(jnp.where(index < 0, num_rows, index), values)


def _windows_last(values: Array, window: tuple[int, ...]) -> Array:
    others = [axis for axis in range(values.ndim) if axis not in window]
    return jnp.transpose(values, (*others, *window))


@final
class Gather(AbstractPrimitive):
    """``gather`` of whole rows of the first axis."""

    is_lookup = True

    def is_site(self, eqn: Any, operand: int) -> bool:
        numbers, shape = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape
        is_first_axis = numbers.collapsed_slice_dims == (0,) and numbers.start_index_map == (0,)
        is_whole_row = tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])
        return operand == 0 and len(shape) >= 1 and is_first_axis and is_whole_row and not numbers.operand_batching_dims

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
        shape = eqn.invars[operand].aval.shape
        values = _windows_last(s, eqn.params["dimension_numbers"].offset_dims).reshape(-1, *shape[1:])
        return _table_rows(x, values, eqn.params["mode"], shape[0])


@final
class DynamicSlice(AbstractPrimitive):
    """``dynamic_slice`` of one row of the first axis."""

    is_lookup = True

    def is_site(self, eqn: Any, operand: int) -> bool:
        shape = eqn.invars[0].aval.shape
        return operand == 0 and len(shape) >= 1 and tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
        return _table_rows(x, s, lax.GatherScatterMode.CLIP, eqn.invars[operand].aval.shape[0])


@final
class ScatterAdd(AbstractPrimitive):
    """``scatter-add`` of whole rows to a table of zeros, in a derivative rule."""

    is_lookup = True

    def multiplied(self, eqn: Any, made_by: dict[Any, Any]) -> list[Any] | None:
        table, index, rows = eqn.invars
        numbers, shape = eqn.params["dimension_numbers"], eqn.outvars[0].aval.shape
        maker = made_by.get(table)
        if maker is None or maker.primitive.name != "broadcast_in_dim" or not _is_zero(maker.invars[0]):
            return None
        is_whole_row = tuple(rows.aval.shape[axis] for axis in numbers.update_window_dims) == tuple(shape[1:])
        is_first_axis = tuple(numbers.inserted_window_dims) == tuple(numbers.scatter_dims_to_operand_dims) == (0,)
        is_constant = any(isinstance(v, jex.Literal) for v in (index, rows))
        if is_constant or numbers.operand_batching_dims or not (is_whole_row and is_first_axis):
            return None
        dtype = rows.aval.dtype
        return [index, rows] if jnp.issubdtype(dtype, jnp.floating) and dtype.itemsize >= 2 else None

    def product(self, eqn: Any, first: Array, second: Array) -> Sparse:
        shape = eqn.outvars[0].aval.shape
        values = _windows_last(second, eqn.params["dimension_numbers"].update_window_dims).reshape(-1, *shape[1:])
        return _table_rows(first, values, eqn.params["mode"], shape[0])


def _is_zero(atom: Any) -> bool:
    return isinstance(atom, jex.Literal) and not jnp.ndim(atom.val) and atom.val == 0
