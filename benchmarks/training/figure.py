"""One picture of the result: what the private step consists of, and steps per second of whole trainings."""

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from benchmarks.training.parts import CLIPPED, PRIVATE
from benchmarks.writing import picture

COLOURS = {
    "gdpjax": "#0b6e4f",
    "jax_privacy": "#e0a458",
    "Opacus": "#4a5a8a",
}
"""By the first word of a contender's name."""
PART_COLOURS = {
    CLIPPED: "0.55",
    PRIVATE: COLOURS["gdpjax"],
}
OTHER_PARTS = "#7cc7a8"


class Panel(NamedTuple):
    """One of the axes: what draws it, from which results, under which title."""

    draw: Callable[[Any, dict[str, Any]], None]
    results: dict[str, Any]
    title: str | None


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draw each case's parts and speeds and write the picture; ImportError without matplotlib."""
    panels = _panels(list(result["cases"].values()))
    num_rows = -(-len(panels) // 2)
    size = (8.4, 0.5 + 2.3 * num_rows)
    with picture(path, num_rows, 2, size=size, squeeze=False) as (_, grid):
        # An odd number of panels leaves a place free.
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, panel in zip(grid.flat, panels, strict=False):
            panel.draw(axes, panel.results)
            if panel.title is not None:
                axes.set_title(_short(panel.title), loc="left", fontsize=9, weight="bold")


def _panels(cases: list[dict[str, Any]]) -> list[Panel]:
    """Return the panels: a case whose parts were measured has a row of its own; of the others two share a row."""
    with_parts = [case for case in cases if case["parts"]]
    without = [case for case in cases if not case["parts"]]
    panels = []
    for case in with_parts:
        panels.append(Panel(_draw_parts, case["parts"], case["title"]))
        panels.append(Panel(_draw_trainers, case["trainers"], None))
    for case in without:
        panels.append(Panel(_draw_trainers, case["trainers"], case["title"]))
    return panels


def _short(title: str) -> str:
    """Return the first and the last part of a title, on two lines."""
    parts = title.split(", ")
    first, last = parts[0], parts[-1]
    return first if first == last else f"{first},\n{last}"


def _draw_parts(axes: Any, parts: dict[str, Any]) -> None:
    """Draw dots on a logarithmic axis, which has no zero for bars to start from."""
    milliseconds = {}
    for name, measured in parts.items():
        milliseconds[name] = 1e3 * measured["seconds"]["median"]
    colours = [PART_COLOURS.get(name, OTHER_PARTS) for name in parts]

    # A line leads from the border to each dot.
    values = list(milliseconds.values())
    rows = range(len(values))
    least = min(values) / 2
    most = max(values) * 4
    axes.hlines(rows, least, values, color="0.88", lw=1, zorder=1)
    axes.scatter(values, rows, color=colours, s=34, zorder=3)
    axes.set(xscale="log", xlabel="milliseconds", xlim=(least, most))
    axes.xaxis.set_major_formatter("{x:g}")
    _label(axes, milliseconds)


def _draw_trainers(axes: Any, trainers: dict[str, Any]) -> None:
    """Draw a bar for each training that ran."""
    speeds = {}
    for name, trainer in trainers.items():
        if "seconds" in trainer:
            speeds[name] = trainer["steps_per_second"]["median"]
    libraries = [name.partition(" ")[0] for name in speeds]
    colours = [COLOURS[library] for library in libraries]
    rows = range(len(speeds))
    axes.barh(rows, list(speeds.values()), height=0.5, color=colours)

    # Room at the right for the numbers.
    fastest = max(speeds.values(), default=1)
    axes.set(xlabel="steps per second", xlim=(0, 1.2 * fastest))
    _label(axes, speeds)


def _label(axes: Any, values: dict[str, float]) -> None:
    """Name the rows, and write each value beside its mark."""
    num_rows = len(values)
    axes.set(yticks=range(num_rows), yticklabels=list(values))
    axes.set(ylim=(num_rows - 0.5, -0.5))  # the first row is at the top
    axes.tick_params(axis="y", length=0)
    for row, value in enumerate(values.values()):
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        right_of_it = (6, 0)
        axes.annotate(text, (value, row), right_of_it, textcoords="offset points", va="center")
