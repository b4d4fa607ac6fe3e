"""Figures for pages of the documentation, as SVG files whose text stays text: they are half as large."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from gdpjax.plotting.style import look


def save_svg(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a figure in the style of all figures, and write it without the time at which it was made."""
    with look(**{"svg.fonttype": "none", "mathtext.fontset": "dejavusans"}):
        draw().savefig(path, metadata={"Date": None})
    print(f"Figure: {path}")
