"""The figures of a sweep: the score against certified epsilon, and against what was varied."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize

from gdpjax.sweeps._layout import Layout, is_percentage, label, shown_score
from gdpjax.sweeps._summary import Configuration, Row, configurations, pareto_front, varied
from gdpjax.sweeps.style import CERTIFIED_COLOR, draw_grid, figure_at, scientific

PARETO, VARIED = "score_against_epsilon.png", "score_against_hyperparameters.png"
MOST_DIGITS = 24
"""Of the marks below an axis, where each value has its own: more would overlap."""
LOGARITHMIC = 5.0
"""An axis whose ends are this factor apart is logarithmic."""


def save_pareto(rows: Sequence[Row], layout: Layout, path: Path) -> None:
    """Draw the score against certified epsilon: every trial, and the front of the configurations' means."""
    good = [row for row in rows if row["error"] is None]
    front = pareto_front(configurations(rows, layout), layout)
    epsilons, scores = [row["epsilon_upper"] for row in good], _shown_scores(good, layout)
    with figure_at(path, figsize=(4.8, 3.2)) as (figure, axes):
        axes.scatter(epsilons, scores, s=12, color="0.55", alpha=0.6, linewidths=0, label="one training")
        _draw_front(axes, front, layout, max(epsilons))
        _set_scale(axes, [float(f"{epsilon:.3g}") for epsilon in epsilons])
        delta = scientific(good[0]["delta"])
        xlabel = rf"certified $\varepsilon$ of one training at $\delta = {delta}$"
        axes.set(xlabel=xlabel, ylabel=label(layout.score))
        # above the axes, where it can hide nothing
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, frameon=False)
        _leave_out_bad(figure, axes, scores, layout)
        draw_grid(axes)


def _shown_scores(rows: Sequence[Row], layout: Layout) -> list[float]:
    return [shown_score(layout.score, row[layout.score]) for row in rows]


def _draw_front(axes: Axes, front: Sequence[Configuration], layout: Layout, right: float) -> None:
    """A staircase: what score a budget buys."""
    epsilons = [one.epsilon_upper for one in front]
    means = [shown_score(layout.score, one.mean) for one in front]
    axes.step([*epsilons, right], [*means, means[-1]], where="post", color=CERTIFIED_COLOR, linewidth=1.2)
    has_spread = any(one.stdev for one in front)
    spread = [shown_score(layout.score, one.stdev or 0.0) for one in front] if has_spread else None
    name = "Pareto front" + (" (mean and sd over seeds)" if has_spread else "")
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
    """Draw the score against each hyperparameter that was varied; False, and no file, where there is none."""
    good = [row for row in rows if row["error"] is None]
    names = varied(good, layout)
    names = [name for name in names if name != "noise_multiplier" or "epsilon" not in names]
    if not names:
        return False
    columns = 2 if len(names) == 4 else min(3, len(names))
    lines = math.ceil(len(names) / columns)
    epsilons, scores = [row["epsilon_upper"] for row in good], _shown_scores(good, layout)
    is_wide = max(epsilons) > LOGARITHMIC * min(epsilons) > 0
    norm = (LogNorm if is_wide else Normalize)(min(epsilons), max(epsilons))

    size = (2.5 * columns + 0.9, 2.4 * lines)
    with figure_at(path, lines, columns, figsize=size, sharey=True, squeeze=False) as (figure, grid):
        dots: Any = None
        for axes, name in zip(grid.flat, names, strict=False):
            values = [row[name] for row in good]
            dots = axes.scatter(values, scores, c=epsilons, s=14, cmap="cividis", norm=norm, linewidths=0)
            _set_scale(axes, values)
            axes.set(xlabel=label(name))
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
    """Logarithmic where the values call for it; a few values are marked as they are."""
    if min(values) > 0 and max(values) > LOGARITHMIC * min(values):
        axes.set_xscale("log")
        _write_plain_numbers(axes.xaxis)
    few = sorted(set(values))
    labels = [f"{value:.3g}" for value in few]
    if len("  ".join(labels)) <= MOST_DIGITS:
        axes.set_xticks(few, labels)
        axes.minorticks_off()
        axes.margins(x=0.15)


def _write_plain_numbers(axis: Any) -> None:
    """0.5, 1, 2 where a logarithmic axis would say powers of ten."""
    if axis.get_scale() == "log":
        axis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(ticker.NullFormatter())


def _leave_out_bad(figure: Any, axes: Axes, scores: Sequence[float], layout: Layout) -> None:
    """Keep a few bad trials from flattening the rest, and write above the figure how many are outside the axis."""
    ordered = sorted(scores, key=layout.better)
    best, median = ordered[-1], ordered[len(ordered) // 2]
    shortest = 3.0 if is_percentage(layout.score) else 0.05 * abs(best)
    length = max(shortest, 3.5 * abs(best - median))
    worst = best - layout.better(length)
    outside = sum(layout.better(score) < layout.better(worst) for score in scores)
    if not outside or not length:
        return
    margin = best + 0.06 * (best - worst)
    axes.set_ylim(*sorted((worst, margin)))
    side = "above" if layout.minimize else "below"
    text = f"{outside} trial{'s' * (outside > 1)} {side} the axis"
    figure.suptitle(text, fontsize=8, color="0.4", x=0.01, ha="left")
