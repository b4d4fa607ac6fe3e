"""Sweeps on real Ray clusters, each part a process of its own.

``on_ray.py two-nodes FOLDER``: a cluster of two nodes and a sweep, in the middle of which one node is removed.
``on_ray.py cluster``: a cluster of one node, until standard input ends.
``on_ray.py begin FOLDER ADDRESS WIDTH`` and ``resume``: a sweep on it, to be killed.
"""

import functools
import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from experiments import data
from gdpjax.sweeps import _ray, _sweep
from tests.sweeps.sweeps import SEVERAL, on, small


def sweep(folder, resume, backend_for):
    spec = on(small(data.load("digits")), SEVERAL)
    _sweep.sweep_in(folder, spec, resume, backend_for, Console(quiet=True))


def cluster(num_cpus):
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": int(num_cpus)})
    print(made.address, flush=True)
    sys.stdin.read()
    made.shutdown()


def driver(folder, address, width, resume):
    class Talking(_sweep.SweepProgress):
        def on_chunk(self, rows):
            print("chunk", len(rows), flush=True)

    _sweep.SweepProgress = Talking
    sweep(Path(folder), resume, lambda task, examples, _: _ray.RayBackend(task, examples, int(width), 10**9, address))


def two_nodes(folder):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = cluster.add_node(num_cpus=1)
    story = {"chunks": []}

    class Watching(_sweep.SweepProgress):
        def on_chunk(self, rows):
            story["chunks"].append([{"trial": row["trial"]} for row in rows])

    def backend_for(task, examples, progress):
        backend = _ray.RayBackend(task, examples, 1, 10**9, cluster.address)
        story["nodes"] = sum(node["Alive"] for node in backend._ray.nodes())
        threading.Thread(target=remove, args=(backend._ray,)).start()
        return backend

    def remove(ray):
        # Its processor is taken: the node has a task that compiles or trains.
        while ray.available_resources().get("CPU", 0) > 0:
            time.sleep(0.1)
        story["removed_after"] = sum(map(len, story["chunks"]))
        cluster.remove_node(doomed, allow_graceful=False)

    def close(self):
        deadline = time.monotonic() + 60  # Ray may hear of the loss only after the last chunk
        while (left := sum(node["Alive"] for node in self._ray.nodes())) > 1 and time.monotonic() < deadline:
            time.sleep(0.2)
        story["left"] = left
        shutdown(self)

    _sweep.SweepProgress = Watching
    shutdown, _ray.RayBackend.close = _ray.RayBackend.close, close
    sweep(Path(folder), False, backend_for)
    cluster.shutdown()
    print(json.dumps(story))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    ways = {
        "two-nodes": two_nodes, "cluster": cluster, "begin": functools.partial(driver, resume=False),
        "resume": functools.partial(driver, resume=True),
    }  # fmt: skip
    ways[what](*arguments)
