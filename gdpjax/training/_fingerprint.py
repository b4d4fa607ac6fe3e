"""Fingerprint everything that must be equal for the same steps to give the same bits.

Noise is a function of its key, gradients are a function of the data, the program, the compiler and the processor. If
any of these differ, repeating a step with the same key adds the *same* noise to a *different* gradient, and whoever
sees both subtracts it away. A run that goes on elsewhere therefore takes a new key.
"""

import hashlib
import importlib.metadata
import os
import platform
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from gdpjax._core import VERSION, xla
from gdpjax._core.types import PyTree
from gdpjax.training._processes import whole

_PACKAGES = ("jax", "jaxlib", "optax", "numpy")
_SETTINGS = (
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_disable_jit",
    "jax_disable_most_optimizations",
    "jax_optimization_level",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_level",
    "jax_memory_fitting_effort",
    "jax_compiler_enable_remat_pass",
    "jax_numpy_dtype_promotion",
)
"""Settings of JAX that change the bits of a program whose text is the same, or the text itself."""
_VARIABLES = ("NVIDIA_TF32_OVERRIDE", "TF_CUDNN_DETERMINISTIC", "XLA_FLAGS", "LIBTPU_INIT_ARGS", "PJRT_NPROC", "NPROC")
"""Variables of the environment that do."""


def _num_processors() -> int | None:
    """Return how many processors this process may use: the parts into which XLA cuts a sum depend on it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def settings() -> dict[str, str]:
    """Return the settings of JAX that decide the bits of a program; those of a `with` block count within it."""
    return {name: str(jax.config.values.get(name)) for name in _SETTINGS}


def environment(*arrays: PyTree) -> dict[str, Any]:
    """Return versions, devices and settings that decide the bits of a program on these arrays, as JSON values."""
    devices = jax.devices()
    # A program runs where an array lies on an accelerator, whichever platform is the default one.
    used = [device for leaf in jax.tree.leaves(arrays) if hasattr(leaf, "devices") for device in leaf.devices()]
    device = min(used, key=lambda device: (device.platform == "cpu", device.id), default=devices[0])
    versions = {package: importlib.metadata.version(package) for package in _PACKAGES}
    return {
        "gdpjax": VERSION,
        "python": platform.python_version(),
        **versions,
        "platform": device.platform,
        "device_kind": device.device_kind,
        # The versions of CUDA, or of the TPU's compiler, which are packages of their own.
        "platform_version": device.client.platform_version,
        "device_count": len(devices),
        "process_count": jax.process_count(),
        "machine": platform.machine(),
        "cpu": xla.processor(),
        "cpu_count": _num_processors(),
        **{name.lower(): os.environ.get(name, "") for name in _VARIABLES},
        **settings(),
    }


def repeats_bits(described: dict[str, Any]) -> bool:
    """Return whether the same program on the same data gives the same bits again in such an `environment`.

    GPU programs add in an order of the moment and choose kernels by timing them, unless two flags forbid both.
    """
    if described["platform"] in ("cpu", "tpu"):
        return True
    flags = set(described["xla_flags"].split())
    needed = {"--xla_gpu_deterministic_ops=true", "--xla_gpu_autotune_level=0"}
    return needed <= flags


def digest_of(*arrays: Any) -> str:
    """Return the SHA-256 of arrays: their types, shapes and bytes. It is private if they are.

    It does not depend on how the devices of one process hold an array. Of an array whose rows are spread over several
    processes each process reads its own.
    """
    digest = hashlib.sha256()
    for array in arrays:
        for part in _own_parts(array):
            rows = np.ascontiguousarray(np.asarray(part))
            digest.update(f"{rows.dtype}{rows.shape}".encode())
            digest.update(rows.tobytes())
    return digest.hexdigest()


def _own_parts(array: Any) -> list[Any]:
    """Return the parts of an array that this process is to read: all of it, or its own of several processes."""
    if not isinstance(array, jax.Array) or array.is_fully_addressable:
        return [array]
    shards = array.addressable_shards
    if array.is_fully_replicated:
        shards = shards[:1]
    return [shard.data for shard in shards]


def state_digest(state: PyTree) -> str:
    """Return the SHA-256 of every value that a step depends on besides data and program.

    These are the parameters, frozen ones included, the optimizer's state with its injected hyperparameters, and keys.
    The digest is equal on all processes, whatever the sharding.
    """
    leaves = []
    for leaf in jax.tree.leaves(state):
        is_key = jnp.issubdtype(jnp.asarray(leaf).dtype, jax.dtypes.prng_key)
        leaves.append(whole(jax.random.key_data(leaf) if is_key else leaf))
    return digest_of(*leaves)
