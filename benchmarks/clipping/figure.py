"""One picture of the result: step time and temporary memory over those without privacy, model by model."""

import pathlib
from typing import Any

from benchmarks.clipping.compare import OWN, PEERS
from benchmarks.writing import picture

STYLES = dict(
    zip(
        (*OWN, *PEERS),
        (
            ("D", "#0b6e4f"),
            ("o", "#2fa57c"),
            ("s", "#7cc7a8"),
            ("^", "#a9dcc6"),
            ("v", "#8a8a8a"),
            ("P", "#b5482f"),
            ("X", "#e0a458"),
            ("<", "#4a5a8a"),
            (">", "#8fa3d6"),
        ),
        strict=True,
    )
)
PANELS = (("time", "step time / no privacy"), ("temp_bytes", "temporary memory / no privacy"))


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    models = result["models"]
    with picture(path, 1, 2, figsize=(8.4, 0.9 + 0.55 * len(models)), sharey=True) as (figure, panels):
        for axes, (what, label) in zip(panels, PANELS, strict=True):
            for number, name in enumerate(STYLES):
                marker, colour = STYLES[name]
                found = [
                    (ratio, row + 0.06 * (number - 4))
                    for row, at in enumerate(models.values())
                    if (ratio := at["contenders"].get(name, {}).get("over_no_privacy", {}).get(what))
                ]
                if found:
                    x, y = zip(*found, strict=True)
                    axes.scatter(x, y, marker=marker, color=colour, s=30, label=name, zorder=5 - number / 10)
            for row, case in enumerate(models.values()):
                if (aim := case["target"][what]) is not None:
                    axes.plot(
                        [aim, aim],
                        [row - 0.36, row + 0.36],
                        color="black",
                        lw=1.2,
                        zorder=6,
                        label="target" if row == 0 else None,
                    )
            axes.axvline(1, color="0.6", lw=0.8, zorder=1)
            axes.set(xscale="log", xlabel=label, yticks=range(len(models)), yticklabels=list(models))
            axes.xaxis.set_major_formatter("{x:g}")
            for row in range(1, len(models), 2):
                axes.axhspan(row - 0.5, row + 0.5, color="0.96", zorder=0)
            axes.set_ylim(len(models) - 0.5, -0.5)
            axes.grid(axis="x", color="0.9", zorder=1)
            axes.tick_params(axis="y", length=0)
        handles, labels = panels[0].get_legend_handles_labels()
        order = sorted(range(len(labels)), key=lambda i: [*STYLES, "target"].index(labels[i]))
        figure.legend(
            [handles[i] for i in order], [labels[i] for i in order], loc="outside upper center", ncols=5, frameon=False
        )
