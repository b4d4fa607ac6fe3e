"""The figures of a sweep: the score against certified epsilon, and against what was varied."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gdpjax._core.figures import is_percentage, shown_score
from gdpjax.plotting.style import BELOW, BLUE, COLUMN, GREY, figure, number_ticks, scale_x, scientific
from gdpjax.sweeps._layout import Layout, label
from gdpjax.sweeps._summary import Row, configurations, count, pareto_front, varied

PARETO, VARIED = "score_against_epsilon.png", "score_against_hyperparameters.png"
LETTERS = 26
"""How many letters fit below an axis."""


def save_pareto(rows: Sequence[Row], layout: Layout, path: Path) -> None:
    """Draw the score against certified epsilon: every trial, and the front of the configurations' means."""
    good = [row for row in rows if row["error"] is None]
    front = pareto_front(configurations(rows, layout), layout)
    epsilons = [configuration.epsilon_upper for configuration in front]
    means = [shown_score(layout.score, configuration.mean) for configuration in front]
    stdevs = [shown_score(layout.score, configuration.stdev or 0.0) for configuration in front]
    with figure(size=(COLUMN, 2.8), path=path) as (drawing, axes):
        _draw_trials(axes, "epsilon_upper", good, layout, color=GREY, alpha=0.6, label="one training")

        # A staircase, the score that a budget buys, with a bar for the spread over seeds where there are several.
        largest = max(row["epsilon_upper"] for row in good)
        axes.step([*epsilons, largest], [*means, means[-1]], where="post", color=BLUE)
        name = "Pareto front: mean and standard deviation over seeds" if any(stdevs) else "Pareto front"
        axes.errorbar(epsilons, means, stdevs, fmt="o", capsize=2, elinewidth=1, color=BLUE, label=name)

        # A bar may end above the best trial.
        ends = [mean + layout.better(stdev) for mean, stdev in zip(means, stdevs, strict=True)]
        lower, upper = axes.get_ylim()
        axes.set_ylim(min([lower, *ends]), max([upper, *ends]))

        delta = scientific(good[0]["delta"])
        xlabel = rf"certified $\varepsilon$ of one training at $\delta = {delta}$"
        axes.set(xlabel=xlabel, ylabel=label(layout.score))
        drawing.legend(loc=BELOW)


def save_varied(rows: Sequence[Row], layout: Layout, path: Path) -> bool:
    """Draw the score against each hyperparameter that was varied; False, and no file, if there is none."""
    good = [row for row in rows if row["error"] is None]
    names = varied(good, layout)
    # A calibrated noise multiplier is told by its target.
    if "epsilon" in names and "noise_multiplier" in names:
        names.remove("noise_multiplier")
    if not names:
        return False

    # A grid of axes, of which the last ones may be left over.
    num_columns = 2 if len(names) == 4 else min(3, len(names))
    num_lines = math.ceil(len(names) / num_columns)
    size = 2.2 * num_columns + 1.1, 2.1 * num_lines + 0.3
    with figure(num_lines, num_columns, size=size, path=path, sharey=True, squeeze=False) as (drawing, grid):
        # The colour of a dot is its epsilon.
        epsilons = np.array([row["epsilon_upper"] for row in good])
        colors = {"c": epsilons, "cmap": "cividis", "norm": "log"}
        used = list(grid.flat[: len(names)])
        for axes, name in zip(used, names, strict=True):
            dots = _draw_trials(axes, name, good, layout, **colors)
            axes.set(xlabel=layout.label(name))
        for axes in grid.flat[len(names) :]:
            axes.remove()
        drawing.supylabel(label(layout.score), fontsize="medium")
        bar = drawing.colorbar(dots, ax=used, label=r"certified $\varepsilon$", aspect=25)
        number_ticks(bar.ax)
        drawing.legend(*grid[0, 0].get_legend_handles_labels(), loc=BELOW)
    return True


def _draw_trials(axes: Any, name: str, rows: Sequence[Row], layout: Layout, **options: Any) -> Any:
    """Draw a dot for each training, and return the dots.

    A few bad ones would flatten the rest: a triangle on the edge of the axes is at the place of each, and the legend
    has their number in words.
    """
    values = np.array([row[name] for row in rows], np.float64)
    scores = np.array([shown_score(layout.score, row[layout.score]) for row in rows])
    dots = axes.scatter(values, scores, s=12, linewidths=0, **options)

    # The axis reaches from the best score to 3.5 times the distance of the median.
    merit = -scores if layout.minimize else scores
    best = merit.max()
    shortest = 3.0 if is_percentage(layout.score) else 0.05 * abs(best)
    length = max(shortest, 3.5 * (best - np.median(merit)))
    is_outside = merit < best - length
    if is_outside.any():
        edge = layout.better(best - length)
        axes.set_ylim(*sorted((edge, layout.better(best + 0.06 * length))))
        side, marker = ("above", "^") if layout.minimize else ("below", "v")
        places = values[is_outside]
        words = f"{count(places.size, 'trial')} {side} the axis"
        edges = np.full(places.size, edge)
        axes.scatter(places, edges, s=16, marker=marker, color=GREY, clip_on=False, zorder=3, label=words)
    _set_scale(axes, values)
    axes.grid()
    return dots


def _set_scale(axes: Any, values: np.ndarray) -> None:
    """Make the axis logarithmic where the values call for it, and mark the values themselves where all have room."""
    scale_x(axes, values)
    texts = {f"{value:.3g}": value for value in np.unique(values)}
    places = list(texts.values())
    gaps = np.diff(np.log(places) if axes.get_xscale() == "log" else places)
    letters = max(map(len, texts)) + 1
    if (LETTERS * gaps > letters * gaps.sum()).all():
        axes.set_xticks(places, list(texts))
        axes.minorticks_off()
        axes.margins(x=0.15)
