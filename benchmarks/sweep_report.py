"""The time that the report of a thousand trials takes to make, from their rows on disk, and its page to open."""

import pathlib
import statistics
import tempfile
import time
from typing import Any

from benchmarks import browser


def measure(num_trials: int = 1000, loads: int = 3) -> dict[str, Any]:
    """Seconds for the trials of a grid on a line through points; the page's load is None without a browser."""
    from gdpjax.sweeps import report_sweep

    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name) / "sweep"
        _sweep(folder, num_trials)
        begin = time.perf_counter()
        found = report_sweep(folder)
        seconds = {"read_and_report": time.perf_counter() - begin, "page_load": None}
        chromium = browser.find()
        if chromium:
            seconds["page_load"] = statistics.median(browser.load_seconds(chromium, found.report) for _ in range(loads))
        return {"trials": len(found.rows), "page_bytes": found.report.stat().st_size, "seconds": seconds}


def _sweep(folder: pathlib.Path, num_trials: int) -> None:
    """Train a line of one weight with many settings."""
    import jax.numpy as jnp
    import numpy as np
    import optax

    from gdpjax.sweeps import Model, Task, run_sweep

    def load() -> Any:
        x = np.linspace(-1, 1, 32, dtype=np.float32)
        return (x, 2 * x), (x, 2 * x)

    def build(example: Any) -> Model:
        def loss(w: Any, x: Any, y: Any) -> Any:
            return (w * x - y) ** 2

        return Model(lambda key: jnp.zeros(()), loss, lambda w, x, y: {"accuracy": jnp.mean(abs(w * x - y) < 0.5)})

    numbers = {
        "learning_rate": {"min": 0.01, "max": 1, "count": num_trials // 40, "log": True},
        "l2_clip_norm": [0.5, 1, 2, 4],
        "noise_multiplier": [1, 2, 4, 8, 16],
        "batch_size": 8,
        "epochs": 1,
        "seeds": 2,
    }
    run_sweep(Task(load, build, optax.sgd), {"delta": 1e-5, "hyperparameters": numbers}, folder)
