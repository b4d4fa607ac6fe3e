"""One picture of the result: what the private step consists of, and steps per second of whole trainings."""

import pathlib
from typing import Any

from benchmarks.training.parts import CLIPPED, PRIVATE
from benchmarks.writing import picture

COLOURS = {"gdpjax": "#0b6e4f", "jax_privacy": "#e0a458", "Opacus": "#4a5a8a"}


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    cases = list(result["cases"].values())
    size = (8.4, 0.5 + 2.3 * len(cases))
    with picture(path, len(cases), 2, figsize=size, squeeze=False, width_ratios=(1, 1)) as (_, panels):
        for row, case in zip(panels, cases, strict=True):
            _draw_parts(row[0], case["parts"])
            _draw_trainers(row[1], case["trainers"])
            row[0].set_title(case["title"].partition(",")[0], loc="left", fontsize=9, weight="bold")


def _draw_parts(axes: Any, parts: dict[str, Any]) -> None:
    colours = ["0.55" if name == CLIPPED else COLOURS["gdpjax"] if name == PRIVATE else "#7cc7a8" for name in parts]
    values = {name: 1e3 * at["seconds"]["median"] for name, at in parts.items()}
    _bars(axes, values, colours, "milliseconds")


def _draw_trainers(axes: Any, trainers: dict[str, Any]) -> None:
    values = {name: at["steps_per_second"]["median"] for name, at in trainers.items() if "seconds" in at}
    _bars(axes, values, [COLOURS[name.partition(" ")[0]] for name in values], "steps per second")


def _bars(axes: Any, values: dict[str, float], colours: list[str], label: str) -> None:
    """Dots on a logarithmic axis, which has no zero for bars to start from."""
    places = range(len(values))
    axes.hlines(places, min(values.values()) / 2, list(values.values()), color="0.88", lw=1, zorder=1)
    axes.scatter(list(values.values()), places, color=colours, s=34, zorder=3)
    for place, value in zip(places, values.values(), strict=True):
        axes.annotate(f"{value:,.3g}", (value, place), (7, 0), textcoords="offset points", va="center")
    axes.set(xscale="log", xlabel=label, yticks=places, yticklabels=list(values), ylim=(len(values) - 0.5, -0.5))
    axes.set_xlim(min(values.values()) / 2, max(values.values()) * 3)
    axes.tick_params(axis="y", length=0)
