"""One picture of the result: step time and temporary memory over those without privacy, model by model."""

import pathlib
from typing import Any

from benchmarks.clipping.compare import OWN, PEERS
from gdpjax.plotting.style import figure

COLOURS = ["#0b6e4f", "#2fa57c", "#7cc7a8", "#a9dcc6", "#8a8a8a", "#b5482f", "#e0a458", "#4a5a8a", "#8fa3d6"]
"""Ours are green."""
CONTENDERS = dict(zip(OWN + PEERS, zip("Dos^vPX<>", COLOURS, strict=True), strict=True))
"""The mark and the colour of each."""
PANELS = {"time": "step time / no privacy", "temp_bytes": "temporary memory / no privacy"}
"""The label of each ratio that is drawn."""
SPREAD = 0.1
"""How far apart the contenders of a model stand, in rows."""


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture."""
    models = result["cases"]
    size = (8.4, 0.9 + 0.65 * len(models))
    with figure(1, 2, size=size, path=path, sharey=True) as (drawing, panels):
        for axes, (ratio, label) in zip(panels, PANELS.items(), strict=True):
            _draw_ratio(axes, list(models.values()), ratio)
            axes.set(xscale="log", xlabel=label)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.grid(axis="x", color="0.9", zorder=1)

        # The names of the rows, the first one at the top, and one legend, of what is in the first panel.
        rows = range(len(models))
        panels[0].set(yticks=rows, yticklabels=models, ylim=(len(models) - 0.5, -0.5))
        marks = panels[0].get_legend_handles_labels()
        drawing.legend(*marks, loc="outside upper center", ncols=5, frameon=False)


def _draw_ratio(axes: Any, models: list[dict[str, Any]], ratio: str) -> None:
    """Draw a mark for each contender of each model that has this ratio, and the line of no overhead."""
    axes.axvline(1, color="0.6", lw=0.8, zorder=1)
    for number, (name, (mark, colour)) in enumerate(CONTENDERS.items()):
        ratios, rows = [], []
        for row, model in enumerate(models):
            over = model["contenders"].get(name, {}).get("over_no_privacy", {})
            if over.get(ratio):
                ratios.append(over[ratio])
                rows.append(row + SPREAD * (number - len(OWN)))
        axes.scatter(ratios, rows, marker=mark, color=colour, s=26, label=name, zorder=5)

    # Every other row is grey, and a bar in each is the target.
    for row, model in enumerate(models):
        if row % 2:
            axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0)
        if model["target"][ratio]:
            label = "" if row else "target of this project"
            axes.vlines(model["target"][ratio], row - 0.44, row + 0.44, color="black", lw=1.2, zorder=6, label=label)
