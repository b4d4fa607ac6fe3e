"""One core, and what it is."""

import importlib.metadata
import os
import pathlib
import platform
from typing import Any

PACKAGES = (
    "gdpjax", "jax", "jaxlib", "numpy", "scipy", "dp-accounting", "prv-accountant", "gdpnum", "riskcal", "autodp",
)  # fmt: skip


def use_one_core() -> None:
    """Pin this process and its children to one core, without threads. Call it before NumPy or JAX is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # children use the same GPU
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def describe() -> dict[str, Any]:
    """Processor, device and versions; nothing that names the machine."""
    import jax

    device = jax.devices()[0]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": cpu_model(),
        "cpu_cores_used": cores,
        "xla_flags": os.environ.get("XLA_FLAGS", ""),
        "device": device.device_kind,
        "platform": device.platform,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def cpu_model() -> str:
    info = pathlib.Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def load_average() -> float | None:
    """Processes that wanted a core over the last minute: well above 1 means that the clocks were disturbed."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
