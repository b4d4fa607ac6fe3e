"""Write the report of a sweep: one HTML page with all its resources in it, and its figure beside it as PNG."""

import base64
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
import numpy as np

from gdpjax._core.figures import is_percentage, rounded, shown_score
from gdpjax._core.files import write_atomically
from gdpjax.plotting.style import BELOW, BLUE, COLUMN, GREY, figure, scale_x, scientific
from gdpjax.sweeps import _folder as folders
from gdpjax.sweeps._plans import SEED_NOTICE
from gdpjax.sweeps._results import (
    Configuration,
    Layout,
    Row,
    configurations,
    count,
    label,
    pareto_front,
    price,
    succeeded,
    varied,
)

REPORT, PAGE, PARETO = "report", "index.html", "score_against_epsilon.png"
_TEMPLATE = Path(__file__).with_name("page.html")


def write_report(folder: Path, rows: Sequence[Row]) -> Path:
    """Write the page and the figure into ``folder``/report; returns the page."""
    target = folder / REPORT
    target.mkdir(exist_ok=True)
    about = folders.described(folder)
    layout = about.layout
    names = varied(rows, layout)

    # A column with one value is told once. The first three always stay.
    first = ["trial", layout.score, "epsilon_upper"]
    columns = list(dict.fromkeys([*first, *names, *layout.columns]))
    common = []
    for name in columns[3:]:
        values = {row[name] for row in rows}
        if len(values) == 1 < len(rows):
            common.append(name)

    # The figure is of trials that did not fail.
    front = pareto_front(configurations(rows, layout), layout)
    picture = None
    if front:
        save_pareto(rows, front, layout, target / PARETO)
        content = (target / PARETO).read_bytes()
        picture = base64.b64encode(content).decode()

    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.undefined = jinja2.StrictUndefined
    environment.filters["label"] = layout.label
    environment.filters["up"] = functools.partial(rounded, digits=4, rounding="up")
    template = environment.from_string(_TEMPLATE.read_text(encoding="utf-8"))
    page = template.render(
        about=about,
        layout=layout,
        score=label(layout.score, units=False),
        num_trials=count(about.num_trials, "trial"),
        seed_notice=SEED_NOTICE,
        price=price(rows),
        varied=names,
        front=front,
        rows=rows,
        columns=columns,
        common=common,
        spec=folders.spec_text(folder),
        picture=picture,
    )
    write_atomically(target / PAGE, page)
    return target / PAGE


def save_pareto(
    rows: Sequence[Row],
    front: Sequence[Configuration],
    layout: Layout,
    path: Path,
) -> None:
    """Draw the score against certified epsilon: every trial, and the front of the configurations' means."""
    good = succeeded(rows)
    epsilons = [each.epsilon_upper for each in front]
    means = [shown_score(layout.score, each.mean) for each in front]
    stdevs = [shown_score(layout.score, each.stdev or 0.0) for each in front]
    with figure(size=(COLUMN, 2.8), path=path) as (drawing, axes):
        _draw_trials(axes, good, layout)

        # A staircase, the score that a budget buys, with a bar for the spread over seeds where there are several.
        largest = max(row["epsilon_upper"] for row in good)
        axes.step(
            [*epsilons, largest],
            [*means, means[-1]],
            where="post",
            color=BLUE,
        )
        name = "Pareto front: mean and standard deviation over seeds" if any(stdevs) else "Pareto front"
        axes.errorbar(
            epsilons,
            means,
            stdevs,
            fmt="o",
            capsize=2,
            elinewidth=1,
            color=BLUE,
            label=name,
        )

        delta = scientific(good[0]["delta"])
        xlabel = rf"certified $\varepsilon$ of one training at $\delta = {delta}$"
        axes.set(xlabel=xlabel, ylabel=label(layout.score))
        drawing.legend(loc=BELOW)


def _draw_trials(axes: Any, rows: Sequence[Row], layout: Layout) -> None:
    """Draw a dot for each training, but not for those so bad that they would flatten the rest: the legend counts them.

    They are further from the best score than 3.5 times the distance of the median.
    """
    epsilons = np.array([row["epsilon_upper"] for row in rows], np.float64)
    scores = np.array([shown_score(layout.score, row[layout.score]) for row in rows])
    merit = -scores if layout.minimize else scores
    best = merit.max()
    shortest = 3.0 if is_percentage(layout.score) else 0.05 * abs(best)
    is_seen = best - merit <= max(shortest, 3.5 * (best - np.median(merit)))
    num_left_out = int(np.sum(~is_seen))
    axes.scatter(
        epsilons[is_seen],
        scores[is_seen],
        s=12,
        linewidths=0,
        color=GREY,
        alpha=0.6,
        label=f"one training ({num_left_out} far worse left out)" if num_left_out else "one training",
    )
    scale_x(axes, epsilons, at_values=True)
    axes.grid()
