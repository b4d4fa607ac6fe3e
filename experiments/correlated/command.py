"""The command ``correlated``: choose settings on held-out data, then train with several seeds."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress

import gdpjax
from experiments import data
from experiments.config import CorrelatedConfig
from experiments.correlated import tables
from experiments.correlated.methods import METHODS, TASKS, Task, plan_of
from experiments.correlated.trials import Trial, train_missing
from experiments.data import Dataset
from experiments.progress import progress_bar
from gdpjax.sweeps import records


def run(config: CorrelatedConfig) -> None:
    """Train what is missing, then write the result file, its table and the figure."""
    task = TASKS[config.task]
    name = f"correlated_{config.task}"

    # The record is in the folder of the runs; what is there is not trained again.
    folder = config.runs / name
    _begin(folder, task)
    dataset = data.load(task.dataset)
    console = Console()
    bar = progress_bar(console)
    with bar:
        result = _compare(task, dataset, config, folder, bar)
    path = config.results / f"{name}.json"
    tables.write(path, config.figures / f"{name}.png", result)
    console.print(Markdown(tables.markdown(result)))
    console.print(f"Result: {path}, {path.with_suffix('.md')} and {config.figures / name}.png", soft_wrap=True)


def _begin(folder: Path, task: Task) -> None:
    """Write the settings beside the record, or refuse a record of other settings."""
    settings = dataclasses.asdict(task)
    if (folder / records.CONFIG).is_file():
        records.refuse_differences(folder, settings)
        return
    records.make_folder(folder)
    records.write_json(folder / records.CONFIG, {"config": settings})


def _compare(task: Task, dataset: Dataset, config: CorrelatedConfig, folder: Path, bar: Progress) -> dict[str, Any]:
    """Search, train, and return the result."""
    # Every method with every setting, on held-out data.
    searched = dataset.hold_out(task.hold_out)
    search = []
    settings = itertools.product(METHODS, task.epsilons, task.epochs, task.learning_rates)
    for method, epsilon, epochs, rate in settings:
        search.append(Trial("search", method, epsilon, epochs, rate, 0))
    done = _counter(bar, "settings, on held-out data", len(search))
    plans = _plans(search, task, searched.num_examples)
    found = train_missing(search, plans, task, searched, folder, done)

    # The settings with the best held-out accuracy; of equal ones the first.
    best: dict[tuple[str, float], Trial] = {}
    for trial in search:
        chosen = best.setdefault((trial.method, trial.epsilon), trial)
        if found[trial] > found[chosen]:
            best[trial.method, trial.epsilon] = trial

    # With these, several seeds on the test data.
    final = []
    for trial in best.values():
        for seed in range(config.seeds):
            final.append(trial._replace(stage="final", seed=seed))
    done = _counter(bar, "trainings, on the test data", len(final))
    plans = _plans(final, task, dataset.num_examples)
    accuracies = train_missing(final, plans, task, dataset, folder, done)
    return tables.result_of(config, task, final, plans, accuracies, len(search), len(dataset.test_labels))


def _counter(bar: Progress, words: str, total: int) -> Callable[[int], None]:
    """Return what moves a new line of the progress bar."""
    line = bar.add_task(words, total=total)
    return lambda number: bar.advance(line, number)


def _plans(trials: list[Trial], task: Task, num_examples: int) -> dict[Trial, gdpjax.Plan]:
    """Return the plan of each training; those that differ in learning rate or seed share one."""
    made = functools.cache(lambda method, epochs, epsilon: plan_of(method, task, num_examples, epochs, epsilon))
    return {trial: made(trial.method, trial.epochs, trial.epsilon) for trial in trials}
