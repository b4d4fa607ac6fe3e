"""The figures of a sweep: the score against certified epsilon, and against what was varied."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from gdpjax.sweeps._layout import Layout, is_percentage, label, shown_score
from gdpjax.sweeps._summary import Configuration, Row, configurations, count, pareto_front, varied
from gdpjax.sweeps.style import CERTIFIED_COLOR, draw_grid, figure_at, scientific

PARETO, VARIED = "score_against_epsilon.png", "score_against_hyperparameters.png"
MOST_DIGITS = 24
"""The longest text of marks below an axis where each value has its own: more would overlap."""
LOGARITHMIC = 5.0
"""An axis whose ends are this factor apart is logarithmic."""


def save_pareto(rows: Sequence[Row], layout: Layout, path: Path) -> None:
    """Draw the score against certified epsilon: every trial, and the front of the configurations' means."""
    good = [row for row in rows if row["error"] is None]
    front = pareto_front(configurations(rows, layout), layout)
    epsilons = [row["epsilon_upper"] for row in good]
    scores = _shown_scores(good, layout)
    with figure_at(path, figsize=(4.8, 3.2)) as (figure, axes):
        axes.scatter(epsilons, scores, s=12, color="0.55", alpha=0.6, linewidths=0, label="one training")
        _draw_front(axes, front, layout, max(epsilons))
        _set_scale(axes, [float(f"{epsilon:.3g}") for epsilon in epsilons])
        delta = scientific(good[0]["delta"])
        xlabel = rf"certified $\varepsilon$ of one training at $\delta = {delta}$"
        axes.set(xlabel=xlabel, ylabel=label(layout.score))
        # Above the axes, where it can hide nothing.
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, frameon=False)
        _leave_out_bad(figure, axes, scores, layout)
        draw_grid(axes)


def _shown_scores(rows: Sequence[Row], layout: Layout) -> list[float]:
    return [shown_score(layout.score, row[layout.score]) for row in rows]


def _draw_front(axes: Axes, front: Sequence[Configuration], layout: Layout, right: float) -> None:
    """Draw a staircase: the score that a budget buys."""
    epsilons = [configuration.epsilon_upper for configuration in front]
    means = [shown_score(layout.score, configuration.mean) for configuration in front]
    axes.step([*epsilons, right], [*means, means[-1]], where="post", color=CERTIFIED_COLOR, linewidth=1.2)

    # The corners, with a bar for the spread over seeds where there are several.
    name = "Pareto front"
    spread = None
    if any(configuration.stdev for configuration in front):
        name = "Pareto front: mean and standard deviation over seeds"
        spread = [shown_score(layout.score, configuration.stdev or 0.0) for configuration in front]
    axes.errorbar(
        epsilons,
        means,
        spread,
        fmt="o",
        markersize=4.5,
        capsize=2,
        elinewidth=1,
        color=CERTIFIED_COLOR,
        label=name,
    )


def save_varied(rows: Sequence[Row], layout: Layout, path: Path) -> bool:
    """Draw the score against each hyperparameter that was varied; False, and no file, if there is none."""
    good = [row for row in rows if row["error"] is None]
    names = varied(good, layout)
    # A calibrated noise multiplier is told by its target.
    if "epsilon" in names and "noise_multiplier" in names:
        names.remove("noise_multiplier")
    if not names:
        return False

    # The colour of a dot is its epsilon.
    epsilons = [row["epsilon_upper"] for row in good]
    scores = _shown_scores(good, layout)
    smallest = min(epsilons)
    largest = max(epsilons)
    is_wide = largest > LOGARITHMIC * smallest > 0
    scale = LogNorm if is_wide else Normalize
    norm = scale(smallest, largest)

    # A grid of axes, of which the last ones may be left over.
    num_columns = 2 if len(names) == 4 else min(3, len(names))
    num_lines = math.ceil(len(names) / num_columns)
    size = (2.5 * num_columns + 0.9, 2.4 * num_lines)
    with figure_at(path, num_lines, num_columns, figsize=size, sharey=True, squeeze=False) as (figure, grid):
        dots: Any = None
        for axes, name in zip(grid.flat, names, strict=False):
            values = [row[name] for row in good]
            dots = axes.scatter(values, scores, c=epsilons, s=14, cmap="cividis", norm=norm, linewidths=0)
            _set_scale(axes, values)
            axes.set(xlabel=layout.label(name))
            draw_grid(axes)
        for axes in grid.flat[len(names) :]:
            axes.remove()
        for axes in grid[:, 0]:
            axes.set(ylabel=label(layout.score))
        _leave_out_bad(figure, grid[0, 0], scores, layout)
        bar = figure.colorbar(dots, ax=list(grid.flat[: len(names)]), label=r"certified $\varepsilon$", aspect=25)
        _write_plain_numbers(bar.ax.yaxis)
    return True


def _set_scale(axes: Axes, values: Sequence[float]) -> None:
    """Make the axis logarithmic where the values call for it, and mark a few values as they are."""
    if min(values) > 0 and max(values) > LOGARITHMIC * min(values):
        axes.set_xscale("log")
        _write_plain_numbers(axes.xaxis)
    distinct = sorted(set(values))
    labels = [f"{value:.3g}" for value in distinct]
    if len("  ".join(labels)) <= MOST_DIGITS:
        axes.set_xticks(distinct, labels)
        axes.minorticks_off()
        axes.margins(x=0.15)


def _write_plain_numbers(axis: Any) -> None:
    """Write 0.5, 1, 2 where a logarithmic axis would have powers of ten."""
    if axis.get_scale() == "log":
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())


def _leave_out_bad(figure: Any, axes: Axes, scores: Sequence[float], layout: Layout) -> None:
    """Keep a few bad trials from flattening the rest, and write above the figure how many are outside the axis."""
    # The axis reaches from the best score to 3.5 times the distance of the median.
    ordered = sorted(scores, key=layout.better)
    best = ordered[-1]
    median = ordered[len(ordered) // 2]
    shortest = 3.0 if is_percentage(layout.score) else 0.05 * abs(best)
    length = max(shortest, 3.5 * abs(best - median))
    worst = best - layout.better(length)

    num_outside = sum(layout.better(score) < layout.better(worst) for score in scores)
    if not num_outside or not length:
        return
    margin = best + 0.06 * (best - worst)
    axes.set_ylim(*sorted((worst, margin)))
    side = "above" if layout.minimize else "below"
    text = f"{count(num_outside, 'trial')} {side} the axis"
    figure.suptitle(text, fontsize=8, color="0.4", x=0.01, ha="left")
