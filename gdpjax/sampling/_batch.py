"""One batch on the device, and the one function that takes the rows of a batch from the data.

    *rows, is_padding = batches.sample(key, step).take(x, y)
    clipped_sum = grad_fn(params, *rows, is_padding=is_padding)

Batches are drawn from ``num_examples`` rows, a public number that the data may fall short of. JAX reads the last row in
place of one that does not exist, which would add this example many times: `take_rows` marks such rows as padding.
"""

import dataclasses
import functools
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Bool, Int

from gdpjax._core.arguments import check_rows
from gdpjax._core.types import Array, PyTree


@final
@functools.partial(
    jax.tree_util.register_dataclass,
    data_fields=["indices", "is_padding", "count"],
    meta_fields=["num_examples"],
)
@dataclasses.dataclass(frozen=True, eq=False)
class Batch:
    """One batch: which rows, which of them are padding, and how many examples were drawn (private).

    ``count > indices.shape[0]`` means that the batch did not fit. Then every row is padding, so that a step on it adds
    noise to nothing; that is the failure whose probability `overflow_probability` bounds and a ledger must hold.

    It can be unpacked and indexed as the tuple ``indices, is_padding, count``.

    Attributes:
      indices: int32[capacity], the rows of the batch, 0 in slots of padding.
      is_padding: bool[capacity].
      count: int32[], the number of examples that were drawn.
      num_examples: of how many rows they were drawn, a static number.
    """

    indices: Int[Array, "*steps capacity"]
    is_padding: Bool[Array, "*steps capacity"]
    count: Int[Array, "*steps"]
    num_examples: int

    def __getitem__(self, place: Any) -> Any:
        return (self.indices, self.is_padding, self.count)[place]

    def take(self, *data: PyTree) -> tuple[Any, ...]:
        """Return the rows of the batch, inside or outside jit: ``*rows, is_padding``.

        Rows of padding hold some row of the data, and ``is_padding`` marks them; also those that the data do not have.

        Args:
          data: arrays, or pytrees of arrays, with one row per example, at most ``num_examples`` of them.

        Returns:
          The rows of each argument ``[capacity, ...]``, then bool[capacity]: the mask for ``grad_fn(params, *rows,
          is_padding=is_padding)``.

        Raises:
          ValueError: unequal numbers of rows, none, or more than ``num_examples``.

        >>> batch = Batch(jnp.array([1, 4]), jnp.array([False, False]), jnp.int32(2), num_examples=5)
        >>> x, is_padding = batch.take(jnp.array([10.0, 11.0, 12.0]))
        >>> x[0].item(), is_padding.tolist()
        (11.0, [False, True])
        """
        return take_rows(self.indices, self.is_padding, self.num_examples, data)


def take_rows(indices: Any, is_padding: Any, num_examples: int, data: tuple[PyTree, ...]) -> tuple[Any, ...]:
    """Return the rows of each part of ``data``, and the mask of padding; see `Batch.take`.

    With indices of NumPy, arrays that are not of JAX are read on the host.
    """
    data, num_rows = check_rows(data)
    if not 1 <= num_rows <= num_examples:
        raise ValueError(
            f"the batches are drawn from num_examples={num_examples} rows, and the data have {num_rows}: num_examples "
            "is the public maximum, which no data set may exceed. A data set without examples is one row of zeros, "
            "sampled with num_valid=0"
        )

    # Rows that the data do not have are padding, and read row 0.
    if num_rows < num_examples:
        exists = indices < num_rows
        is_padding = is_padding | ~exists
        indices = indices * exists

    def rows_of(array: Any) -> Any:
        if isinstance(indices, np.ndarray) and not isinstance(array, jax.Array):
            return np.asarray(array)[indices]
        return _spread_rows(jnp.asarray(array), indices)

    return *jax.tree.map(rows_of, data), is_padding


def _spread_rows(array: Array, indices: Array) -> Array:
    """Return array[indices], spread over the devices of the mesh that the array is on."""
    sharding: Any = jax.typeof(array).sharding
    mesh = sharding.mesh
    # On an Auto mesh `clipped_grad` spreads the rows.
    if not mesh.explicit_axes:
        return array[indices]
    with jax.sharding.use_abstract_mesh(mesh):
        whole = jax.sharding.reshard(array, PartitionSpec())
        return jax.sharding.reshard(whole[indices], PartitionSpec(mesh.explicit_axes))
