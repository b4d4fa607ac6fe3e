"""One picture of the result: what the private step consists of, and steps per second of whole trainings."""

import pathlib
from typing import Any

from benchmarks import figures
from benchmarks.training.parts import CLIPPED, PRIVATE

COLOURS = {"gdpjax": figures.OURS[0], "jax_privacy": figures.PEERS[2], "Opacus": figures.PEERS[3]}
"""By the first word of a contender's name."""
PART_COLOURS = {CLIPPED: "0.55", PRIVATE: figures.OURS[0]}


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draw each case's parts and speeds and write the picture; ImportError without matplotlib."""
    # A case whose parts were measured has a row of its own; of the others two share a row.
    cases = sorted(result["cases"].values(), key=lambda case: not case["parts"])
    panels: list[tuple[Any, ...]] = []
    for case in cases:
        if case["parts"]:
            panels.append((_draw_parts, case["parts"], case["title"]))
        panels.append((_draw_trainers, case["trainers"], "" if case["parts"] else case["title"]))
    num_rows = -(-len(panels) // 2)
    size = (8.4, 0.5 + 2.3 * num_rows)
    with figures.picture(path, num_rows, 2, size=size, squeeze=False) as (_, grid):
        # An odd number of panels leaves a place free.
        grid.flat[-1].set_axis_off()
        for axes, (draw_panel, results, title) in zip(grid.flat, panels, strict=False):
            axes.set_axis_on()
            draw_panel(axes, results)
            axes.set_title(_short(title), loc="left", fontsize=9, weight="bold")


def _short(title: str) -> str:
    """Return the first and the last part of a title, on two lines."""
    first, *_, last = title.split(", ") * 2
    return f"{first},\n{last}" if first != last else first


def _draw_parts(axes: Any, parts: dict[str, Any]) -> None:
    """Draw dots on a logarithmic axis, which has no zero for bars to start from."""
    values = [1e3 * at["seconds"]["median"] for at in parts.values()]
    colours = [PART_COLOURS.get(name, figures.OURS[2]) for name in parts]

    # A line leads from the border to each dot.
    rows = range(len(values))
    least, most = min(values) / 2, max(values) * 4
    axes.hlines(rows, least, values, color="0.88", lw=1, zorder=1)
    axes.scatter(values, rows, color=colours, s=34, zorder=3)
    for row, value in enumerate(values):
        axes.annotate(figures.number(value), (value, row), (6, 0), textcoords="offset points", va="center")
    axes.set(xscale="log", xlabel="milliseconds", xlim=(least, most))
    axes.xaxis.set_major_formatter("{x:g}")
    figures.name_rows(axes, list(parts))


def _draw_trainers(axes: Any, trainers: dict[str, Any]) -> None:
    """Draw a bar for each training that ran."""
    speeds = {name: at["steps_per_second"]["median"] for name, at in trainers.items() if "seconds" in at}
    figures.bars(axes, speeds, color=[COLOURS[name.partition(" ")[0]] for name in speeds])
    axes.set(xlabel="steps per second")
