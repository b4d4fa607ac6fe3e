"""One picture of the result: configurations per second against width or error, both logarithmic."""

import pathlib
from typing import Any, NamedTuple

from benchmarks.figures import picture


class Point(NamedTuple):
    """A function of a library: how fast it is, and the median width or error over the configurations."""

    name: str
    standing: str
    rate: float
    size: float
    is_ours: bool = False


STANDINGS = {
    "bracket": ("o", "#0b6e4f", "bracket: relative width"),
    "upper": ("^", "#b5482f", "upper bound: relative excess"),
    "estimate": ("s", "#4a5a8a", "estimate: relative error"),
}
"""The mark of a kind of statement, its colour, and the meaning of its size."""
BATCHED = {"epsilon_bounds": "bracket", "moments_accountant_epsilon": "upper"}
"""Our functions on the whole grid, with what each states."""
CROWDED = (10, 100)
"""Among these rates the labels stand to the left."""
CLOSE = 1.6
"""Peers within this factor of each other share a label."""


def points(result: dict[str, Any]) -> list[Point]:
    """Return whatever has a rate and a size: ours on the whole grid, the others one configuration a call."""
    found = []
    for name, standing in BATCHED.items():
        accuracy = result["accuracy"][name]
        size = accuracy.get("relative_width") or accuracy["relative_error"]
        rate = result["batched"]["per_second"][name]["median"]
        found.append(Point(f"gdpjax {name}", standing, rate, size["median_size"], is_ours=True))
    for name, measured in result["comparison"]["libraries"].items():
        standing = measured["standing"]
        size = measured["relative_width"] if standing == "bracket" else measured["relative_error"]
        if size is None or standing not in STANDINGS or name.startswith("gdpjax"):
            continue
        found.append(Point(name, standing, measured["per_second"], size["median_size"]))
    return found


def labels(found: list[Point]) -> list[Point]:
    """Return what is written where: one label for peers of equal standing that lie close to each other."""
    shared: list[Point] = []
    for point in found:
        for number, other in enumerate(shared):
            if _is_near(point, other) and not other.is_ours:
                shared[number] = other._replace(name=f"{other.name}, {point.name}")
                break
        else:
            shared.append(point)
    return shared


def _is_near(point: Point, other: Point) -> bool:
    is_as_fast = 1 / CLOSE < point.rate / other.rate < CLOSE
    is_as_large = 1 / CLOSE < point.size / other.size < CLOSE
    return point.standing == other.standing and is_as_fast and is_as_large


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    """Write the picture; ImportError without matplotlib."""
    found = points(result)

    # Our bracket in single calls, from the widest to the narrowest.
    libraries = result["comparison"]["libraries"].items()
    single = [at for name, at in libraries if name.startswith("gdpjax epsilon_bounds")]
    curve = sorted(((at["relative_width"]["median_size"], at["per_second"]) for at in single), reverse=True)
    with picture(path, size=(7.0, 4.2)) as (figure, axes):
        for standing, (marker, colour, label) in STANDINGS.items():
            of_standing = [point for point in found if point.standing == standing]
            rates, sizes = [point.rate for point in of_standing], [point.size for point in of_standing]
            axes.scatter(rates, sizes, marker=marker, color=colour, s=42, label=label, zorder=3)
        widths, rates = zip(*curve, strict=True)
        label = "gdpjax bracket, rtol 1e-2 to 1e-6, one a call"
        axes.plot(rates, widths, marker=".", color=STANDINGS["bracket"][1], lw=1.0, label=label)

        for point in labels(found):
            _write_label(axes, point)
        xlabel = "configurations per second, one core (gdpjax in bold: many in a call; all others: one a call)"
        axes.set(xlabel=xlabel, xscale="log")
        axes.set(ylabel="relative width, excess or error,\nmedian over configurations", yscale="log")
        axes.margins(0.08, 0.12)
        axes.grid(color="0.92", zorder=0)
        figure.legend(loc="outside upper center", ncols=2, frameon=False)


def _write_label(axes: Any, point: Point) -> None:
    """Write the name to the right of a point, to the left where it is crowded, or above our point at the top."""
    place = (7, 0), "left", "center"
    if CROWDED[0] < point.rate < CROWDED[1]:
        place = (-7, 0), "right", "center"
    elif point.is_ours and point.standing == "upper":
        place = (0, 8), "right", "bottom"
    offset, across, along = place
    axes.annotate(
        point.name,
        (point.rate, point.size),
        offset,
        textcoords="offset points",
        ha=across,
        va=along,
        color=STANDINGS[point.standing][1],
        weight="bold" if point.is_ours else "normal",
    )
