"""One picture of the result: step time and temporary memory over those without privacy, model by model."""

import pathlib
from typing import Any

from benchmarks import figures
from benchmarks.clipping.compare import OWN, PEERS

CONTENDERS = dict(zip(OWN + PEERS, zip("Dos^vPX<>", figures.OURS + figures.PEERS, strict=True), strict=True))
"""The mark and the colour of each."""
PANELS = {"time": "step time / no privacy", "temp_bytes": "temporary memory / no privacy"}
"""The label of each ratio that is drawn."""
SPREAD = 0.1
"""How far apart the contenders of a model stand, in rows."""


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    models = result["models"]
    size = (8.4, 0.9 + 0.65 * len(models))
    with figures.picture(path, 1, 2, size=size, sharey=True) as (figure, panels):
        for axes, (ratio, label) in zip(panels, PANELS.items(), strict=True):
            _draw_ratio(axes, list(models.values()), ratio)
            figures.name_rows(axes, list(models))
            axes.set(xscale="log", xlabel=label)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.grid(axis="x", color="0.9", zorder=1)

        # One legend, of what is in the first panel.
        marks = panels[0].get_legend_handles_labels()
        figure.legend(*marks, loc="outside upper center", ncols=5, frameon=False)


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
