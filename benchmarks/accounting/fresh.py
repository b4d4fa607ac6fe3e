"""Measurements that need a process of their own: the first call, the peak of memory, the compiled program.

    python -m benchmarks.accounting.fresh epsilon_bounds 1000

prints one line of JSON. The compilation cache is off, if the caller had one.
"""

import json
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

ROOT = pathlib.Path(__file__).parents[2]


def in_new_process(name: str, size: int) -> dict[str, Any]:
    """`measure` in a new interpreter, on the same core."""
    environment = {key: value for key, value in os.environ.items() if key != "JAX_COMPILATION_CACHE_DIR"}
    command = [sys.executable, "-m", "benchmarks.accounting.fresh", name, str(size)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def measure(name: str, size: int) -> dict[str, Any]:
    """Seconds to import and to call first, bytes before and after, and XLA's own account of the program."""
    start = time.perf_counter()
    from benchmarks.accounting import ours

    imported = time.perf_counter()
    columns = ours.arguments(name, size)
    before, begun = peak_memory(), time.perf_counter()
    ours.FUNCTIONS[name].call(*columns)
    called = time.perf_counter()
    return {
        "size": size,
        "import_seconds": imported - start,
        "first_call_seconds": called - begun,
        "peak_bytes_before": before,
        "peak_bytes": peak_memory(),
        **(compiled(name, size) if size > 1 else {}),
    }


def peak_memory() -> int:
    """Bytes. getrusage's peak outlives exec, so that it may be the parent's: on Linux the kernel's own line is read."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def compiled(name: str, size: int) -> dict[str, Any]:
    """Temporary memory and flops that XLA states for the function under an outer jit; a loop's body counts once."""
    import jax
    import jax.numpy as jnp

    from benchmarks.accounting import ours

    function = ours.FUNCTIONS[name]
    with jax.enable_x64(True):
        shapes = [jax.ShapeDtypeStruct((size,), jnp.float64) for _ in function.columns]
        program = jax.jit(lambda *columns: function.call(*columns)).lower(*shapes).compile()
    memory, cost = program.memory_analysis(), program.cost_analysis()
    return {
        "compiled_temp_bytes": getattr(memory, "temp_size_in_bytes", None),
        "compiled_flops_loops_once": (cost or {}).get("flops"),
    }


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]))))
