"""A sweep on a real Ray cluster of two nodes, one of which is removed in the middle: ``python on_ray.py FOLDER``."""

import io
import json
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from rich.console import Console

from experiments import datasets
from experiments.sweeps import _command
from experiments.sweeps._ray import RayBackend
from tests.experiments.sweeps import SEVERAL, small, spec_of


def main(folder):
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
    doomed = cluster.add_node(num_cpus=1)
    story = {"chunks": []}

    class Watching(_command.ProgressObserver):
        def on_chunk(self, rows):
            story["chunks"].append([{"trial": row["trial"]} for row in rows])

    def backend_for(dataset, observer):
        backend = RayBackend(dataset, 1, 10**9, cluster.address)
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
        story["left"] = sum(node["Alive"] for node in self._ray.nodes())
        shutdown(self)

    _command.ProgressObserver = Watching
    shutdown, RayBackend.close = RayBackend.close, close
    spec, dataset = spec_of(SEVERAL), small(datasets.load("digits"))
    _command.run_sweep(spec, dataset, folder, False, backend_for, Console(file=io.StringIO()))
    cluster.shutdown()
    print(json.dumps(story))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
