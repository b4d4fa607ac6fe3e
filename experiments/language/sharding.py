"""Where the parameters of a language model lie on a mesh of devices.

    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    params = jax.device_put(params, shardings(params, mesh))
    data = training.place(*units.arrays, sharding=NamedSharding(mesh, PartitionSpec()))

The axis "data" spreads the units of a batch, and each weight as well (fully sharded data parallelism): a device holds a
part of every weight, and of what the optimizer keeps for it. The axis "model" spreads the heads of attention and the
hidden units of feed-forward layers (tensor parallelism): weights into them are cut by their outputs, and those out of
them by their inputs, so that one sum over devices is enough for each pair. Either axis may be absent.

Layers are stacked along the first axis of their weights, and a loop goes through that axis; it is never cut.
"""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from experiments.errors import UserError

DATA, MODEL = "data", "model"

_INTO = ("query", "key", "value", "gate", "up", "head")
"""Weights whose outputs belong to heads, hidden units or tokens."""
_OUT_OF = ("output", "down")
"""Weights whose inputs do."""


def shardings(params: Mapping[str, Any], mesh: Mesh) -> dict[str, Any]:
    """Return a sharding for each parameter, as a tree like theirs.

    An axis of a weight is only cut into equal parts: where it does not divide, the weight is whole along it.

    Args:
      params: the parameters of a model, with or without adapters, or their shapes.
      mesh: with an axis "data", an axis "model", or both.

    Raises:
      UserError: a mesh with other axes.

    >>> mesh = jax.make_mesh((1, 1), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    >>> shapes = {"layers": {"attention": {"query": {"kernel": jax.ShapeDtypeStruct((4, 64, 32), "float32")}}}}
    >>> shardings(shapes, mesh)["layers"]["attention"]["query"]["kernel"].spec
    PartitionSpec(None, 'data', 'model')
    """
    if not mesh.axis_names or not set(mesh.axis_names) <= {DATA, MODEL}:
        raise UserError(f"expected a mesh with the axes {DATA!r} and {MODEL!r}, or one of them, got {mesh.axis_names}")

    def of_leaf(path: Any, leaf: Any) -> NamedSharding:
        names = [entry.key for entry in path]
        return NamedSharding(mesh, _spec(names, leaf.shape, mesh))

    return jax.tree.map_with_path(of_leaf, dict(params))


def _spec(names: list[str], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the axes of the mesh for each axis of one parameter."""
    first = 1 if "layers" in names else 0
    if len(shape) - first < 2:
        return PartitionSpec()  # the weights of norms are small
    axes: list[str | None] = [None] * len(shape)
    inputs, outputs = len(shape) - 2, len(shape) - 1

    # Which axis belongs to heads, hidden units or tokens; the other one is for "data".
    of_model = None
    if "embedding" in names or any(name in names for name in _OUT_OF):
        of_model = inputs
    elif any(name in names for name in _INTO):
        of_model = outputs
    of_data = inputs if of_model == outputs else outputs

    for axis, name in ((of_model, MODEL), (of_data, DATA)):
        if axis is not None and name in mesh.axis_names and shape[axis] % mesh.shape[name] == 0:
            axes[axis] = name
    return PartitionSpec(*axes)
