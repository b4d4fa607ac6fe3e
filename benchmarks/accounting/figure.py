"""One picture of the result: configurations per second against width or error, both logarithmic."""

import pathlib
from typing import Any

from gdpjax.plotting.style import figure

MARKERS = "v<>^sPXD*"
"""One for each of the others."""


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture."""
    libraries = result["comparison"]["libraries"]
    with figure(size=(7.0, 4.6), path=path) as (drawing, axes):
        # The others, one configuration a call: the width of a bracket, the error of all else.
        others = {name: at for name, at in libraries.items() if not name.startswith("gdpjax")}
        for marker, (name, at) in zip(MARKERS, others.items(), strict=False):
            size = at["relative_width"] or at["relative_error"]
            axes.scatter(at["per_second"], size["median_size"], marker=marker, label=f"{name} ({at['standing']})")

        # Our bracket in single calls, from the widest to the narrowest, and on the whole grid.
        single = [at for name, at in libraries.items() if name.startswith("gdpjax epsilon_bounds")]
        curve = sorted((at["relative_width"]["median_size"], at["per_second"]) for at in single)
        widths, rates = zip(*curve, strict=True)
        axes.plot(rates, widths, marker=".", color="black", label="gdpjax bracket, rtol 1e-6 to 1e-2")
        rate = result["batched"]["per_second"]["epsilon_bounds"]["median"]
        width = result["accuracy"]["epsilon_bounds"]["relative_width"]["median_size"]
        axes.scatter(rate, width, color="black", label="gdpjax bracket, many in a call")
        axes.set(xscale="log", yscale="log", xlabel="configurations per second, one core")
        axes.set(ylabel="relative width of a bracket, or error,\nmedian over configurations")
        axes.grid(color="0.92", zorder=0)
        drawing.legend(loc="outside lower center", ncols=2, frameon=False)
