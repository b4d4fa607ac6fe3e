"""Rows that are looked up in a table (embeddings).

The gradient of the table is `Sparse`: a row that was looked up gets the cotangent of the output that it became.
"""

from collections.abc import Sequence
from typing import Any, final

import jax.numpy as jnp
from jax import lax

from gdpjax._core.types import Array
from gdpjax.clipping._forms import Sparse
from gdpjax.clipping._tracing.primitives._abstract import AbstractPrimitive


@final
class Gather(AbstractPrimitive):
    """``gather`` of whole rows of the first axis."""

    is_lookup = True

    def is_site(self, eqn: Any, operand: int) -> bool:
        numbers = eqn.params["dimension_numbers"]
        shape = eqn.invars[0].aval.shape
        if operand != 0 or not shape or numbers.operand_batching_dims:
            return False
        # Each index names a place along the first axis, and takes all entries along the others.
        takes_first_axis = numbers.collapsed_slice_dims == (0,) and numbers.start_index_map == (0,)
        takes_whole_rows = tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])
        return takes_first_axis and takes_whole_rows

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
        shape = eqn.invars[operand].aval.shape
        # In s, the axes of the rows are the offset_dims. The other axes are those of the indices.
        values = _axes_last(s, eqn.params["dimension_numbers"].offset_dims)
        return _table_rows(x, values, eqn.params["mode"], shape)


@final
class DynamicSlice(AbstractPrimitive):
    """``dynamic_slice`` of one row of the first axis."""

    is_lookup = True

    def is_site(self, eqn: Any, operand: int) -> bool:
        shape = eqn.invars[0].aval.shape
        if operand != 0 or not shape:
            return False
        return tuple(eqn.params["slice_sizes"]) == (1, *shape[1:])

    def factor(self, eqn: Any, operand: int, x: Array, s: Array) -> Sparse:
        # A slice that would pass the end of the table starts earlier, so the index counts as the last row.
        shape = eqn.invars[operand].aval.shape
        return _table_rows(x, s, lax.GatherScatterMode.CLIP, shape)


def _axes_last(values: Array, last: Sequence[int]) -> Array:
    """Return the same array with these axes last, in this order."""
    others = [axis for axis in range(values.ndim) if axis not in last]
    return jnp.transpose(values, (*others, *last))


def _table_rows(index: Array, values: Array, mode: Any, shape: tuple[int, ...]) -> Sparse:
    """Return the gradient of a table of this shape.

    Args:
      index: which rows of the table, in any shape.
      values: the gradient of each of these rows, [*shape of index, *shape of a row].
      mode: what happens to an index out of range. With CLIP it counts as the nearest row, otherwise it is dropped.
      shape: the shape of the table.
    """
    num_rows = shape[0]
    values = values.reshape(-1, *shape[1:])
    index = index.reshape(-1)
    if mode == lax.GatherScatterMode.CLIP:
        index = jnp.clip(index, 0, num_rows - 1)
    # Here a negative index is out of range. Later `.at` would count it from the end, so move it past the end.
    index = jnp.where(index < 0, num_rows, index)
    return Sparse(index, values)
