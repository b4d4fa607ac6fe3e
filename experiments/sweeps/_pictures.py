"""The figures of a sweep, drawn without a display: accuracy against certified epsilon, and against what was varied."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from experiments.plots import CERTIFIED_COLOR, scientific
from experiments.sweeps._results import Row
from experiments.sweeps._summary import CONFIGURATION, Configuration, configurations, pareto_front

STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
PARETO, VARIED = "accuracy_against_epsilon.png", "accuracy_against_hyperparameters.png"
MOST_DIGITS = 24
"""Of the marks below an axis, where each value has its own: more would overlap."""
LOGARITHMIC = 5.0
"""An axis whose ends are this factor apart is logarithmic."""


def save_pareto(rows: Sequence[Row], path: Path) -> None:
    """Test accuracy against certified epsilon: every trial, and the front of the configurations' means."""
    good = [row for row in rows if row["error"] is None]
    front = pareto_front(configurations(rows))
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(figsize=(4.8, 3.2), layout="constrained")
        epsilons, accuracies = [row["epsilon_upper"] for row in good], [100 * row["test_accuracy"] for row in good]
        axes.scatter(epsilons, accuracies, s=12, color="0.55", alpha=0.6, linewidths=0, label="one training")
        _draw_front(axes, front, max(epsilons))
        _set_scale(axes, [float(f"{epsilon:.3g}") for epsilon in epsilons], ticks=True)
        below = _set_floor(axes, accuracies)
        delta = scientific(good[0]["delta"])
        axes.set(xlabel=rf"certified $\varepsilon$ of one training at $\delta = {delta}$", ylabel="test accuracy (%)")
        # above the axes, where it can hide nothing
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, frameon=False)
        if below:
            figure.suptitle(below, fontsize=8, color="0.4", x=0.01, ha="left")
        axes.grid(alpha=0.25, linewidth=0.5)
        figure.savefig(path, dpi=200)
        plt.close(figure)


def _draw_front(axes: Axes, front: Sequence[Configuration], right: float) -> None:
    """A staircase: what accuracy a budget buys."""
    epsilons, means = [one.epsilon_upper for one in front], [100 * one.mean for one in front]
    axes.step([*epsilons, right], [*means, means[-1]], where="post", color=CERTIFIED_COLOR, linewidth=1.2)
    spread = [100 * (one.stdev or 0.0) for one in front] if any(one.stdev for one in front) else None
    axes.errorbar(
        epsilons, means, spread, fmt="o", markersize=4.5, capsize=2, elinewidth=1, color=CERTIFIED_COLOR,
        label="Pareto front" + (" (mean and sd over seeds)" if spread else ""),
    )  # fmt: skip


def save_varied(rows: Sequence[Row], path: Path) -> bool:
    """Test accuracy against each hyperparameter that was varied; False, and no file, where there is none."""
    good = [row for row in rows if row["error"] is None]
    names = [name for name in CONFIGURATION if len({row[name] for row in good} - {None}) > 1]
    names = [name for name in names if name != "noise_multiplier" or "epsilon" not in names]
    if not names:
        return False
    columns = 2 if len(names) == 4 else min(3, len(names))
    lines = math.ceil(len(names) / columns)
    with plt.rc_context(STYLE):
        shape = {"figsize": (2.5 * columns + 0.9, 2.4 * lines), "sharey": True, "squeeze": False}
        figure, grid = plt.subplots(lines, columns, layout="constrained", **shape)
        epsilons = [row["epsilon_upper"] for row in good]
        norm = (LogNorm if max(epsilons) > LOGARITHMIC * min(epsilons) > 0 else Normalize)(min(epsilons), max(epsilons))
        for axes, name in zip(grid.flat, names, strict=False):
            values, accuracies = [row[name] for row in good], [100 * row["test_accuracy"] for row in good]
            dots = axes.scatter(values, accuracies, c=epsilons, s=14, cmap="cividis", norm=norm, linewidths=0)
            _set_scale(axes, values, ticks=True)
            axes.set(xlabel=name.replace("_", " ") if name != "epsilon" else r"target $\varepsilon$")
            axes.grid(alpha=0.25, linewidth=0.5)
        for axes in grid.flat[len(names) :]:
            axes.remove()
        for axes in grid[:, 0]:
            axes.set(ylabel="test accuracy (%)")
        if below := _set_floor(grid[0, 0], accuracies):
            figure.suptitle(below, fontsize=8, color="0.4", x=0.01, ha="left")
        bar = figure.colorbar(dots, ax=list(grid.flat[: len(names)]), label=r"certified $\varepsilon$", aspect=25)
        _plain_numbers(bar.ax.yaxis)
        figure.savefig(path, dpi=200)
        plt.close(figure)
    return True


def _set_scale(axes: Axes, values: Sequence[float], ticks: bool = False) -> None:
    """Logarithmic where the values call for it; with ``ticks`` a few values are marked as they are."""
    if min(values) > 0 and max(values) > LOGARITHMIC * min(values):
        axes.set_xscale("log")
        _plain_numbers(axes.xaxis)
    few = sorted(set(values))
    labels = [f"{value:.3g}" for value in few]
    if ticks and len("  ".join(labels)) <= MOST_DIGITS:
        axes.set_xticks(few, labels)
        axes.minorticks_off()
        axes.margins(x=0.15)


def _plain_numbers(axis: Any) -> None:
    """0.5, 1, 2 where a logarithmic axis would say powers of ten."""
    if axis.get_scale() == "log":
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())


def _set_floor(axes: Axes, accuracies: Sequence[float]) -> str | None:
    """Keep a few bad trials from flattening the rest; returns how many are below the axis, in words."""
    ordered = sorted(accuracies)
    best, median = ordered[-1], ordered[len(ordered) // 2]
    floor = best - max(3.0, 3.5 * (best - median))
    below = sum(value < floor for value in ordered)
    if not below:
        return None
    axes.set_ylim(floor, best + 0.06 * (best - floor))
    return f"{below} trial{'s' * (below > 1)} below the axis"
