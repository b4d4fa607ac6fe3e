"""The result: means over seeds with intervals, as JSON, as a table, and as a figure."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import scipy.stats
from matplotlib import pyplot as plt

import gdpjax
from experiments.config import CorrelatedConfig
from experiments.correlated.methods import DELTA, METHODS, Task, describe, rmse_of
from experiments.correlated.trials import Trial
from experiments.tables import markdown_table, mean_and_stdev
from gdpjax.sweeps import records
from gdpjax.sweeps.rounding import upper

COLORS = ("#555555", "#D55E00", "#0072B2", "#009E73", "#CC79A7")  # Okabe and Ito
MARKERS = ("o", "s", "^", "v", "D")
STYLE: Any = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "axes.grid": True,
    "grid.alpha": 0.25, "grid.linewidth": 0.5,
}  # fmt: skip
NOTES = """\
Accuracy on the test data in percent: mean over the seeds, with a 95 % interval for the mean (Student's t). The epsilon
is certified, at delta = {delta:g}, of ONE training with its settings fixed beforehand; neighbours differ by a null
example (REPLACE_SPECIAL). Each method chose epochs and learning rate by itself, from {searched} trainings on held-out
training data. Differences between methods that are smaller than the intervals mean nothing; all methods share one test
set of {num_test} examples, whose own standard error is about {test_error:.2f} points."""


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
            ours = [trial for trial in trials if (trial.method, trial.epsilon) == (method, epsilon)]
            plan, values = plans[ours[0]], [accuracies[trial] for trial in ours]
            bracket = plan.epsilon_bounds()
            rows.append(
                {
                    "method": method,
                    "epsilon": epsilon,
                    "epsilon_lower": float(bracket.lower),
                    "epsilon_upper": float(bracket.upper),
                    "accuracy": mean_and_stdev(values) | {"half_width": half_width(values), "values": values},
                    "epochs": ours[0].epochs,
                    "learning_rate": ours[0].learning_rate,
                    "noise_multiplier": plan.noise_multiplier,
                    "num_steps": plan.max_steps,
                    "strategy": describe(plan),
                    "rmse_of_sums": rmse_of(plan),
                }
            )
    flags = f" --task {config.task} --seeds {config.seeds}" + (" --quick" if config.quick else "")
    return {
        "command": f"python -m experiments correlated{flags}",
        "delta": DELTA,
        "task": dataclasses.asdict(task),
        "seeds": config.seeds,
        "searched_per_method": num_searched // len(METHODS),
        "num_test": num_test,
        "rows": rows,
    }


def half_width(values: Sequence[float]) -> float | None:
    """Half the 95 % interval of the mean, which one value does not have.

    >>> f"{half_width([0.0, 1.0]):.3f}"
    '6.353'
    """
    stdev = mean_and_stdev(values)["stdev"]
    if stdev is None:
        return None
    return float(scipy.stats.t.ppf(0.975, len(values) - 1)) * stdev / math.sqrt(len(values))


def write(path: Path, figure: Path, result: dict[str, Any]) -> None:
    """Write the result file, the table beside it, and the figure."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.parent.mkdir(parents=True, exist_ok=True)
    records.write_json(path, result)
    path.with_suffix(".md").write_text(markdown(result))
    with plt.rc_context(STYLE):
        _draw(result, figure)


def markdown(result: dict[str, Any]) -> str:
    """The table of accuracies, and that of the settings."""
    epsilons = result["task"]["epsilons"]
    cells = {(row["method"], row["epsilon"]): row for row in result["rows"]}
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    accuracies = markdown_table(
        ("method", *(f"epsilon {epsilon:g}" for epsilon in epsilons)),
        [(method, *(_accuracy(cells[method, epsilon]) for epsilon in epsilons)) for method in methods],
    )
    settings = markdown_table(
        ("method", "epsilon", "certified", "strategy", "epochs", "steps", "learning rate", "noise", "RMSE of sums"),
        [_settings(row) for row in result["rows"]],
    )
    best = max(row["accuracy"]["mean"] for row in result["rows"])
    notes = NOTES.format(
        delta=result["delta"],
        searched=result["searched_per_method"],
        num_test=result["num_test"],
        test_error=100 * math.sqrt(best * (1 - best) / result["num_test"]),
    )
    head = f"# Correlated noise: {result['task']['dataset']}, {result['task']['model']}, {result['seeds']} seeds"
    last = (
        "RMSE of sums: of the noise in the sum of all steps until now, in clip norms, divided by the batch size. It is "
        "for the epochs that were chosen, and grows with them."
    )
    return "\n\n".join([head, f"`{result['command']}`", accuracies, notes, settings, last]) + "\n"


def _accuracy(row: dict[str, Any]) -> str:
    found = row["accuracy"]
    spread = "" if found["half_width"] is None else f" ± {100 * found['half_width']:.2f}"
    return f"{100 * found['mean']:.2f}{spread}"


def _settings(row: dict[str, Any]) -> tuple[str, ...]:
    return (
        row["method"],
        f"{row['epsilon']:g}",
        f"<= {upper(row['epsilon_upper'], 4)}",
        row["strategy"],
        f"{row['epochs']}",
        f"{row['num_steps']}",
        f"{row['learning_rate']:g}",
        f"{row['noise_multiplier']:.4g}",
        f"{row['rmse_of_sums']:.3g}",
    )


def _draw(result: dict[str, Any], path: Path) -> None:
    """Draw accuracy against epsilon, a line with intervals for each method, side by side at each epsilon."""
    figure, axes = plt.subplots(figsize=(6.8, 3.2), layout="constrained")
    methods = list(dict.fromkeys(row["method"] for row in result["rows"]))
    for place, (method, color, marker) in enumerate(zip(methods, COLORS, MARKERS, strict=False)):
        rows = [row for row in result["rows"] if row["method"] == method]
        shifted = [row["epsilon"] * 1.03 ** (place - (len(methods) - 1) / 2) for row in rows]
        means = [100 * row["accuracy"]["mean"] for row in rows]
        spread = [100 * (row["accuracy"]["half_width"] or 0.0) for row in rows]
        axes.errorbar(
            shifted, means, spread, color=color, marker=marker, markersize=4, capsize=2, linewidth=1, label=method
        )
    epsilons = result["task"]["epsilons"]
    axes.set_xscale("log")
    axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
    axes.minorticks_off()
    axes.set(xlabel=f"certified epsilon (delta = {result['delta']:g})", ylabel="test accuracy (%)")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)
