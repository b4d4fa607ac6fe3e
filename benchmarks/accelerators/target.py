"""Compile functions for a device that is only described; nothing can be executed there.

    target = describe("tpu", libtpu)          # before anything else of JAX; one target in a process
    figures = target.compile(function, arguments)

The compiler of TPUs is in the wheel libtpu, that of NVIDIA's GPUs in the wheels of ``jax[cuda12]``. Neither needs a
device or a driver. Figures that a compiler does not give are left out: that of GPUs gives no bytes and no operations.
"""

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

TARGETS = ("tpu", "gpu")
TITLES = {"tpu": "TPU v5e", "gpu": "H100"}
COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")

# Public figures of the H100 SXM with 80 GB.
_H100 = """
platform_name: "CUDA"
device_description_str: "NVIDIA H100 80GB HBM3"
dnn_version_info { major: 9 minor: 10 }
gpu_device_info {
  cuda_compute_capability { major: 9 }
  core_count: 132
  fpus_per_core: 128
  clock_rate_ghz: 1.98
  threads_per_warp: 32
  threads_per_block_limit: 1024
  threads_per_core_limit: 2048
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
  shared_memory_per_core: 233472
  shared_memory_per_block: 49152
  shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  device_memory_size: 85899345920
}
"""


class Target(NamedTuple):
    """A described machine.

    Attributes:
      name: "tpu" or "gpu".
      devices: its eight devices.
    """

    name: str
    devices: list[Any]

    def compile(self, function: Callable[..., Any], arguments: tuple[Any, ...], **settings: Any) -> dict[str, Any]:
        """Return the figures of function(*arguments), whose arguments are shapes, placed or on the first device.

        Args:
          function: what is compiled.
          arguments: pytrees of `jax.ShapeDtypeStruct`.
          settings: of `jax.jit`.
        """
        import jax

        on_first = jax.sharding.SingleDeviceSharding(self.devices[0])

        def placed(leaf: Any) -> Any:
            layout = getattr(getattr(leaf, "format", None), "layout", None)
            sharding = leaf.format if layout is not None else getattr(leaf, "sharding", None) or on_first
            return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

        began = time.monotonic()
        lowered = jax.jit(function, **settings).lower(*jax.tree.map(placed, arguments))
        figures: dict[str, Any] = {"float64": lowered.as_text().count("f64>")}
        compiled = lowered.compile()
        figures["seconds"] = round(time.monotonic() - began, 1)

        text = compiled.as_text() or ""
        figures["lines"] = text.count("\n")
        memory = compiled.memory_analysis()
        if memory is not None:
            figures["temp"] = memory.temp_size_in_bytes
            figures["arguments"] = memory.argument_size_in_bytes
        cost = compiled.cost_analysis() or {}
        for name, key in (("bytes", "bytes accessed"), ("flops", "flops")):
            if key in cost:
                figures[name] = int(cost[key])
        # The compiler adds -1 for what it cannot estimate.
        if cost.get("optimal_seconds", -1.0) > 0:
            figures["estimated_us"] = round(1e6 * cost["optimal_seconds"], 1)
        for kind in COLLECTIVES:
            count = len(re.findall(rf" {kind}(?:-start)?\(", text))
            if count:
                figures[kind] = count
        widest = _widest_words(text)
        if widest:
            figures["words"] = widest
        return figures


def _widest_words(text: str) -> str:
    """Return the shape of the largest array of random words that a program draws, as each device draws it."""
    found = set(re.findall(r"u32\[([\d,]+)\]", text))

    def size(shape: str) -> int:
        product = 1
        for length in shape.split(","):
            product *= int(length)
        return product

    return max(found, key=size, default="")


def describe(name: str, libtpu: Path | None = None) -> Target:
    """Return a target, and have the library plan for it. To be called before JAX is imported.

    Args:
      name: "tpu" or "gpu".
      libtpu: the folder into which pip put the wheel, for a TPU.
    """
    os.environ["JAX_PLATFORMS"] = "cpu"
    if name == "tpu":
        assert libtpu is not None
        os.environ["TPU_LIBRARY_PATH"] = str(libtpu.resolve() / "libtpu" / "libtpu.so")
        os.environ.update(
            ALLOW_MULTIPLE_LIBTPU_LOAD="1",
            TPU_SKIP_MDS_QUERY="1",
            TPU_ACCELERATOR_TYPE="v5litepod-8",
            TPU_WORKER_HOSTNAMES="localhost",
        )
    import jax
    from jax.experimental import topologies

    jax.devices()
    if name == "tpu":
        topology = topologies.get_topology_desc("v5e:2x4", "tpu")
    else:
        topology = topologies.get_topology_desc("", platform="cuda", target_config=_H100, topology="1x8x1")
    # As on a machine that has the device; the library plans for the platform that JAX names.
    jax.default_backend = lambda: name
    return Target(name, list(topology.devices))
