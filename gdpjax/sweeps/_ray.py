"""Run chunks as tasks of a Ray cluster, which is another place to run them, and nothing else.

Each task is one chunk with the keys of its trials, on one CPU, or on one GPU where the cluster has any. Ray runs a task
again, elsewhere, when its node or its process dies under it; the trainings are then the same ones, with the same noise,
and only one result reaches the driver, which alone writes.

The code travels with the job: gdpjax, and the modules that are imported and not installed. So do the data, once to the
object store of each node, from where its processes read them without a copy. A cluster that holds them is part of what
has to be trusted with private data. The installed packages that compute must be the same everywhere, which is checked.
"""

import concurrent.futures
import dataclasses
import sys
from pathlib import Path
from typing import Any

from gdpjax.sweeps import records
from gdpjax.sweeps._examples import Examples, is_own
from gdpjax.sweeps._task import Task
from gdpjax.sweeps._worker import Chunk, ChunkLost, Limits, Row, Worker
from gdpjax.sweeps.records import UserError

RETRIES = 3
"""How often a chunk may lose its worker before it is held to be at fault (out of memory, say)."""
_SAME = (
    *("jax", "jaxlib", "gdpjax", "flax", "optax", "numpy", "jax_default_prng_impl", "jax_threefry_partitionable"),
    *("jax_enable_x64", "jax_default_matmul_precision"),
)
"""Versions and settings that must be the same on all nodes."""
_workers: list[Worker] = []
"""The worker of this process, which Ray gives to one job only."""


class RayBackend:
    """A cluster that is up."""

    def __init__(self, task: Task, examples: Examples, width: int, memory_bytes: int, address: str | None) -> None:
        self._ray = import_ray()
        _connect(self._ray, address, own_code())

        # A chunk for each GPU at a time, or for each CPU where there are no GPUs.
        resources = self._ray.cluster_resources()
        num_gpus = int(resources.get("GPU", 0))
        num_cpus = int(resources.get("CPU", 1))
        self.limits = Limits(width, memory_bytes, max(1, num_gpus or num_cpus))
        device = {"num_gpus": 1} if num_gpus else {"num_cpus": 1}
        self._task = self._ray.remote(max_retries=RETRIES, **device)(_run_chunk)
        # The data are sent once, by themselves: what loads them may hold them too, or not be sendable.
        self._sent_task = self._ray.put(dataclasses.replace(task, load=_loaded_already))
        self._examples = self._ray.put(examples)

    def submit(self, chunk: Chunk) -> "concurrent.futures.Future[list[Row]]":
        """Start a task."""
        task = self._task.remote(chunk, self._sent_task, self._examples, self.limits.memory_bytes, versions())
        return task.future()

    def result(self, future: "concurrent.futures.Future[list[Row]]") -> list[Row]:
        """Return the result of a task that is over; `ChunkLost` if its workers died, and no retry is left.

        Another error of Ray, such as that the cluster is gone, is not the trials' fault: they may be resumed.
        """
        kinds = self._ray.exceptions
        try:
            return future.result()
        except kinds.RayTaskError as error:
            raise error.cause from None
        except (kinds.WorkerCrashedError, kinds.NodeDiedError, kinds.OutOfMemoryError) as error:
            raise ChunkLost(f"{RETRIES + 1} workers died of it: {type(error).__name__}: {error}") from None

    def close(self) -> None:
        """Leave the cluster, which ends the job's tasks."""
        self._ray.shutdown()


def _loaded_already() -> Any:
    """Stand in for a task's ``load`` on the nodes, which are sent the data."""
    raise RuntimeError("the data are loaded where the sweep was started")


def import_ray() -> Any:
    """Return the module of Ray; UserError with the command that installs it."""
    try:
        import ray
        import ray.exceptions
    except ImportError as error:
        raise UserError(
            f"--backend ray needs Ray ({error}), the extra distributed: in a clone, pip install '.[distributed]'"
        ) from error
    return ray


def own_code() -> list[str]:
    """Return the folders and files of gdpjax and of the modules that are imported here and not installed.

    Other nodes do not have them. Among them are the module of the task, and what it imports from beside it.
    """
    places = [str(Path(__file__).parents[1])]
    for name, module in list(sys.modules.items()):
        # An attribute of a module may be a function that warns.
        source = vars(module).get("__file__")
        place = next(iter(vars(module).get("__path__", [])), source)
        if place and "." not in name and name != "__main__" and is_own(place):
            places.append(place)
    return list(dict.fromkeys(places))


def _connect(ray: Any, address: str | None, code: list[str]) -> None:
    """Join the cluster, whose nodes get the folders and files ``code``; UserError if there is none."""
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        ray.init(address=address or "auto", runtime_env={"py_modules": code}, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        # A ConnectionError is an OSError.
        place = address or "the default address"
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"no Ray cluster at {place} ({reason}); start one with `ray start --head`, or give its --ray-address"
        ) from error


def versions() -> dict[str, Any]:
    """Return the versions and settings that decide which numbers and which noise a key gives."""
    fingerprint = records.fingerprint()
    return {name: fingerprint[name] for name in _SAME}


def _run_chunk(chunk: Chunk, task: Task, examples: Examples, memory_bytes: int, expected: dict[str, Any]) -> list[Row]:
    """Run a chunk on the cluster, with the programs that this process has compiled before."""
    if versions() != expected:
        raise UserError(f"a node of the cluster has {versions()}, but here it is {expected}: install the same versions")
    if not _workers:
        _workers.append(Worker(task, examples, memory_bytes))
    return _workers[0].run(chunk)
