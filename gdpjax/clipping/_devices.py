"""A batch that is spread over a mesh of devices.

    placement = placement_of(batch, batch_size)   # None on one device
    sums, rows = sum_over_devices(placement, sum_local_rows, arrays, is_batched)

Every device sums its own rows, and one all-reduce adds those sums. The program is the same on every device
(`jax.shard_map`), over all the axes of the mesh that the batch is on. Parameters are gathered where they are sharded
(FSDP), the per-example work needs no communication, and the arrays that are reduced are float32 or wider and as large
as the parameters. Keys depend on an example's position in the whole batch.

An Explicit mesh shows which axes the batch is on. Inside jit only the mesh itself is known of an Auto mesh, and then
all of its axes are used.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
from jax.sharding import AxisType, PartitionSpec

from gdpjax._core.checks import is_traced
from gdpjax._core.types import PyTree


class Placement(NamedTuple):
    """The devices on which a batch is.

    Attributes:
      mesh: the mesh of devices.
      axes: the axes of the mesh over which the rows are spread.
    """

    mesh: Any
    axes: tuple[str, ...]

    @property
    def num_devices(self) -> int:
        """The number of parts of the batch."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)


def placement_of(batch: PyTree, batch_size: int) -> Placement | None:
    """Return where a batch is, or None if it is not spread over devices.

    A batch that the devices do not divide evenly, and one inside a shard_map of the caller's, are left as they are.
    """
    for leaf in jax.tree.leaves(batch):
        sharding: Any = getattr(jax.typeof(leaf), "sharding", None)
        mesh: Any = getattr(sharding, "mesh", None)
        if mesh is None or mesh.empty or mesh.size == 1:
            continue
        if any(kind == AxisType.Manual for kind in mesh.axis_types):
            return None

        placement = Placement(mesh, _axes_of_rows(mesh, sharding, leaf))
        if placement.axes:
            return placement if batch_size % placement.num_devices == 0 else None
    return None


def _axes_of_rows(mesh: Any, sharding: Any, leaf: Any) -> tuple[str, ...]:
    """Return the axes of the mesh that the first axis of a leaf is on."""
    # The type of an array has the axes of an Explicit mesh; an array that is not traced knows its sharding besides.
    specs = [sharding.spec]
    if not is_traced(leaf):
        specs.append(getattr(leaf.sharding, "spec", ()))
    for spec in specs:
        first = next(iter(spec), None)
        if isinstance(first, str):
            return (first,)
        if first is not None:
            return tuple(first)

    # Of a traced array on an Auto mesh nothing more is known.
    if not is_traced(leaf):
        return ()
    axes = []
    for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True):
        if kind == AxisType.Auto:
            axes.append(axis)
    return tuple(axes)


def sum_over_devices(
    placement: Placement,
    sum_local_rows: Callable[..., Any],
    arrays: Sequence[Any],
    is_batched: Sequence[bool],
) -> Any:
    """Sum the rows of every device, and add the sums over the devices.

    Args:
      placement: where the batch is.
      sum_local_rows: from the arrays, with the rows of one device, to (a list of sums, a tree of per-row values).
      arrays: its arguments.
      is_batched: for each of them, whether it has a leading batch axis; the others are gathered.

    Returns:
      The sums over all devices, and the per-row values, which stay spread.

    Raises:
      NotImplementedError: the loss closes over an array on the mesh; pass it as an argument.
    """
    row_spec = PartitionSpec(placement.axes)
    in_specs = tuple(row_spec if batched else PartitionSpec() for batched in is_batched)
    is_explicit = any(kind == AxisType.Explicit for kind in placement.mesh.axis_types)

    def on_one_device(*arrays: Any) -> Any:
        sums, rows = sum_local_rows(*arrays)
        return [jax.lax.psum(leaf, placement.axes) for leaf in sums], rows

    def on_all_devices(*arrays: Any) -> Any:
        if is_explicit:
            with jax.sharding.use_abstract_mesh(placement.mesh):
                arrays = tuple(jax.sharding.reshard(x, spec) for x, spec in zip(arrays, in_specs, strict=True))
        # With check_vma JAX would add the gradients inside up over the devices, before they are clipped.
        mapped = jax.shard_map(
            on_one_device,
            mesh=placement.mesh,
            in_specs=in_specs,
            out_specs=(PartitionSpec(), row_spec),
            check_vma=False,
        )
        return mapped(*arrays)

    return jax.jit(on_all_devices)(*arrays)
