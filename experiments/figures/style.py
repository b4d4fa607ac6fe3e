"""One look for all figures of the experiments, drawn without a display.

with look(GRID):
    figure, axes = plt.subplots()
    ...
    save(figure, path)
"""

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gdpjax.sweeps.style import STYLE

# The palette of Okabe and Ito, which survives colour blindness.
GREY = "#555555"
BLUE = "#0072B2"
ORANGE = "#E69F00"
GREEN = "#009E73"
RED = "#D55E00"
PURPLE = "#CC79A7"

Settings = Mapping[str, Any]
"""Settings of matplotlib by name."""

GRID: Settings = {"axes.grid": True, "grid.alpha": 0.25, "grid.linewidth": 0.5}
"""Faint lines behind the data."""

SVG: Settings = {"svg.fonttype": "none", "svg.hashsalt": "gdpjax"}
"""Text stays text, and the same figure is the same file."""


@contextlib.contextmanager
def look(*extra: Settings, font_size: float = 9) -> Iterator[None]:
    """Draw in the style of all figures, with these settings besides."""
    settings: dict[Any, Any] = {**STYLE, "legend.frameon": False, "font.size": font_size}
    for each in extra:
        settings |= each
    with plt.rc_context(settings):
        yield


def save(figure: Figure, path: Path, **options: Any) -> None:
    """Write a figure without the time or the version it was made with, and close it."""
    stamp = "Date" if path.suffix == ".svg" else "Software"
    figure.savefig(path, metadata={stamp: None}, **options)
    plt.close(figure)
