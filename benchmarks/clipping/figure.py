"""One picture of the result: step time and temporary memory over those without privacy, model by model."""

import pathlib
from typing import Any, NamedTuple

from benchmarks.clipping.compare import OWN, PEERS
from benchmarks.writing import picture


class Style(NamedTuple):
    """The style in which a contender is drawn."""

    marker: str
    colour: str


OWN_STYLES = (
    Style("D", "#0b6e4f"),
    Style("o", "#2fa57c"),
    Style("s", "#7cc7a8"),
    Style("^", "#a9dcc6"),
)
PEER_STYLES = (
    Style("v", "#8a8a8a"),
    Style("P", "#b5482f"),
    Style("X", "#e0a458"),
    Style("<", "#4a5a8a"),
    Style(">", "#8fa3d6"),
)
STYLES = dict(zip(OWN, OWN_STYLES, strict=True)) | dict(zip(PEERS, PEER_STYLES, strict=True))
TARGET = "target of this project"
ORDER = (*STYLES, TARGET)
"""Of the legend."""

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
    with picture(path, 1, 2, size=size, sharey=True) as (figure, panels):
        for axes, (ratio, label) in zip(panels, PANELS.items(), strict=True):
            _draw_contenders(axes, models, ratio)
            _draw_targets(axes, models, ratio)
            _draw_rows(axes, list(models))
            axes.set(xscale="log", xlabel=label)
            axes.xaxis.set_major_formatter("{x:g}")

        # One legend, of what is in the first panel.
        handles, labels = panels[0].get_legend_handles_labels()
        handle_of = dict(zip(labels, handles, strict=True))
        ordered = sorted(labels, key=ORDER.index)
        figure.legend(
            [handle_of[label] for label in ordered],
            ordered,
            loc="outside upper center",
            ncols=5,
            frameon=False,
        )


def _draw_contenders(axes: Any, models: dict[str, Any], ratio: str) -> None:
    """Draw a mark for each contender of each model that has this ratio."""
    for number, (name, style) in enumerate(STYLES.items()):
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
                marker=style.marker,
                color=style.colour,
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
    num_rows = len(names)
    axes.axvline(1, color="0.6", lw=0.8, zorder=1)
    axes.set(yticks=range(num_rows), yticklabels=names)
    for row in range(1, num_rows, 2):
        axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0)

    # The first row is at the top.
    axes.set_ylim(num_rows - 0.5, -0.5)
    axes.grid(axis="x", color="0.9", zorder=1)
    axes.tick_params(axis="y", length=0)
