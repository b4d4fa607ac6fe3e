"""The placement of a language model's parameters on several devices.

    mesh = mesh_of(8)
    params = spread(params, mesh)
    data = training.place(*units.arrays, sharding=NamedSharding(mesh, PartitionSpec()))

The units of a batch are spread over the devices, and each weight as well (fully sharded data parallelism): a device
holds a part of every weight, and of what the optimizer keeps for it. For the gradients each device gathers all weights,
and the clipped gradients of the devices are added up.

Layers are stacked along the first axis of their weights, and a loop goes through that axis; it is never cut.
"""

from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from experiments.language.lora import Params
from gdpjax.sweeps import UserError

DATA = "data"

_CUT_BY_OUTPUTS = {"embedding", "output", "down"}
"""Weights whose last axis is cut; the others are cut along the one before it."""


def mesh_of(num_devices: int) -> Mesh:
    """Return a mesh of the devices of all processes; one process may leave devices aside.

    Raises:
      UserError: more devices than there are.

    >>> mesh_of(1).shape["data"]
    1
    """
    if not 1 <= num_devices <= jax.device_count():
        raise UserError(f"expected from 1 to {jax.device_count()} devices, as there are, got {num_devices}")
    return jax.make_mesh((num_devices,), (DATA,), axis_types=(AxisType.Auto,), devices=jax.devices()[:num_devices])


def spread(params: Params, mesh: Mesh) -> Params:
    """Return the first process's parameters on a mesh, where `shardings` puts them.

    No device ever holds more than its part, so that a model may be larger than a device. The processes' memory holds
    all of it.
    """

    def placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
        values = np.asarray(leaf)
        if jax.process_count() > 1:
            values = np.asarray(multihost_utils.broadcast_one_to_all(values))

        # Each device asks for its part of the values.
        return jax.make_array_from_callback(values.shape, sharding, values.__getitem__)

    return jax.tree.map(placed, params, shardings(params, mesh))


def shardings(params: Params, mesh: Mesh) -> Params:
    """Return a sharding for each parameter, or their shapes, as a tree like theirs.

    An axis of a weight is only cut into equal parts: where it does not divide, the weight is whole on every device.

    >>> shapes = {"layers": {"attention": {"query": {"kernel": jax.ShapeDtypeStruct((4, 64, 32), "float32")}}}}
    >>> tuple(shardings(shapes, mesh_of(1))["layers"]["attention"]["query"]["kernel"].spec)
    (None, 'data', None)
    """

    def of_leaf(path: Any, leaf: Any) -> NamedSharding:
        names = {entry.key for entry in path}
        axes: list[str | None] = [None] * leaf.ndim

        # The weights of norms are small, and are whole on every device.
        if leaf.ndim - ("layers" in names) >= 2:
            axis = leaf.ndim - 1 if names & _CUT_BY_OUTPUTS else leaf.ndim - 2
            if leaf.shape[axis] % mesh.shape[DATA] == 0:
                axes[axis] = DATA
        return NamedSharding(mesh, PartitionSpec(*axes))

    return jax.tree.map_with_path(of_leaf, params)
