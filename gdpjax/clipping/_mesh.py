"""A batch that is spread over a mesh of devices: every device sums its own rows, and one all-reduce adds those sums.

The program is the same on every device (`jax.shard_map`), over all the axes of the mesh that the batch is on:
parameters are gathered where they are sharded (FSDP), the per-example work needs no communication, and what is reduced
is float32 or wider and of the size of the parameters. Keys depend on an example's position in the whole batch. An
Explicit mesh says which axes the batch is on; of an Auto mesh inside jit only the mesh is known, and all of its axes
are used.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax.sharding import AxisType, PartitionSpec

from gdpjax._core.checks import is_traced
from gdpjax._core.types import PyTree


class Spread(NamedTuple):
    """The axes of the mesh over which a batch is spread."""

    mesh: Any
    axes: tuple[str, ...]

    @property
    def devices(self) -> int:
        """Number of parts of the batch."""
        return math.prod(self.mesh.shape[axis] for axis in self.axes)


def spread_of(batch: PyTree, batch_size: int) -> Spread | None:
    """How the batch is spread over devices, or None: on one device, unevenly, or inside somebody's shard_map."""
    for leaf in jax.tree.leaves(batch):
        sharding: Any = getattr(jax.typeof(leaf), "sharding", None)
        mesh: Any = getattr(sharding, "mesh", None)
        if mesh is None or mesh.empty or mesh.size == 1:
            continue
        if any(kind == AxisType.Manual for kind in mesh.axis_types):
            return None
        spread = Spread(mesh, _axes(mesh, sharding, leaf))
        if spread.axes:
            return spread if batch_size % spread.devices == 0 else None
    return None


def _axes(mesh: Any, sharding: Any, leaf: Any) -> tuple[str, ...]:
    """The axes of the mesh that the first axis of a leaf is on; inside jit those of an Auto mesh, all of them."""
    traced = is_traced(leaf)
    for spec in (sharding.spec, () if traced else getattr(leaf.sharding, "spec", ())):
        first = next(iter(spec), None)
        if first is not None:
            return (first,) if isinstance(first, str) else tuple(first)
    kinds = zip(mesh.axis_names, mesh.axis_types, strict=True)
    return tuple(axis for axis, kind in kinds if kind == AxisType.Auto) if traced else ()


def summed_over(spread: Spread, local: Callable[..., Any], arrays: list[Any], is_batched: list[bool]) -> Any:
    """local(*arrays) on every device: (sums, rows); sums are added over the devices, rows stay spread."""
    rows = PartitionSpec(spread.axes)
    explicit = any(kind == AxisType.Explicit for kind in spread.mesh.axis_types)

    def body(*arrays: Any) -> Any:
        sums, info = local(*arrays)
        return [jax.lax.psum(leaf, spread.axes) for leaf in sums], info

    def run(*arrays: Any) -> Any:
        specs = [rows if batched else PartitionSpec() for batched in is_batched]
        if explicit:
            with jax.sharding.use_abstract_mesh(spread.mesh):
                arrays = tuple(jax.sharding.reshard(x, spec) for x, spec in zip(arrays, specs, strict=True))
        # Without the check a gradient inside is one device's own; with it, JAX would add it up over the devices.
        mapped = jax.shard_map(
            body, mesh=spread.mesh, in_specs=tuple(specs), out_specs=(PartitionSpec(), rows), check_vma=False
        )
        try:
            return mapped(*arrays)
        except NotImplementedError as error:
            raise ValueError(
                f"loss_fn closes over an array on the mesh ({error}); pass it as an argument instead"
            ) from error

    return jax.jit(run)(*arrays)
