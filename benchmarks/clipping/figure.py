"""One picture of the result: step time and temporary memory over those without privacy, model by model."""

import pathlib
from typing import Any

from benchmarks import figures
from benchmarks.clipping.compare import OWN, PEERS

MARKS = dict(zip(OWN + PEERS, "Dos^vPX<>", strict=True))
COLOURS = dict(zip(OWN + PEERS, figures.OURS + figures.PEERS, strict=True))
TARGET = "target of this project"

PANELS = {
    "time": "step time / no privacy",
    "temp_bytes": "temporary memory / no privacy",
}
"""The label of each ratio that is drawn."""

ROW_HEIGHT = 0.65
"""Inches."""
SPREAD = 0.1
"""How far apart the contenders of a model stand, in rows."""
HALF_BAR = 0.44
"""Half the length of a target's bar, in rows."""


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    models = result["models"]
    size = (8.4, 0.9 + ROW_HEIGHT * len(models))
    with figures.picture(path, 1, 2, size=size, sharey=True) as (figure, panels):
        for axes, (ratio, label) in zip(panels, PANELS.items(), strict=True):
            _draw_contenders(axes, models, ratio)
            _draw_targets(axes, models, ratio)
            _draw_rows(axes, list(models))
            axes.set(xscale="log", xlabel=label)
            axes.xaxis.set_major_formatter("{x:g}")

        # One legend, of what is in the first panel.
        marks = panels[0].get_legend_handles_labels()
        figure.legend(*marks, loc="outside upper center", ncols=5, frameon=False)


def _draw_contenders(axes: Any, models: dict[str, Any], ratio: str) -> None:
    """Draw a mark for each contender of each model that has this ratio."""
    for number, (name, mark) in enumerate(MARKS.items()):
        offset = SPREAD * (number - len(OWN))
        ratios = []
        rows = []
        for row, model in enumerate(models.values()):
            contender = model["contenders"].get(name, {})
            value = contender.get("over_no_privacy", {}).get(ratio)
            if value:
                ratios.append(value)
                rows.append(row + offset)
        if ratios:
            # The first contenders lie above the later ones.
            axes.scatter(
                ratios,
                rows,
                marker=mark,
                color=COLOURS[name],
                s=26,
                label=name,
                zorder=5 - number / 10,
            )


def _draw_targets(axes: Any, models: dict[str, Any], ratio: str) -> None:
    """Draw a bar where the target of a model is, if there is one."""
    for row, model in enumerate(models.values()):
        target = model["target"][ratio]
        if target is not None:
            axes.plot(
                [target, target],
                [row - HALF_BAR, row + HALF_BAR],
                "-",
                color="black",
                lw=1.2,
                zorder=6,
                label=TARGET if row == 0 else None,
            )


def _draw_rows(axes: Any, names: list[str]) -> None:
    """Name the rows, shade every other one, and draw the line of no overhead."""
    figures.name_rows(axes, names)
    axes.axvline(1, color="0.6", lw=0.8, zorder=1)
    for row in range(1, len(names), 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0)
    axes.grid(axis="x", color="0.9", zorder=1)
