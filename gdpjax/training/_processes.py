"""Let several processes train together, on JAX's own distributed runtime, with all that must be equal on them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding, PartitionSpec

from gdpjax._core.checks import is_traced
from gdpjax._core.documents import digest_of_document
from gdpjax._core.types import Array, PyTree


class CheckpointError(RuntimeError):
    """A checkpoint could not be written or read. What was computed is still in memory, what was spent is on record."""


def is_first_process() -> bool:
    """Return whether this process writes the files that are written once."""
    return jax.process_index() == 0


def together(action: Callable[[], None]) -> None:
    """Do ``action`` on every process and wait for all; where it fails on one, raise on each, so that none hangs."""
    if jax.process_count() == 1:
        action()
        return
    failure: Exception | None = None
    try:
        action()
    except (OSError, ValueError, RuntimeError) as error:
        failure = error

    # Every process tells every other one its error, in a text of one length.
    text = b""
    if failure:
        text = str(failure).encode()[:_MESSAGE_BYTES]
    padded_text = text.ljust(_MESSAGE_BYTES, b"\0")
    rows = _gathered(np.frombuffer(padded_text, np.uint8))

    # A process raises its own error, or that of the first process that has one.
    if failure is not None:
        raise failure
    for index, row in enumerate(rows):
        message = bytes(row).rstrip(b"\0").decode(errors="replace")
        if message:
            raise CheckpointError(f"process {index}: {message}")


_MESSAGE_BYTES = 2048


def _gathered(own: np.ndarray) -> np.ndarray:
    """Return one row of bytes of each process."""
    rows = multihost_utils.process_allgather(own)
    return np.asarray(rows).reshape(jax.process_count(), -1)


def one_key_for_all(key: Array) -> Array:
    """Return the first process's key on every process: fresh keys differ, and noise must be one noise."""
    if jax.process_count() == 1 or is_traced(key):
        return key
    impl = jax.random.key_impl(key)
    data = multihost_utils.broadcast_one_to_all(jax.random.key_data(key))
    return jax.random.wrap_key_data(jnp.asarray(data), impl=impl)


def described_by_all(description: dict[str, Any]) -> dict[str, Any]:
    """Return a description that is equal on all processes, and changes if any one's does.

    Its "data" is by itself, since a run may go on with the same data elsewhere but not with other data: the digest that
    all processes found, or that of their digests where each has rows of its own.
    """
    if jax.process_count() == 1:
        return description
    own = digest_of_document(description)
    digests_of_data = _of_all(description["data"])
    data = digests_of_data[0]
    if len(set(digests_of_data)) > 1:
        data = digest_of_document(digests_of_data)
    return {"processes": _of_all(own), "data": data}


def _of_all(digest: str) -> list[str]:
    """Return the digest of every process, each in hexadecimal digits."""
    own = np.frombuffer(bytes.fromhex(digest), np.uint8)
    return [bytes(row).hex() for row in _gathered(own)]


def whole(leaf: Any) -> np.ndarray:
    """Return all of an array, on every process."""
    if jax.process_count() == 1 or not isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    if leaf.is_fully_addressable:
        return np.asarray(leaf)
    if leaf.is_fully_replicated:
        return np.asarray(leaf.addressable_data(0))
    return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))


def parameters_for_all(params: PyTree, data: PyTree) -> PyTree:
    """Return the first process's parameters on the mesh of ``data``; those that are on a mesh stay as they are."""

    def shared(leaf: Any) -> Any:
        if jax.process_count() == 1 or _on_mesh(leaf):
            return leaf
        first = multihost_utils.broadcast_one_to_all(np.asarray(leaf))
        return np.asarray(first)

    shared_params = jax.tree.map(shared, params)
    return beside(data, shared_params)


def beside(params: PyTree, tree: PyTree) -> PyTree:
    """Return ``tree`` on the mesh of ``params``, with a copy on each device of leaves that are on one device only."""
    leaves = jax.tree.leaves(params)
    meshes = [leaf.sharding.mesh for leaf in leaves if _on_mesh(leaf)]
    if not meshes or is_traced(tree):
        return tree
    everywhere = NamedSharding(meshes[0], PartitionSpec())

    def placed(leaf: Any) -> Any:
        if _on_mesh(leaf):
            return leaf
        if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            impl = jax.random.key_impl(leaf)
            data = placed(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(data, impl=impl)
        # A copy, because on processors an array of NumPy may be used where it lies.
        return jax.device_put(np.array(leaf), everywhere)

    return jax.tree.map(placed, tree)


def spread_like(tree: PyTree, example: PyTree) -> PyTree:
    """Return ``tree`` with its leaves on the devices of those of ``example``.

    A compiler may leave a result on other ones, and then the next program differs from that of a restored state.
    """

    def placed(leaf: Any, other: Any) -> Any:
        if not isinstance(other, jax.Array) or leaf.sharding.is_equivalent_to(other.sharding, leaf.ndim):
            return leaf
        return jax.device_put(leaf, other.sharding)

    return jax.tree.map(placed, tree, example)


def _on_mesh(leaf: Any) -> bool:
    """Return whether a leaf is an array on a mesh of several devices."""
    if not isinstance(leaf, jax.Array) or is_traced(leaf):
        return False
    if not isinstance(leaf.sharding, NamedSharding):
        return False
    return leaf.sharding.mesh.size > 1
