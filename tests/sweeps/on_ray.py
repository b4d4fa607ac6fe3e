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

from experiments import data
from tests.sweeps.sweeps import SEVERAL, Progress, RayBackend, run_small, small


def sweep(folder, **options):
    run_small(SEVERAL, small(data.load("digits")), Path(folder), **options)


def cluster(num_cpus):
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": int(num_cpus)})
    print(made.address, flush=True)
    sys.stdin.read()
    made.shutdown()


def driver(folder, address, width, resume):
    class Talking(Progress):
        def on_chunk(self, rows):
            print("chunk", len(rows), flush=True)

    def backend_for(task, examples, progress):
        return RayBackend(task, examples, int(width), 10**9, address)

    sweep(folder, resume=resume, backend_for=backend_for, progress=Talking)


def two_nodes(folder):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = cluster.add_node(num_cpus=1)
    story = {"chunks": []}

    class Watching(Progress):
        def on_chunk(self, rows):
            story["chunks"].append([{"trial": row["trial"]} for row in rows])

    def backend_for(task, examples, progress):
        backend = RayBackend(task, examples, 1, 10**9, cluster.address)
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

    shutdown, RayBackend.close = RayBackend.close, close
    sweep(folder, backend_for=backend_for, progress=Watching)
    cluster.shutdown()
    print(json.dumps(story))


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    ways = {
        "two-nodes": two_nodes, "cluster": cluster, "begin": functools.partial(driver, resume=False),
        "resume": functools.partial(driver, resume=True),
    }  # fmt: skip
    ways[what](*arguments)
