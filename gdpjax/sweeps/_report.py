"""Write the report of a sweep: one HTML page with all its resources in it, and its figures beside it as PNG."""

import base64
import functools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from gdpjax._core.figures import is_percentage, rounded, shown_score
from gdpjax._core.files import write_atomically
from gdpjax.plotting.style import BELOW, BLUE, COLUMN, GREY, figure, number_ticks, scale_x, scientific
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._plans import SEED_NOTICE
from gdpjax.sweeps._results import (
    Layout,
    Row,
    configurations,
    count,
    how_far,
    label,
    pareto_front,
    price,
    succeeded,
    varied,
)

REPORT, PAGE = "report", "index.html"
PARETO, VARIED = "score_against_epsilon.png", "score_against_hyperparameters.png"
_TEMPLATE = Path(__file__).with_name("page.html")


def write_report(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the page and the figures into ``folder``/report; returns the page."""
    target = folder / REPORT
    target.mkdir(exist_ok=True)
    about = folders.described(folder)
    layout = about.layout
    programs = folders.read_programs(folder)
    over, compiled = how_far(len(rows), about.num_trials, programs)
    names = varied(rows, layout)

    # A column with one value is told once. The first three always stay.
    columns = list(dict.fromkeys(["trial", layout.score, "epsilon_upper", *names, *layout.columns]))
    common = [name for name in columns[3:] if len(rows) > 1 and len({row[name] for row in rows}) == 1]

    # The figures, of trials that did not fail: each is in the page, with the text that stands in for it.
    score = label(layout.score, units=False)
    figures = {}
    candidates = configurations(rows, layout)
    if candidates:
        save_pareto(rows, layout, target / PARETO)
        figures[PARETO] = f"{score.capitalize()} against the certified epsilon of one training"
    if candidates and save_varied(rows, layout, target / VARIED):
        figures[VARIED] = f"{score.capitalize()} against each hyperparameter that was varied"

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.undefined = jinja2.StrictUndefined
    environment.filters["label"] = layout.label
    environment.filters["up"] = functools.partial(rounded, digits=4, rounding="up")
    environment.filters["base64"] = lambda name: base64.b64encode((target / name).read_bytes()).decode()
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(
        about=about,
        layout=layout,
        score=score,
        over=over,
        compilations=compiled,
        seed_notice=SEED_NOTICE,
        price=price(rows),
        varied=names,
        front=pareto_front(candidates, layout),
        rows=rows,
        columns=columns,
        common=common,
        programs=programs,
        spec=folders.spec_text(folder),
        figures=figures,
    )
    write_atomically(target / PAGE, page)
    return target / PAGE


def save_pareto(rows: Sequence[Row], layout: Layout, path: Path) -> None:
    """Draw the score against certified epsilon: every trial, and the front of the configurations' means."""
    good = succeeded(rows)
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
    good = succeeded(rows)
    names = varied(good, layout)
    if not names:
        return False

    # A grid of axes, of which the last ones may be left over; the colour of a dot is its epsilon.
    num_columns = 2 if len(names) == 4 else min(3, len(names))
    num_lines = math.ceil(len(names) / num_columns)
    size = 2.2 * num_columns + 1.1, 2.1 * num_lines + 0.3
    epsilons = np.array([row["epsilon_upper"] for row in good])
    with figure(num_lines, num_columns, size=size, path=path, sharey=True, squeeze=False) as (drawing, grid):
        used = list(grid.flat[: len(names)])
        for axes, name in zip(used, names, strict=True):
            _draw_trials(axes, name, good, layout, c=epsilons, cmap="cividis", norm="log")
            axes.set(xlabel=layout.label(name))
        for axes in grid.flat[len(names) :]:
            axes.remove()
        drawing.supylabel(label(layout.score), fontsize="medium")
        bar = drawing.colorbar(used[0].collections[0], ax=used, label=r"certified $\varepsilon$", aspect=25)
        number_ticks(bar.ax)
        drawing.legend(*grid[0, 0].get_legend_handles_labels(), loc=BELOW)
    return True


def _draw_trials(axes: Any, name: str, rows: Sequence[Row], layout: Layout, **options: Any) -> None:
    """Draw a dot for each training.

    A few bad ones would flatten the rest: a triangle on the edge of the axes is at the place of each, and the legend
    has their number.
    """
    values = np.array([row[name] for row in rows], np.float64)
    scores = np.array([shown_score(layout.score, row[layout.score]) for row in rows])
    axes.scatter(values, scores, s=12, linewidths=0, **options)

    # The axis reaches from the best score to 3.5 times the distance of the median.
    merit = -scores if layout.minimize else scores
    best = merit.max()
    shortest = 3.0 if is_percentage(layout.score) else 0.05 * abs(best)
    length = max(shortest, 3.5 * (best - np.median(merit)))
    places = values[merit < best - length]
    if places.size:
        edge = layout.better(best - length)
        axes.set_ylim(*sorted((edge, layout.better(best + 0.06 * length))))
        side, marker = ("above", "^") if layout.minimize else ("below", "v")
        style = {"s": 16, "marker": marker, "color": GREY, "clip_on": False, "zorder": 3}
        axes.scatter(
            places, np.full(places.size, edge), label=f"{count(places.size, 'trial')} {side} the axis", **style
        )
    scale_x(axes, values)
    axes.grid()
