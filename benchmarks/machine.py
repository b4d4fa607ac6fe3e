"""The cores that a benchmark is given, and what they are."""

import ctypes
import importlib
import importlib.metadata
import os
import pathlib
import platform
from collections.abc import Sequence
from typing import Any


def use_cores(count: int) -> None:
    """Pin this process and its children to ``count`` cores and as many threads, before NumPy or JAX is imported."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(count)
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # children use the same GPU
    if count == 1:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false".strip()
    if hasattr(os, "sched_setaffinity"):  # XLA's threads are as many as the cores it may use
        os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[-count:]))


def keep_memory() -> bool:
    """Have glibc keep the memory that is freed, in one arena; whether it does. Before NumPy or JAX is imported.

    By itself it gives large blocks back or not, as the heap happens to lie, and then every call of a program pays for
    new pages: as much as drawing two million numbers, once for one function and once for the other.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):  # another system, or another C library
        return False
    return all([mallopt(_M_ARENA_MAX, 1), mallopt(_M_MMAP_MAX, 0), mallopt(_M_TRIM_THRESHOLD, -1)])


_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8


def describe(packages: Sequence[str]) -> dict[str, Any]:
    """Processor, device and versions of ``packages``; nothing that names the machine."""
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
        "versions": {name: version(name) for name in packages},
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


def why_missing(*modules: str) -> str | None:
    """Return why the first module that is missing cannot be imported; None where all are there."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as failure:
            return f"{type(failure).__name__}: {failure}"
    return None
