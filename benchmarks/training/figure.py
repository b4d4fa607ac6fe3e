"""One picture of the result: what the private step consists of, and steps per second of whole trainings."""

import pathlib
from typing import Any

from benchmarks.training.parts import CLIPPED, PRIVATE
from benchmarks.writing import picture

COLOURS = {"gdpjax": "#0b6e4f", "jax_privacy": "#e0a458", "Opacus": "#4a5a8a"}


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Draw each case's parts and speeds and write the picture; ImportError without matplotlib."""
    # A case whose parts were measured has a row of its own; of the others, which follow, two share a row.
    panels = []
    for case in sorted(result["cases"].values(), key=lambda case: not case["parts"]):
        if case["parts"]:
            panels.append((_draw_parts, case["parts"], case["title"]))
        panels.append((_draw_trainers, case["trainers"], None if case["parts"] else case["title"]))
    num_rows = -(-len(panels) // 2)
    with picture(path, num_rows, 2, figsize=(8.4, 0.5 + 2.3 * num_rows), squeeze=False) as (_, grid):
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for axes, (draw_panel, values, title) in zip(grid.flat, panels, strict=False):
            draw_panel(axes, values)
            if title is not None:
                words = title.split(", ")
                short = ",\n".join(dict.fromkeys((words[0], words[-1])))
                axes.set_title(short, loc="left", fontsize=9, weight="bold")


def _draw_parts(axes: Any, parts: dict[str, Any]) -> None:
    """Dots on a logarithmic axis, which has no zero for bars to start from."""
    values = {name: 1e3 * at["seconds"]["median"] for name, at in parts.items()}
    colours = ["0.55" if name == CLIPPED else COLOURS["gdpjax"] if name == PRIVATE else "#7cc7a8" for name in parts]
    least, most = min(values.values()) / 2, max(values.values()) * 4
    axes.hlines(range(len(values)), least, list(values.values()), color="0.88", lw=1, zorder=1)
    axes.scatter(list(values.values()), range(len(values)), color=colours, s=34, zorder=3)
    axes.set(xscale="log", xlabel="milliseconds", xlim=(least, most))
    axes.xaxis.set_major_formatter("{x:g}")
    _label(axes, values)


def _draw_trainers(axes: Any, trainers: dict[str, Any]) -> None:
    values = {name: at["steps_per_second"]["median"] for name, at in trainers.items() if "seconds" in at}
    colours = [COLOURS[name.partition(" ")[0]] for name in values]
    axes.barh(range(len(values)), list(values.values()), height=0.5, color=colours)
    axes.set(xlabel="steps per second", xlim=(0, 1.2 * max(values.values(), default=1)))
    _label(axes, values)


def _label(axes: Any, values: dict[str, float]) -> None:
    axes.set(yticks=range(len(values)), yticklabels=list(values), ylim=(len(values) - 0.5, -0.5))
    axes.tick_params(axis="y", length=0)
    for place, value in enumerate(values.values()):
        text = f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
        axes.annotate(text, (value, place), (6, 0), textcoords="offset points", va="center")
