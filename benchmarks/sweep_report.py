"""The time that a file of a thousand trials takes to open: its rows, the report made of them, and its page."""

import contextlib
import math
import pathlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

from benchmarks import browser

SPEC = """
dataset = "digits"
[hyperparameters]
learning_rate = {{ min = 0.01, max = 1, count = {count}, log = true }}
l2_clip_norm = [0.5, 1, 2, 4]
noise_multiplier = [1, 2, 4, 8, 16]
seeds = 2
"""


def measure(num_trials: int = 1000, loads: int = 3) -> dict[str, Any]:
    """Seconds for made-up trials of a grid; the page's load is None without a browser."""
    from gdpjax.sweeps.parts import described, finish, read_rows, write_report

    with tempfile.TemporaryDirectory() as name:
        folder, times = pathlib.Path(name), {}
        _make_up(folder, num_trials)
        layout = described(folder).layout
        with _timed(times, "read_parts_and_join"):
            finish(folder, layout)
        with _timed(times, "read"):
            rows = read_rows(folder, layout)
        with _timed(times, "report_with_first_compilation"):
            page = write_report(folder, rows)
        with _timed(times, "report"):
            write_report(folder, rows)
        chromium = browser.find()
        load = statistics.median(browser.load_seconds(chromium, page) for _ in range(loads)) if chromium else None
        return {"trials": len(rows), "page_bytes": page.stat().st_size, "seconds": times | {"page_load": load}}


@contextlib.contextmanager
def _timed(times: dict[str, float], name: str) -> Iterator[None]:
    begun = time.perf_counter()
    yield
    times[name] = time.perf_counter() - begun


def _make_up(folder: pathlib.Path, num_trials: int) -> None:
    """The folder of a sweep, in parts of 32 trials, with accuracies that look like those of one."""
    import jax

    from experiments.sweeps.named_task import NamedTask
    from gdpjax.sweeps import parse_spec
    from gdpjax.sweeps.parts import begin, layout_of, list_trials, load_examples, record_program, write_part

    spec = parse_spec(pathlib.Path("made-up.toml"), SPEC.format(count=num_trials // 40), NamedTask())
    trials = list_trials(spec)
    layout = layout_of(spec, trials, ("test_accuracy",))
    begin(folder, jax.random.key(0), spec, load_examples(spec.task), layout, len(trials), "of no program")
    record_program(folder, {"num_steps": 100, "batch_size": 256, "width": 32, "num_compiled": 1})
    rows = []
    for trial in trials:
        noise, rate = trial.settings["noise_multiplier"], trial.settings["learning_rate"]
        row = dict.fromkeys(layout.columns) | {"trial": trial.number, "replicate": trial.replicate, "delta": 1e-5}
        row |= trial.settings | {"num_steps": 100, "sampling_prob": 0.125, "overflow": 1e-14, "mu_clt": 1 / noise}
        row |= {column: 3 / noise for column in layout.columns if column.startswith("epsilon_")}
        spread = 0.02 * math.sin(37.0 * trial.number)
        rows.append(row | {"test_accuracy": 0.9 - 0.2 * abs(math.log10(rate / 0.1)) + spread, "seconds": 0.1})
    for first in range(0, len(rows), 32):
        write_part(folder, rows[first : first + 32], layout)
