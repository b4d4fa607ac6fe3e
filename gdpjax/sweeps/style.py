"""One look for the figures of runs and sweeps, which are drawn without a display."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

from matplotlib import pyplot as plt

CERTIFIED_COLOR = "#0072B2"
"""Of a palette that survives colour blindness (Okabe and Ito)."""
STYLE: Any = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False}


@contextlib.contextmanager
def figure_at(path: Path, *shape: int, **options: Any) -> Iterator[tuple[Any, Any]]:
    """Make a figure with axes, and save it at ``path`` when the context ends."""
    with plt.rc_context(STYLE):
        figure, axes = plt.subplots(*shape, layout="constrained", **options)
        try:
            yield figure, axes
            figure.savefig(path, dpi=200)
        finally:
            plt.close(figure)


def draw_grid(axes: Any) -> None:
    """Draw the faint lines behind the data."""
    axes.grid(alpha=0.25, linewidth=0.5)


def scientific(value: float) -> str:
    """Return a number as mathtext: 1e-05 is 10^{-5}."""
    mantissa, exponent = f"{value:e}".split("e")
    factor = f"{float(mantissa):g}"
    power = f"10^{{{int(exponent)}}}"
    if factor == "1":
        return power
    return rf"{factor} \times {power}"
