"""The result: means over seeds with intervals, as JSON, as a table, and as a figure."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import scipy.stats

import gdpjax
from experiments.config import CorrelatedConfig
from experiments.correlated.methods import DELTA, METHODS, Task, describe, rmse_of
from experiments.correlated.trials import Trial
from experiments.tables import mean_and_stdev, table, table_of, write_with_table
from gdpjax.plotting.style import BELOW, MARKERS, figure, scientific
from gdpjax.sweeps.records import upper

SETTINGS = """
method | method
epsilon | epsilon | g
certified | certified
strategy | strategy
epochs | epochs
steps | num_steps
learning rate | learning_rate | g
noise | noise_multiplier | .4g
RMSE of sums | rmse_of_sums | .3g
"""
SPACING = 1.08
"""The methods stand side by side at each epsilon, a factor apart."""

NOTES = """\
Accuracy on the test data in percent: mean over the seeds, with a 95 % interval for the mean (Student's t). The epsilon
is certified, at delta = {delta:g}, of ONE training with its settings fixed beforehand; neighbours differ by a null
example (REPLACE_SPECIAL).
{choice}
Differences between methods that are smaller than the intervals mean nothing; all methods share one test set of
{num_test} examples, whose own standard error is about {test_error:.2f} points."""


def result_of(
    config: CorrelatedConfig,
    task: Task,
    trials: Sequence[Trial],
    plans: Mapping[Trial, gdpjax.Plan],
    accuracies: Mapping[Trial, float],
    num_searched: int,
    num_test: int,
) -> dict[str, Any]:
    """Return what is written: one row for each method and epsilon."""
    rows = []
    for method in METHODS:
        for epsilon in task.epsilons:
            seeds = [trial for trial in trials if (trial.method, trial.epsilon) == (method, epsilon)]
            values = [accuracies[trial] for trial in seeds]
            rows.append(_row(seeds[0], plans[seeds[0]], values))
    return {
        "command": f"python -m experiments correlated --task {config.task} --seeds {config.seeds}",
        "delta": DELTA,
        "task": dataclasses.asdict(task),
        "seeds": config.seeds,
        "searched_per_method": num_searched // len(METHODS),
        "num_test": num_test,
        "rows": rows,
    }


def _row(trial: Trial, plan: gdpjax.Plan, accuracies: list[float]) -> dict[str, Any]:
    """Return a row of the result, from one of its trainings, the plan of all, and the accuracy of each."""
    bracket = plan.epsilon_bounds()
    accuracy = mean_and_stdev(accuracies)
    return {
        "method": trial.method,
        "epsilon": trial.epsilon,
        "epsilon_lower": float(bracket.lower),
        "epsilon_upper": float(bracket.upper),
        "accuracy": accuracy | {"half_width": half_width(accuracies), "values": accuracies},
        "epochs": trial.epochs,
        "learning_rate": trial.learning_rate,
        "noise_multiplier": plan.noise_multiplier,
        "num_steps": plan.num_steps,
        "strategy": describe(plan),
        "rmse_of_sums": rmse_of(plan),
    }


def half_width(values: Sequence[float]) -> float | None:
    """Return half the 95 % interval of the mean (Student's t), which one value does not have.

    >>> f"{half_width([0.0, 1.0]):.3f}"
    '6.353'
    """
    stdev = mean_and_stdev(values)["stdev"]
    if stdev is None:
        return None
    quantile = float(scipy.stats.t.ppf(0.975, len(values) - 1))
    return quantile * stdev / math.sqrt(len(values))


def write(path: Path, picture: Path, result: dict[str, Any]) -> None:
    """Write the result file, the table beside it, and the figure."""
    write_with_table(path, result, markdown(result))
    picture.parent.mkdir(parents=True, exist_ok=True)
    _draw(result, picture)


def markdown(result: dict[str, Any]) -> str:
    """Return the table of accuracies, and that of the settings."""
    epsilons = result["task"]["epsilons"]
    row_of = {(row["method"], row["epsilon"]): row for row in result["rows"]}
    lines = []
    for method in _methods(result):
        lines.append([method, *(_accuracy(row_of[method, epsilon]) for epsilon in epsilons)])
    accuracies = table(["method", *(f"epsilon {epsilon:g}" for epsilon in epsilons)], lines)
    certified = [{"certified": f"<= {upper(row['epsilon_upper'], 4)}"} for row in result["rows"]]
    settings = table_of(SETTINGS, [row | more for row, more in zip(result["rows"], certified, strict=True)])

    best = max(row["accuracy"]["mean"] for row in result["rows"])
    notes = NOTES.format(
        delta=result["delta"],
        choice=_choice(result),
        num_test=result["num_test"],
        test_error=100 * math.sqrt(best * (1 - best) / result["num_test"]),
    )
    head = f"# Correlated noise: {result['task']['dataset']}, {result['task']['model']}, {result['seeds']} seeds"
    last = (
        "RMSE of sums: of the noise in the sum of all steps until now, in clip norms, divided by the batch size. It is "
        "for the epochs in its row, and grows with them."
    )
    return "\n\n".join([head, f"`{result['command']}`", accuracies, notes, settings, last]) + "\n"


def _choice(result: dict[str, Any]) -> str:
    """Return what was chosen for each method and epsilon, and from how many trainings."""
    num_epsilons = len(result["task"]["epsilons"])
    num_trainings = result["searched_per_method"] // num_epsilons
    source = f"from {num_trainings} trainings on held-out training data"
    epochs = result["task"]["epochs"]
    if len(epochs) > 1:
        return f"For each epsilon, each method chose epochs and learning rate by itself, {source}."
    return f"For each epsilon, each method chose its learning rate by itself, {source}; all have the same epochs."


def _accuracy(row: dict[str, Any]) -> str:
    accuracy = row["accuracy"]
    interval = "" if accuracy["half_width"] is None else f" ± {100 * accuracy['half_width']:.2f}"
    return f"{100 * accuracy['mean']:.2f}{interval}"


def _draw(result: dict[str, Any], path: Path) -> None:
    """Draw accuracy against epsilon, a line with intervals for each method, side by side at each epsilon."""
    methods = _methods(result)
    middle = (len(methods) - 1) / 2
    with figure(size=(4.8, 3.6), path=path) as (drawing, axes):
        for place, (method, marker) in enumerate(zip(methods, MARKERS, strict=False)):
            rows = [row for row in result["rows"] if row["method"] == method]
            epsilons = [row["epsilon"] * SPACING ** (place - middle) for row in rows]
            means = [100 * row["accuracy"]["mean"] for row in rows]
            spread = [100 * (row["accuracy"]["half_width"] or 0.0) for row in rows]
            axes.errorbar(epsilons, means, spread, label=method, linewidth=1, marker=marker, capsize=2)

        epsilons = result["task"]["epsilons"]
        axes.set_xscale("log")
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.minorticks_off()
        xlabel = rf"certified $\varepsilon$ at $\delta = {scientific(result['delta'])}$; the methods side by side"
        axes.set(xlabel=xlabel, ylabel="test accuracy (%)")
        axes.grid()
        drawing.legend(loc=BELOW, ncols=2)


def _methods(result: dict[str, Any]) -> list[str]:
    """Return the names of the methods, in the order of the rows."""
    return list(dict.fromkeys(row["method"] for row in result["rows"]))
