"""The placement of a language model's parameters on a mesh of devices.

    mesh = mesh_of({"data": 4, "model": 2})
    params = spread(params, mesh)
    data = training.place(*units.arrays, sharding=NamedSharding(mesh, PartitionSpec()))

The axis "data" spreads the units of a batch, and each weight as well (fully sharded data parallelism): a device holds a
part of every weight, and of what the optimizer keeps for it. The axis "model" cuts the weights along the heads of
attention and the hidden units of feed-forward layers: weights into them by their outputs, and those out of them by
their inputs, so that a program that uses them in parts (tensor parallelism) needs one sum over devices for each pair.
Either axis may be absent.

A private step is no such program. Its units are spread over both axes, each device gathers all weights, and the clipped
gradients of the devices are added up.

Layers are stacked along the first axis of their weights, and a loop goes through that axis; it is never cut.
"""

import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from experiments.errors import UserError

DATA = "data"
MODEL = "model"

_INTO = ("query", "key", "value", "gate", "up", "head")
"""Weights whose outputs belong to heads, hidden units or tokens."""
_OUT_OF = ("output", "down")
"""Weights whose inputs do."""


def sizes_of(text: str) -> dict[str, int]:
    """Return the sizes that a text gives the axes of a mesh.

    Raises:
      UserError: another text.

    >>> sizes_of("data=4,model=2")
    {'data': 4, 'model': 2}
    """
    sizes = {}
    for part in text.split(","):
        name, _, size = part.partition("=")
        is_axis = name in (DATA, MODEL) and name not in sizes
        if not is_axis or not size.isdecimal():
            raise UserError(f"expected a mesh such as data=8, or data=4,model=2, got {text!r}")
        sizes[name] = int(size)
    return sizes


def mesh_of(sizes: Mapping[str, int]) -> Mesh:
    """Return a mesh of the devices of all processes.

    Args:
      sizes: the devices along "data" and along "model", of which one may be left out. One process may leave devices
        aside; several use all that they have.

    Raises:
      UserError: other axes, or more devices than there are, or fewer than those of several processes.

    >>> mesh_of({"data": 1}).shape["data"]
    1
    """
    _check_axes(tuple(sizes))
    count = math.prod(sizes.values())
    there_are = jax.device_count()

    # One process may leave devices aside; several use all that they have.
    is_possible = min(sizes.values()) >= 1 and count <= there_are
    limit = "at most"
    if jax.process_count() > 1:
        is_possible = is_possible and count == there_are
        limit = "exactly"
    if not is_possible:
        wanted = " x ".join(f"{name}={size}" for name, size in sizes.items())
        raise UserError(f"expected the sizes of a mesh to multiply to {limit} {there_are} devices, got {wanted}")

    return jax.make_mesh(
        tuple(sizes.values()),
        tuple(sizes),
        axis_types=(AxisType.Auto,) * len(sizes),
        devices=jax.devices()[:count],
    )


def spread(params: Any, mesh: Mesh) -> Any:
    """Return the first process's parameters on a mesh, where `shardings` puts them.

    No device ever holds more than its part, so that a model may be larger than a device. The processes' memory holds
    all of it.

    Args:
      params: a tree of arrays of the same shapes on every process.
      mesh: see `mesh_of`.
    """

    def placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
        values = np.asarray(leaf)
        if jax.process_count() > 1:
            values = np.asarray(multihost_utils.broadcast_one_to_all(values))

        # Each device asks for its part of the values.
        return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)

    return jax.tree.map(placed, params, shardings(params, mesh))


def check_batch(num_rows: int, mesh: Mesh) -> None:
    """Refuse a mesh whose devices cannot share the rows of a batch equally; each would compute all of them.

    Raises:
      UserError: the number of devices does not divide the number of rows.
    """
    if num_rows % mesh.size:
        possible = [count for count in range(1, mesh.size) if num_rows % count == 0]
        raise UserError(
            f"expected a number of devices that divides the {num_rows} rows of a batch, got {mesh.size}; the next "
            f"smaller one is {possible[-1]}"
        )


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
    _check_axes(mesh.axis_names)

    def of_leaf(path: Any, leaf: Any) -> NamedSharding:
        names = [entry.key for entry in path]
        return NamedSharding(mesh, _spec(names, leaf.shape, mesh))

    return jax.tree.map_with_path(of_leaf, dict(params))


def _check_axes(names: tuple[str, ...]) -> None:
    """Refuse a mesh of other axes."""
    if not names or not set(names) <= {DATA, MODEL}:
        raise UserError(f"expected a mesh with the axes {DATA!r} and {MODEL!r}, or one of them, got {names}")


def _spec(names: list[str], shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """Return the axes of the mesh for each axis of one parameter."""
    # The weights of norms are small, and are whole on every device.
    num_axes = len(shape) - 1 if "layers" in names else len(shape)
    if num_axes < 2:
        return PartitionSpec()

    # Which axis belongs to heads, hidden units or tokens; the other one is for "data".
    inputs = len(shape) - 2
    outputs = len(shape) - 1
    parts: dict[str, int] = {}
    if "embedding" in names or any(name in names for name in _OUT_OF):
        parts[MODEL] = inputs
    elif any(name in names for name in _INTO):
        parts[MODEL] = outputs
    parts[DATA] = inputs if parts.get(MODEL) == outputs else outputs

    # An axis is cut where the mesh has the name, and where it divides.
    axes: list[str | None] = [None] * len(shape)
    for name, axis in parts.items():
        if name in mesh.axis_names and shape[axis] % mesh.shape[name] == 0:
            axes[axis] = name
    return PartitionSpec(*axes)
