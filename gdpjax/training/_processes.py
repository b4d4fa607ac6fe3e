"""Several processes that train together, on JAX's own distributed runtime: what must be equal on all of them."""

import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from gdpjax._core.checks import is_traced
from gdpjax._core.types import Array, PyTree


def is_first_process() -> bool:
    """Whether this process writes the files that are written once."""
    return jax.process_index() == 0


def barrier(name: str) -> None:
    """Wait for all processes."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)


def one_key_for_all(key: Array) -> Array:
    """The first process's key on every process: fresh keys differ, and noise must be one noise."""
    if jax.process_count() == 1 or is_traced(key):
        return key
    data = multihost_utils.broadcast_one_to_all(jax.random.key_data(key))
    return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(key))


def described_by_all(description: dict[str, Any]) -> dict[str, Any]:
    """A description that is equal on all processes, and changes if any one's does."""
    if jax.process_count() == 1:
        return description
    own = hashlib.sha256(json.dumps(description, sort_keys=True).encode()).digest()
    found = multihost_utils.process_allgather(np.frombuffer(own, np.uint8))
    return {"processes": [bytes(row).hex() for row in np.asarray(found)]}


def beside(params: PyTree, tree: PyTree) -> PyTree:
    """``tree`` on the mesh that ``params`` are on, where it is not yet on several devices: a copy on each of them."""
    meshes = [leaf.sharding.mesh for leaf in jax.tree.leaves(params) if _on_mesh(leaf)]
    if not meshes or is_traced(tree):
        return tree
    everywhere = NamedSharding(meshes[0], PartitionSpec())

    def placed(leaf: Any) -> Any:
        if _on_mesh(leaf):
            return leaf
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(placed(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        return jax.device_put(np.asarray(leaf), everywhere)

    return jax.tree.map(placed, tree)


def _on_mesh(leaf: Any) -> bool:
    placed = isinstance(leaf, jax.Array) and not is_traced(leaf)
    return placed and isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh.size > 1
